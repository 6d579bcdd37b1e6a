"""Environments in a run: lost worlds, worlds that come back different, and rewards."""

import asyncio

import pytest

from holdfast.engine.export.export import What
from holdfast.records.errors import EngineUnavailable
from holdfast.records.history import CAME_BACK_DIFFERENT
from holdfast.rollout.episodes.environment import Observation
from holdfast.rollout.processors.agent import AgentRolloutProcessor, EnvironmentRolloutProcessor
from holdfast.rollout.replay.run_context import OnDivergence
from support.engine.local_run import LocalRun
from support.rollout import worlds
from support.rollout.stage import Oracle
from support.rollout.worlds import Broken, Counter, Fickle


@pytest.fixture(autouse=True)
def calls():
    worlds.CALLS.clear()
    return worlds.CALLS


class Flaky:
    """Answers "1", but its answer number `fails_at` is an accident."""

    def __init__(self, fails_at: int):
        self.answers = 0
        self.fails_at = fails_at

    def __call__(self, request):
        self.answers += 1
        return EngineUnavailable("gone") if self.answers == self.fails_at else "1"


def playing(make, **options):
    return EnvironmentRolloutProcessor(lambda task: make(), **options)


def test_the_reward_is_the_sum_of_the_steps():
    local = LocalRun(policy=Oracle(lambda request: "25"))
    local.run(playing(Counter))
    history = local.history()
    assert history.status.name == "COMPLETED"
    assert history.reward == 25.0 * len(history.environment_steps)
    (row,) = local.rows(What.TRAJECTORIES)
    assert [step["reward"] for step in row["environment_steps"]] == [25.0] * 4


def test_a_limit_keeps_the_reward_so_far():
    local = LocalRun(policy=Oracle(lambda request: "1"))
    local.run(playing(Counter, max_turns=3))
    history = local.history()
    assert (history.status.name, history.finished.reason) == ("TRUNCATED", "max_turns")
    assert history.reward == 3.0


def test_an_environments_own_limit_is_a_truncation():
    class Short(Counter):
        def step(self, action):
            seen = super().step(action)
            return Observation(seen.text, seen.reward, truncated=True)

    local = LocalRun(policy=Oracle(lambda request: "4"))
    local.run(playing(Short))
    history = local.history()
    assert (history.status.name, history.finished.reason) == ("TRUNCATED", "environment_limit")
    assert history.reward == 4.0


def test_a_failed_attempt_goes_on_in_the_same_world(calls):
    local = LocalRun(policy=Oracle(Flaky(3)))
    local.run(playing(Counter, max_turns=4))
    history = local.history()
    assert history.finished.reason == "max_turns"
    assert [step.action for step in history.environment_steps] == ["1"] * 4
    assert calls == [
        *("reset", "step 1", "step 1", "close"),
        *("reset", "step 1", "step 1", "step 1", "step 1", "close"),
    ]


def test_a_world_that_cannot_come_back_starts_the_trajectory_anew(calls):
    local = LocalRun(policy=Oracle(Flaky(3)))
    local.run(playing(lambda: Counter("restart"), max_turns=4))
    history = local.history()
    assert history.finished.reason == "max_turns"
    (fork,) = history.forks
    assert "Counter cannot come back" in fork.reason
    assert history.spent == 1
    assert calls.count("step 1") == 2 + 4
    assert len(local.rows()) == 1


def test_a_world_that_came_back_different_forks_where_it_differs():
    class Changed(Counter):
        """The second instance of it answers the second step in other words."""

        instances = 0

        def __init__(self):
            super().__init__()
            Changed.instances += 1
            self.mine, self.steps = Changed.instances, 0

        def step(self, action):
            seen = super().step(action)
            self.steps += 1
            if self.mine > 1 and self.steps == 2:
                return Observation("elsewhere", seen.reward)
            return seen

    local = LocalRun(policy=Oracle(Flaky(4)))
    local.run(playing(Changed, max_turns=5))
    history = local.history()
    assert history.finished.reason == "max_turns"
    (fork,) = history.forks
    assert fork.reason == CAME_BACK_DIFFERENT
    assert "elsewhere" in fork.difference
    assert fork.path == "4"
    assert [step.observation for step in history.environment_steps][1] == "elsewhere"
    assert len(history.failures) == 1
    assert local.report().worlds_changed == 1


def test_a_world_that_never_comes_back_the_same_fails_in_the_end():
    local = LocalRun(policy=Oracle(lambda request: "1"))

    class Dropped(Fickle):
        drops = 0

        def step(self, action):
            seen = super().step(action)
            if worlds.CALLS.count("step 1") % 3 == 0:
                raise ConnectionError("dropped")
            return seen

    local.run(playing(Dropped, max_turns=50), max_retry=3)
    history = local.history()
    assert history.status.name in ("FAILED", "TRUNCATED")
    assert len(history.failures) <= 8


def test_a_mismatch_fails_the_trajectory_where_divergence_does():
    local = LocalRun(policy=Oracle(Flaky(3)))
    local.run(playing(Fickle, max_turns=5), on_divergence=OnDivergence.FAIL)
    history = local.history()
    assert history.status.name == "FAILED"
    assert history.failures[-1].type == "Diverged"
    assert CAME_BACK_DIFFERENT in history.failures[-1].message


@pytest.mark.parametrize("where", ["reset", "step"])
def test_a_broken_environment_fails_its_own_trajectory_only(where):
    local = LocalRun("good", "bad", policy=Oracle(lambda request: "50"))
    make = {"good": Counter, "bad": lambda: Broken(where)}
    local.run(EnvironmentRolloutProcessor(lambda task: make[task.id]()), max_retry=1)
    assert local.statuses() == {"good/0": ("COMPLETED", True), "bad/0": ("FAILED", True)}
    failure = local.history("bad/0").failures[0]
    assert failure.cause == "environment"
    assert f"Broken.{where} broke: RuntimeError: a fault in {where}" in failure.message


def test_an_environment_that_cannot_be_closed_costs_nothing():
    local = LocalRun(policy=Oracle(lambda request: "50"))
    local.run(playing(lambda: Broken("close")))
    history = local.history()
    assert history.status.name == "COMPLETED"
    assert history.reward == 100.0
    assert [failure.message for failure in history.close_failures] == ["a fault in close"]
    report = local.report()
    assert report.closes_failed == 1
    assert [(cause.phase, cause.permanent) for cause in report.causes] == [("close", 0)]


def test_an_agent_calls_tools_until_it_stops():
    def lookup(word: str) -> str:
        """Looks a word up."""
        return word.upper()

    local = LocalRun(policy=Oracle(lambda request: "done"))
    local.run(AgentRolloutProcessor([lookup], system_prompt="be brief", max_turns=3))
    history = local.history()
    assert history.status.name == "COMPLETED"
    assert len(history.generations) == 1


def test_what_finish_returns_is_the_reward():
    async def finish(t, episodes):
        (episode,) = episodes
        await episode.step("7")
        return 0.25

    local = LocalRun(policy=Oracle(lambda request: "done"))
    local.run(AgentRolloutProcessor(environments=[lambda task: Counter()], finish=finish))
    history = local.history()
    assert history.reward == 0.25
    assert [step.action for step in history.environment_steps] == ["7"]


def test_a_rollout_may_return_its_turns_and_its_reward():
    async def solve(t):
        await t.generate()
        return 3, 0.5

    local = LocalRun()
    local.run(solve)
    assert local.history().reward == 0.5
    assert local.history().finished.turns_used == 3


@pytest.mark.parametrize("result", ["won", (1, "x"), (-1, 0.5), (1, 2, 3)])
def test_anything_else_is_refused_in_words(result):
    async def solve(t):
        await t.generate()
        return result

    local = LocalRun()
    local.run(solve, max_retry=0)
    (failure,) = local.history().failures
    assert "a rollout returns None, its reward, or (turns_used, reward)" in failure.message


def test_a_stopped_run_closes_its_environments(calls):
    local = LocalRun(policy=Oracle(lambda request: "1"))

    class Stopping(Counter):
        def step(self, action):
            local.stop.request("enough")
            return super().step(action)

    local.run(playing(Stopping, max_turns=3))
    assert calls == ["reset", "step 1", "close"]
    assert local.statuses()["a/0"] == ("RUNNING", False)
    asyncio.run(asyncio.sleep(0))


class Earning(Counter):
    """Its tool earns what it adds, and ends the episode at its goal."""

    def add(self, amount: int) -> Observation:
        """Adds an amount."""
        self.number += amount
        return Observation(f"now {self.number}", float(amount), done=self.number >= self.goal)


def call_add(amount: int) -> str:
    return f'<tool_call>{{"name": "add", "arguments": {{"amount": {amount}}}}}</tool_call>'


def test_what_a_tool_earns_is_kept_and_an_episode_that_is_over_ends_the_loop():
    local = LocalRun(policy=Oracle(lambda request: call_add(40)))
    local.run(AgentRolloutProcessor(environments=[lambda task: Earning()]))
    history = local.history()
    assert history.status.name == "COMPLETED"
    assert history.step_rewards == [40.0] * len(history.generations)
    assert history.reward == sum(history.step_rewards)
    assert 2 <= len(history.generations) <= 3


@pytest.mark.parametrize(("earns", "reward"), [(None, 0.0), (True, 0.0), (False, None)])
def test_who_does_nothing_in_an_environment_that_rewards_earns_0(earns, reward):
    environment = Earning()
    environment.earns = earns
    local = LocalRun(policy=Oracle(lambda request: "done"))
    local.run(AgentRolloutProcessor(environments=[lambda task: environment]))
    assert local.history().reward == reward


def test_a_call_after_the_end_of_the_episode_is_told_no():
    local = LocalRun(policy=Oracle(lambda request: call_add(200) + call_add(1)))
    local.run(AgentRolloutProcessor(environments=[lambda task: Earning()]))
    history = local.history()
    first, second = history.results.values()
    assert (first.done, first.reward) == (True, 200.0)
    assert second.content == "Nothing happened: the episode is over."
    assert history.reward == 200.0


def test_what_tools_earned_is_the_same_after_a_failed_attempt():
    class Once:
        calls = 0

        def __call__(self, request):
            Once.calls += 1
            return EngineUnavailable("gone") if Once.calls == 2 else call_add(30)

    local = LocalRun(policy=Oracle(Once()))
    local.run(AgentRolloutProcessor(environments=[lambda task: Earning()]))
    history = local.history()
    assert len(history.failures) == 1
    assert not history.forks
    assert history.reward == 30.0 * len(history.generations)
