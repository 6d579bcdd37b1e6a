import asyncio
from collections.abc import Coroutine

import pytest

from holdfast.policy.client.circuit_breaker import (
    COOL_BASE_SECONDS,
    FAILURES_IN_A_ROW,
    CircuitBreaker,
)
from holdfast.records.errors import EndpointDown, WaitTimedOut
from holdfast.testing import ManualClock


class Endpoint:
    """Down until told otherwise; counts its probes."""

    def __init__(self) -> None:
        self.why: str | None = "refused"
        self.probes = 0
        self.must_sample: list[bool] = []

    async def probe(self, must_sample: bool) -> str | None:
        self.probes += 1
        self.must_sample.append(must_sample)
        await asyncio.sleep(0)
        return self.why


class World:
    def __init__(self, patience: float = 60.0):
        self.clock = ManualClock()
        self.endpoint = Endpoint()
        self.breaker = CircuitBreaker("e", self.endpoint.probe, clock=self.clock, patience=patience)

    def fail(self, times: int = FAILURES_IN_A_ROW) -> None:
        for _ in range(times):
            self.breaker.record_failure()


def run(test: Coroutine[object, object, None]) -> None:
    asyncio.run(test)


async def test_the_gate_stays_open_while_failures_are_not_in_a_row() -> None:
    world = World()
    for _ in range(10):
        world.fail(FAILURES_IN_A_ROW - 1)
        world.breaker.record_success()
    assert world.breaker.is_passing
    assert world.endpoint.probes == 0


async def test_calls_wait_through_an_outage_and_pass_together_after_it() -> None:
    world = World()
    world.fail()
    waiting = [asyncio.create_task(world.breaker.wait_ready()) for _ in range(5)]
    await world.clock.advance(20)
    assert not any(task.done() for task in waiting)
    world.endpoint.why = None
    await world.clock.advance(20)
    assert all(task.done() for task in waiting)
    assert world.breaker.outages == 1


async def test_one_probe_runs_however_many_calls_fail() -> None:
    world = World()
    world.fail(100)
    await world.clock.advance(0)
    assert world.endpoint.probes == 1
    await world.breaker.aclose()


async def test_an_endpoint_that_answers_its_probe_had_no_outage() -> None:
    world = World()
    world.endpoint.why = None
    world.fail()
    await world.breaker.wait_ready()
    assert world.breaker.outages == 0
    assert world.breaker.seconds_down == 0


async def test_the_time_of_an_outage_is_counted_while_it_lasts_and_not_after_it() -> None:
    world = World()
    world.fail()
    await world.clock.advance(5)
    assert world.breaker.seconds_down == 5
    world.endpoint.why = None
    await world.clock.advance(10)
    assert world.breaker.is_passing
    counted = world.breaker.seconds_down
    assert 5 <= counted <= 15
    await world.clock.advance(100)
    assert world.breaker.seconds_down == counted


async def test_patience_ends_with_an_error_that_says_why_and_what_to_do() -> None:
    world = World(patience=30)
    world.fail()
    waiting = asyncio.create_task(world.breaker.wait_ready())
    await world.clock.advance(29)
    assert not waiting.done()
    await world.clock.advance(20)
    with pytest.raises(WaitTimedOut, match=r"has been down for \d+ s \(refused\); start it"):
        await waiting
    with pytest.raises(EndpointDown):
        await world.breaker.wait_ready()


async def test_each_call_gets_an_error_of_its_own_when_patience_ends() -> None:
    world = World(patience=1)
    world.fail()
    waiting = [asyncio.create_task(world.breaker.wait_ready()) for _ in range(2)]
    await world.clock.advance(30)
    first, other = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(first, EndpointDown)
    assert first is not other


async def test_a_spent_budget_is_full_again_after_a_probe() -> None:
    world = World()
    world.endpoint.why = None
    while world.breaker.budget.spend():
        pass
    world.breaker.trip()
    await world.breaker.wait_ready()
    assert world.breaker.budget.spend()


async def test_closing_turns_away_those_who_wait_and_leaves_no_task() -> None:
    world = World()
    world.fail()
    waiting = asyncio.create_task(world.breaker.wait_ready())
    await world.clock.advance(1)
    await world.breaker.aclose()
    with pytest.raises(EndpointDown, match="closed"):
        await waiting
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_cancelled_call_leaves_the_others_waiting() -> None:
    world = World()
    world.fail()
    gone, stays = (asyncio.create_task(world.breaker.wait_ready()) for _ in range(2))
    await world.clock.advance(1)
    gone.cancel()
    await world.clock.advance(1)
    assert gone.cancelled()
    assert not stays.done()
    world.endpoint.why = None
    await world.clock.advance(20)
    assert stays.done()


async def test_a_spent_retry_budget_pauses_everyone_before_the_endpoint_is_asked_again() -> None:
    clock, probes = ManualClock(), 0

    async def probe(_: bool) -> str | None:
        nonlocal probes
        probes += 1
        return None

    breaker = CircuitBreaker("http://engine", probe, clock=clock, patience=60)
    while breaker.is_passing:
        breaker.spend_retry()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert probes == 0, "a struggling endpoint gets a rest first"
    await clock.advance(COOL_BASE_SECONDS)
    await breaker.wait_ready()
    assert probes == 1
    await breaker.aclose()


async def test_a_probe_that_let_calls_pass_in_vain_has_to_try_it_in_earnest_the_next_time() -> None:
    world = World()
    world.endpoint.why = None
    for succeeds in (False, False, True, False):
        world.fail()
        await world.breaker.wait_resolved()
        if succeeds:
            world.breaker.record_success()
    assert world.endpoint.must_sample == [False, True, True, False]
    await world.breaker.aclose()
