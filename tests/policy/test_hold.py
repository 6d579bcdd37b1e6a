"""The time of a hold is nobody's: no attempt runs into its deadline because weights changed."""

import asyncio

import aiohttp

from holdfast.gateway.agents.external import ExternalRolloutProcessor
from holdfast.gateway.server import Gateway
from holdfast.policy.hold import CallHolds, HoldablePolicy, with_holds
from support.engine.local_run import LocalRun
from support.gateway.external_agents import converse, post
from support.rollout.stage import Oracle

DEADLINE = 3.0  # Long enough for an agent that does its work at once, on any machine.


def worked(agent, **settings) -> LocalRun:
    """A local run in which `agent(http, processor)` did its work."""
    local, processor = LocalRun(), ExternalRolloutProcessor()

    async def body():
        work = asyncio.create_task(local.work(processor, **settings))
        while not processor.url:
            await asyncio.sleep(0.01)
        async with aiohttp.ClientSession() as http:
            await agent(http, processor)
        await asyncio.wait_for(work, 120)

    asyncio.run(body())
    return local


async def taken_from(http, processor) -> dict:
    status, taken = await post(http, f"{processor.url}/trajectories", {"wait": 10})
    assert status == 200
    return taken


def test_a_hold_longer_than_the_attempts_deadline_costs_no_attempt():
    async def agent(http, processor):
        taken = await taken_from(http, processor)
        async with processor._gateway.held(60):
            waiting = asyncio.create_task(converse(http, taken))
            await asyncio.sleep(1.3 * DEADLINE)
            assert not waiting.done()
        await waiting
        await post(http, f"{taken['bound_url']}/complete", {"reward": 1})

    history = worked(agent, attempt_deadline=DEADLINE).history()
    assert history.status.name == "COMPLETED"
    assert not history.failures
    assert len(history.attempts) == 1


def test_a_hold_before_the_attempt_gives_it_no_more_time():
    async def agent(http, processor):
        async with processor._gateway.held(60):
            await asyncio.sleep(0.3)
        taken = await taken_from(http, processor)
        async with processor._gateway.held(60):
            await asyncio.sleep(0.3)
        # Whoever is too slow is so by itself.
        again = await taken_from(http, processor)
        assert again["attempt"] == taken["attempt"] + 1
        await post(http, f"{again['bound_url']}/complete", {"reward": 1})

    history = worked(agent, attempt_deadline=DEADLINE).history()
    assert [failure.type for failure in history.failures] == ["AttemptTimeout"]


async def test_only_time_in_which_it_was_held_counts_and_holds_at_once_count_once():
    oracle = Oracle()
    oracle.seconds_down = 7.0
    policy = HoldablePolicy(oracle)
    holds = policy.holds
    assert policy.seconds_down == 7.0
    first, second = holds.hold(), holds.hold()
    await asyncio.sleep(0.1)
    first.end()
    first.end()
    assert policy.seconds_down >= 7.1
    second.end()
    held = holds.seconds_held
    assert held >= 0.1
    await asyncio.sleep(0.05)
    assert holds.seconds_held == held
    assert policy.seconds_down == 7.0 + held
    holds.remove(second)
    assert holds.seconds_held == held


def test_a_policy_with_holds_of_its_own_is_held_by_these():
    held = HoldablePolicy(Oracle())
    assert with_holds(held) is held
    assert with_holds(Oracle()).holds is not held.holds


async def test_a_closed_gateway_ends_its_own_holds_and_no_others():
    holds = CallHolds()
    other = holds.hold()
    async with Gateway({}, holds=holds) as gateway:
        gateway.hold()
        other.end()
        assert holds.gauges["holding"]
    assert not holds.gauges["holding"]
    other = holds.hold()
    async with Gateway({}, holds=holds) as gateway:
        gateway.hold()
    assert holds.gauges["holding"]
    other.end()
    assert not holds.gauges["holding"]
