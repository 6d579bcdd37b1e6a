"""Runs whose environments misbehave: what is given up, what is closed, and what is counted."""

import asyncio
import threading

import pytest

import holdfast
from holdfast.engine.export.export import What
from holdfast.records.errors import EndpointDown, ToolSaysNo
from holdfast.records.group import GroupPolicy
from holdfast.rollout.episodes.environment import Environment, Observation
from holdfast.rollout.episodes.restore import EPISODE_OVER, MAX_REWINDS
from holdfast.rollout.processors.agent import AgentRolloutProcessor, EnvironmentRolloutProcessor
from holdfast.rollout.replay.session import MAX_CRASHES
from holdfast.rollout.threads import dedicated
from support.engine.local_run import LocalRun
from support.rollout import worlds
from support.rollout.stage import Oracle, call
from support.rollout.worlds import AsyncCounter, Counter, Fickle

NO_REFILL = GroupPolicy(refill=0)


@pytest.fixture(autouse=True)
def calls():
    worlds.CALLS.clear()
    return worlds.CALLS


# --- what a rollout may return


@pytest.mark.parametrize("result", [(True, 1.0), (2**70, 1.0)])
def test_turns_that_cannot_be_recorded_are_refused_in_words(result):
    async def solve(t):
        await t.generate()
        return result if t.task.id == "bad" else 1.0

    local = LocalRun("bad", "good")
    local.run(solve, max_retry=0)
    assert local.statuses() == {"bad/0": ("FAILED", True), "good/0": ("COMPLETED", True)}
    failure = local.history("bad/0").failures[0]
    assert "a rollout returns None, its reward, or (turns_used, reward)" in failure.message
    assert len(local.rows(What.TRAJECTORIES)) == 2


# --- cut-off steps, and closing


def test_after_a_step_was_cut_off_the_next_attempt_finds_the_recorded_world():
    class Stalls(AsyncCounter):
        """The first of them never answers its second step."""

        made = 0

        def __init__(self):
            super().__init__()
            Stalls.made += 1
            self.is_first, self.stalled = Stalls.made == 1, asyncio.Event()

        async def step(self, action):
            seen = Counter.step(self, action)
            if self.is_first and action == "5":
                self.stalled.set()
                await asyncio.Event().wait()
            return seen

    async def solve(t):
        environment = Stalls()
        episode = await t.env(environment, seed=0)
        await episode.step("1")

        async def give_up(c):
            if environment.is_first:
                await environment.stalled.wait()
                raise ToolSaysNo("enough")

        try:
            await t.branch(give_up, lambda c: c.act(episode, "5"))
        except ToolSaysNo:
            await episode.step("100")
        return float(environment.number)

    local = LocalRun()
    local.run(solve)
    history = local.history()
    assert [failure.cause.value for failure in history.failures] == ["environment"]
    assert (history.status.name, history.reward) == ("COMPLETED", 6.0)


def test_a_stop_while_one_environment_closes_closes_the_others_too(calls):
    local = LocalRun()

    class SlowToClose(AsyncCounter):
        async def close(self):
            local.stop.request("enough")
            await asyncio.sleep(0.1)
            calls.append("slow close")

    async def solve(t):
        await t.env(AsyncCounter())
        await t.env(SlowToClose())
        await t.generate()

    local.run(solve, grace=0.01)
    assert calls == ["reset", "reset", "slow close", "close"]


def test_an_environment_that_finds_no_thread_is_tried_again(monkeypatch):
    class Scarce(threading.Thread):
        refused = 0

        def start(self):
            # The first would look for blocked loops, the others would do what the environment does.
            if Scarce.refused < 3:
                Scarce.refused += 1
                raise RuntimeError("can't start new thread")
            super().start()

    monkeypatch.setattr(dedicated.threading, "Thread", Scarce)

    class Short(Counter):
        timeout = 5.0

    local = LocalRun(policy=Oracle(lambda request: "50"))
    local.run(EnvironmentRolloutProcessor(lambda task: Short()))
    history = local.history()
    assert (history.status.name, history.reward) == ("COMPLETED", 100.0)
    (failure,) = history.failures
    assert "can't start new thread" in failure.message
    assert [close_failure.message for close_failure in history.close_failures] == [
        "can't start new thread"
    ]


# --- what kills the process, again and again


class Killer(AsyncCounter):
    """Whatever it does in `where` ends with the death of the process."""

    def __init__(self, local: LocalRun, where: str, level: str):
        super().__init__(level)
        self.local, self.where = local, where

    async def _may_kill(self, where: str) -> None:
        if where == self.where:
            worlds.CALLS.append("killed")
            self.local.stop.request("killed")
            await asyncio.Event().wait()

    async def reset(self, *, seed):
        await self._may_kill("reset")
        return await super().reset(seed=seed)

    async def step(self, action):
        await self._may_kill("step")
        return await super().step(action)

    async def add(self, amount: int) -> str:
        """Adds an amount."""
        await self._may_kill("tool")
        return await super().add(amount)


@pytest.mark.parametrize(
    ("where", "level"),
    [
        ("reset", "replay"),
        ("reset", "restart"),
        ("step", "replay"),
        ("step", "snapshot"),
        ("step", "stateless"),
        ("step", "restart"),
        ("tool", "replay"),
        ("tool", "snapshot"),
        ("tool", "restart"),
    ],
)
def test_an_environment_that_kills_the_process_every_time_is_given_up(where, level, calls):
    local = LocalRun(group=NO_REFILL)

    async def solve(t):
        episode = await t.env(Killer(local, where, level))
        await t.tool(call("add", '{"amount": 1}'), *episode.tools)
        await episode.step("1")

    for _ in range(MAX_CRASHES + 5):
        local.run(solve, grace=0, max_retry=0)
    assert local.statuses() == {"a/0": ("FAILED", True)}
    assert local.history().failures[-1].cause == "environment"
    assert calls.count("killed") <= MAX_CRASHES + 2


@pytest.mark.parametrize("level", ["replay", "snapshot"])
@pytest.mark.parametrize("how", ["the endpoint is down", "the user stops it"])
def test_an_environment_is_not_blamed_for_resumes_that_end_while_the_policy_is_asked(how, level):
    is_well = True

    async def answer(request):
        if is_well or request.id == "run/a/0/1":
            return "1"
        if how == "the endpoint is down":
            return EndpointDown("down")
        local.stop.request("enough")
        return await asyncio.Event().wait()

    async def solve(t):
        episode = await t.env(Counter(level))
        for _ in range(2):
            await t.generate()
            await episode.step("1")

    is_well, local = False, LocalRun(policy=Oracle(answer), group=NO_REFILL)
    for _ in range(MAX_CRASHES + 3):
        local.run(solve, grace=0, max_retry=0)
    is_well = True
    local.run(solve, max_retry=0)
    assert (local.history().status.name, local.history().reward) == ("COMPLETED", 2.0)


def test_a_retry_of_what_failed_gives_an_interrupted_call_new_chances():
    local, is_mended = LocalRun(group=NO_REFILL), False

    @holdfast.tool(contract="idempotent")
    async def reach() -> str:
        """Reaches out."""
        if not is_mended:
            local.stop.request("killed")
            await asyncio.Event().wait()
        return "ok"

    async def solve(t):
        return float((await t.tool(call("reach"), reach)).ok)

    for _ in range(MAX_CRASHES + 2):
        local.run(solve, grace=0, max_retry=0)
    assert "the process died, or was stopped" in local.history().failures[-1].message
    is_mended = True
    local.run(solve, max_retry=0)
    assert local.history().status.name == "FAILED"
    local.run(solve, max_retry=0, reopen_failed=True)
    assert (local.history().status.name, local.history().reward) == ("COMPLETED", 1.0)


def test_a_retry_of_what_failed_gives_an_environment_that_came_back_different_new_chances():
    class Fixed(Counter):
        name = "Fickle"

    @holdfast.tool
    def breaks() -> str:
        """Breaks."""
        raise OSError("broken")

    make = Fickle

    async def solve(t):
        episode = await t.env(make())
        await episode.step("1")
        await episode.step("2")
        if make is Fickle:
            await t.tool(call("breaks"), breaks)
        await t.generate()

    local = LocalRun(group=NO_REFILL)
    local.run(solve, max_retry=MAX_REWINDS + 1)
    assert f"came back different {MAX_REWINDS + 1} times" in local.history().failures[-1].message
    make = Fixed
    local.run(solve, max_retry=0, reopen_failed=True)
    assert (local.history().status.name, local.history().reward) == ("COMPLETED", 3.0)


# --- ends of episodes


def test_a_call_that_waited_while_another_branch_ended_the_episode_is_told_no():
    class Ending(AsyncCounter):
        async def add(self, amount: int) -> Observation:
            """Adds an amount."""
            await asyncio.sleep(0.002)
            return Observation(f"moved {amount}", 1.0, done=True)

    async def solve(t):
        episode = await t.env(Ending())
        adding = [lambda c: c.tool(call("add", '{"amount": 1}'), *episode.tools)] * 2
        first, second = await t.branch(*adding)
        await t.generate()
        assert (first.ok, second.ok) == (True, False)

    local = LocalRun()
    local.run(solve, max_retry=0)
    history = local.history()
    assert (history.status.name, history.reward) == ("COMPLETED", 1.0)
    assert [result.content for result in history.results.values()] == ["moved 1", EPISODE_OVER]


def test_finish_judges_what_was_reached_at_a_limit():
    judged = []

    async def finish(t, episodes):
        judged.append(episodes[0].environment.number)
        return 2, 0.75

    adds = '<tool_call>{"name": "add", "arguments": {"amount": 3}}</tool_call>'
    local = LocalRun(policy=Oracle(lambda request: adds), seed=None)
    local.run(
        AgentRolloutProcessor(environments=[lambda task: Counter()], max_turns=2, finish=finish)
    )
    history = local.history()
    assert (history.status.name, history.finished.reason) == ("TRUNCATED", "max_turns")
    assert history.reward == 0.75
    assert len(judged) == 1


def test_a_player_who_is_cut_short_before_the_first_step_earned_nothing():
    local = LocalRun(policy=Oracle(lambda request: "far too many words"))
    local.run(EnvironmentRolloutProcessor(lambda task: Counter(), max_tokens=5))
    history = local.history()
    assert (history.status.name, history.finished.reason) == ("TRUNCATED", "token_budget")
    assert history.reward == 0.0


# --- what is told of it


class Moving(Environment):
    """Its tool answers with an observation."""

    @property
    def tools(self):
        return (self.move,)

    async def reset(self, *, seed):
        return "still"

    async def move(self) -> Observation:
        """Moves."""
        return Observation("moved", 1.0)


@pytest.mark.parametrize("what", [What.TRAJECTORIES, What.ROWS, What.SAMPLES])
def test_a_tools_observation_that_was_added_again_is_exported(what):
    async def solve(t):
        episode = await t.env(Moving())
        t.add("go")
        await t.generate(tools=episode.tools)
        await t.tool(call("move"), *episode.tools)
        t.add(episode.observation)
        await t.generate(tools=episode.tools)

    local = LocalRun()
    local.run(solve, max_retry=0)
    (row,) = local.rows(what)
    if what is not What.SAMPLES:
        messages = [(message["role"], message["content"]) for message in row["messages"]]
        assert messages[2:4] == [("tool", "moved"), ("user", "moved")]


def test_a_trajectory_whose_world_came_back_different_counts_as_disturbed():
    class Marked(Counter):
        made = 0

        def __init__(self):
            super().__init__()
            Marked.made += 1
            self.mark = "!" * (Marked.made > 1)

        def step(self, action):
            seen = super().step(action)
            return Observation(seen.text + self.mark, seen.reward)

    async def solve(t):
        episode = await t.env(Marked())
        await episode.step("1")
        await t.generate()
        if Marked.made == 1:
            local.stop.request("killed")
        await t.generate()

    local = LocalRun()
    local.run(solve)
    local.run(solve)
    report = local.report()
    assert (report.worlds_changed, report.clean.count, report.disturbed.count) == (1, 0, 1)
