"""Gymnasium environments in durable rollouts: killed, broken, dishonest, and back again."""

import asyncio
import json

import pytest

from holdfast.environments.gym.environment import GymEnvironment
from holdfast.records.errors import Rewound
from holdfast.records.history import CAME_BACK_DIFFERENT
from holdfast.rollout.processors.agent import AgentRolloutProcessor, EnvironmentRolloutProcessor
from holdfast.rollout.replay.run_context import OnDivergence
from support.engine.local_run import LocalRun
from support.environments.gym_games import (
    Dropped,
    Trouble,
    attempt,
    cell,
    keep,
    lake,
    last_seen,
    next_move,
    player,
    put_back,
    walker,
)
from support.rollout.stage import Oracle, TrajectoryUnderTest


def slippery() -> GymEnvironment:
    return lake(is_slippery=True)


def blackjack() -> GymEnvironment:
    return GymEnvironment("Blackjack-v1", actions={"stick": 0, "hit": 1})


def card_player() -> Oracle:
    def bet(request) -> str:
        messages = last_seen(request)
        return "hit" if int(messages[1 : messages.index(",")]) < 17 else "stick"

    return Oracle(bet)


def steps_of(history) -> list[tuple[object, ...]]:
    return [
        (step.action, step.observation, step.reward, step.done, step.truncated)
        for step in history.environment_steps
    ]


def test_the_goal_is_reached_and_the_reward_is_the_sum_of_the_steps():
    local = LocalRun(policy=walker())
    local.run(EnvironmentRolloutProcessor(lambda task: lake()))
    history = local.history()
    assert local.statuses() == {"a/0": ("COMPLETED", True)}
    assert [step.reward for step in history.environment_steps] == [0, 0, 0, 0, 0, 1]
    assert history.finished.reward == 1.0


def test_a_run_with_the_same_seed_plays_the_same_games():
    def games(seed: int) -> dict[str, object]:
        local = LocalRun(policy=walker(), samples=4, seed=seed)
        local.run(EnvironmentRolloutProcessor(lambda task: slippery()))
        return {name: steps_of(history) for name, history in local.histories().items()}

    fields = games(1)
    assert fields == games(1)
    assert fields != games(2)
    assert len({json.dumps(steps) for steps in fields.values()}) > 1, "samples differ"


@pytest.mark.parametrize(
    ("make", "policy", "seed"),
    [(lake, walker, 1), (slippery, walker, 1), (blackjack, card_player, 15)],
)
@pytest.mark.parametrize("dropped_after", [0, 1, 2])
async def test_a_dropped_episode_comes_back_by_replay(make, policy, seed, dropped_after):
    undisturbed, killed = (
        TrajectoryUnderTest(policy(), seed=seed),
        TrajectoryUnderTest(policy(), seed=seed),
    )
    expected, seen = [], []
    await attempt(undisturbed, player(make, seen=expected))
    for _ in range(2):
        with pytest.raises(Dropped):
            await attempt(killed, player(make, dropped_after=dropped_after))
    await attempt(killed, player(make, seen=seen))
    first, two = await undisturbed.history(), await killed.history()
    assert len(first.environment_steps) > dropped_after
    assert steps_of(first) == steps_of(two)
    assert seen == expected
    assert killed.oracle.request_ids == undisturbed.oracle.request_ids, (
        "no turn was generated again"
    )
    assert not two.forks


async def test_a_finished_episode_is_replayed_without_its_environment():
    trouble, subject, policy = Trouble(), None, Oracle(lambda request: "1")
    subject = TrajectoryUnderTest(policy)
    await attempt(subject, player(trouble.environment))
    await attempt(subject, player(trouble.environment))
    assert trouble.calls == {"reset": 1, "step": 4, "close": 1}


async def test_what_comes_back_different_is_noticed_and_begun_anew():
    trouble, subject = Trouble(is_unseeded=True), TrajectoryUnderTest(Oracle(lambda request: "1"))
    with pytest.raises(Dropped):
        await attempt(subject, player(trouble.environment, dropped_after=2))
    with pytest.raises(Rewound, match=CAME_BACK_DIFFERENT):
        await attempt(subject, player(trouble.environment))
    await attempt(subject, player(trouble.environment))
    history = await subject.history()
    assert [fork.reason for fork in history.forks] == [CAME_BACK_DIFFERENT]
    assert len(history.environment_steps) == 4


def test_where_divergence_fails_it_fails():
    trouble, subject = Trouble(is_unseeded=True), TrajectoryUnderTest(Oracle(lambda request: "1"))

    async def scenario():
        with pytest.raises(Dropped):
            await attempt(subject, player(trouble.environment, dropped_after=2))
        await attempt(subject, player(trouble.environment), on_divergence=OnDivergence.FAIL)

    with pytest.raises(Exception, match=CAME_BACK_DIFFERENT):
        asyncio.run(scenario())


@pytest.mark.parametrize("where", ["reset", "step"])
def test_an_environment_that_breaks_once_costs_an_attempt_and_nothing_else(where):
    trouble = Trouble(where, times=1)
    local = LocalRun(policy=Oracle(lambda request: "1"))
    local.run(EnvironmentRolloutProcessor(lambda task: trouble.environment()))
    history = local.history()
    assert local.statuses() == {"a/0": ("COMPLETED", True)}
    (failure,) = history.failures
    assert (failure.cause, f"no {where} today" in failure.message) == ("environment", True)
    assert [step.reward for step in history.environment_steps] == [0.25] * 4
    assert trouble.calls["close"] == 2


def test_an_environment_that_always_breaks_fails_alone():
    broken, sound = Trouble("step", times=10**6), Trouble()
    local = LocalRun("bad", "good", policy=Oracle(lambda request: "1"))
    local.run(
        EnvironmentRolloutProcessor(
            lambda task: (broken if task.id == "bad" else sound).environment()
        )
    )
    assert {name: status for name, (status, _) in local.statuses().items()} == {
        "bad/0": "FAILED",
        "good/0": "COMPLETED",
    }
    assert local.history("bad/0").failures[-1].cause == "environment"
    assert broken.calls["close"] == broken.calls["reset"], "each that was opened was closed"


def test_an_environment_that_cannot_be_closed_harms_nothing():
    trouble = Trouble("close", times=10**6)
    local = LocalRun(policy=Oracle(lambda request: "1"))
    local.run(EnvironmentRolloutProcessor(lambda task: trouble.environment()))
    assert local.statuses() == {"a/0": ("COMPLETED", True)}
    assert not local.history().failures
    assert [
        "no close today" in close_failure.message
        for close_failure in local.history().close_failures
    ] == [True]


def test_nonsense_is_told_to_the_policy_and_stays_in_the_trajectory():
    def answer(request) -> str:
        text = last_seen(request)
        return "down" if "Possible are: left, down, right, up" in text else "swim"

    local = LocalRun(policy=Oracle(answer))
    local.run(EnvironmentRolloutProcessor(lambda task: lake(), max_turns=4))
    steps = local.history().environment_steps
    assert [(step.action, bool(step.error)) for step in steps] == [
        ("swim", True),
        ("down", False),
        ("swim", True),
        ("down", False),
    ]
    assert cell(steps[-1].observation) == 8
    assert local.statuses() == {"a/0": ("TRUNCATED", True)}


async def test_a_snapshot_spares_doing_everything_again():
    counted = []

    def render(env, where, info) -> str:
        counted.append(where)
        return f"on {where}"

    def make() -> GymEnvironment:
        return lake(is_slippery=True, render=render, snapshot=keep, restore=put_back)

    def left(request) -> str:
        return "left"

    subject = TrajectoryUnderTest(Oracle(left), seed=3)
    with pytest.raises(Dropped):
        await attempt(subject, player(make, dropped_after=5))
    before = len(counted)
    with pytest.raises(Dropped):
        await attempt(subject, player(make, dropped_after=7))
    undisturbed, after = TrajectoryUnderTest(Oracle(left), seed=3), len(counted)
    with pytest.raises(Dropped):
        await attempt(undisturbed, player(make, dropped_after=7))
    live, killed, undisturbed = after - before, await subject.history(), await undisturbed.history()
    # The last snapshot was taken before the fifth turn: one step again, and two new ones.
    assert live == 3
    assert steps_of(killed) == steps_of(undisturbed)


def test_a_model_that_calls_tools_can_play():
    def answer(request) -> str:
        text = last_seen(request)
        if "over" in text:
            return "I am done."
        arguments = json.dumps({"action": next_move(text)})
        return f'<tool_call>{{"name": "move", "arguments": {arguments}}}</tool_call>'

    local = LocalRun(policy=Oracle(answer))
    local.run(AgentRolloutProcessor(environments=[lambda task: lake(as_tool="move")]))
    assert local.statuses() == {"a/0": ("COMPLETED", True)}
    results = list(local.history().results.values())
    assert len(results) == 6
    assert local.history().reward == 1.0
    assert results[-1].content.endswith("HFF[G]\nReward: 1.\nThe episode is over.")
