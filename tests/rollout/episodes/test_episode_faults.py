"""Episodes under attack: cut-off calls, races on the way back, and what cannot be done."""

import asyncio
import threading
import time

import pytest

import holdfast
from holdfast.records.errors import EnvironmentBroken, RunStopped, ToolSaysNo
from holdfast.records.step import ToolIntent
from support.rollout import worlds
from support.rollout.resumes import history, killed_after, perform, records_of, resumed
from support.rollout.stage import TrajectoryUnderTest, call
from support.rollout.worlds import AsyncCounter, Counter


@pytest.fixture(autouse=True)
def calls():
    worlds.CALLS.clear()
    return worlds.CALLS


def stopped(subject: TrajectoryUnderTest, rollout, *, after: int) -> None:
    with pytest.raises(RunStopped):
        perform(subject, rollout, stopping=killed_after(after))
    worlds.CALLS.clear()


# --- what is over stays over


@pytest.mark.parametrize("make", [Counter, AsyncCounter])
@pytest.mark.parametrize("level", ["replay", "restart"])
def test_a_closed_episode_is_not_opened_again_after_a_resume(level, make, calls):
    async def rollout(t):
        episode = await t.env(make(level))
        await episode.step("1")
        await episode.close()
        await t.generate()
        await t.generate()
        return episode.total_reward

    subject = TrajectoryUnderTest()
    stopped(subject, rollout, after=3)
    assert perform(subject, rollout) == 1.0
    assert calls == []
    assert not history(subject).forks


# --- one way back at a time


class Slow(AsyncCounter):
    """Lets others run while it is reset or steps."""

    async def reset(self, *, seed):
        await asyncio.sleep(0.002)
        return await super().reset(seed=seed)

    async def step(self, action):
        await asyncio.sleep(0.002)
        return await super().step(action)


@holdfast.tool(contract="idempotent")
async def look() -> str:
    """Looks."""
    return "ok"


@pytest.mark.parametrize("make", [Slow, Counter])
@pytest.mark.parametrize("first", ["add", "look"])
def test_calls_side_by_side_bring_an_environment_back_once(first, make, calls):
    request = [call("add", '{"amount": 5}', call_id="a"), call("look", call_id="b")]
    if first == "look":
        request.reverse()

    async def rollout(t):
        episode = await t.env(make())
        await episode.step("1")
        await episode.step("2")
        replies = await t.tools(request, *episode.tools, look)
        return sorted(reply.content for reply in replies), episode.environment.number

    subject = TrajectoryUnderTest()
    undisturbed = perform(subject, rollout)
    whole = records_of(subject)
    before = [item for item in whole if not isinstance(item, ToolIntent) and item in whole[:4]]
    (begun,) = [item for item in whole if isinstance(item, ToolIntent) and item.name == "add"]
    again = resumed(subject, [*before, begun])
    calls.clear()
    assert perform(again, rollout) == undisturbed
    assert calls == ["reset", "step 1", "step 2", "add 5", "close"]
    assert not history(again).forks


# --- what was cut off


class Stalling(AsyncCounter):
    """Its step changes the world, and never answers."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.entered = asyncio.Event()

    async def step(self, action):
        Counter.step(self, action)
        self.entered.set()
        await asyncio.Event().wait()


async def cut_off(t, environment: Stalling):
    """An episode with one action, and a step that its own branch gave up."""
    episode = await t.env(environment)
    await t.tool(call("add", '{"amount": 1}'), *episode.tools)

    async def give_up(c):
        await environment.entered.wait()
        raise ToolSaysNo("enough")

    with pytest.raises(ToolSaysNo):
        await t.branch(give_up, lambda c: c.act(episode, "5"))
    return episode


@pytest.mark.parametrize("level", ["replay", "snapshot", "restart"])
def test_nothing_more_is_done_in_a_world_after_a_step_was_cut_off(level):
    async def rollout(t):
        episode = await cut_off(t, Stalling(level))
        await t.tool(call("add", '{"amount": 1}'), *episode.tools)

    with pytest.raises(EnvironmentBroken, match="was cut off half-way: its state is unknown"):
        perform(TrajectoryUnderTest(), rollout)


def test_a_world_without_state_goes_on_after_a_step_was_cut_off():
    async def rollout(t):
        episode = await cut_off(t, Stalling("stateless"))
        return (await t.tool(call("add", '{"amount": 1}'), *episode.tools)).ok

    assert perform(TrajectoryUnderTest(), rollout)


def test_no_snapshot_is_taken_of_a_world_after_a_step_was_cut_off(calls):
    async def rollout(t):
        await cut_off(t, Stalling("snapshot"))
        await t.generate()

    perform(TrajectoryUnderTest(), rollout)
    assert "snapshot" not in calls


class Gated(Counter):
    """Its step blocks its thread until the gate is opened."""

    def __init__(self):
        super().__init__()
        self.gate, self.entered = threading.Event(), threading.Event()

    def step(self, action):
        self.entered.set()
        assert self.gate.wait(120)
        return super().step(action)


def test_an_environment_is_closed_after_a_blocking_step_that_was_given_up(calls):
    async def rollout(t):
        environment = Gated()
        episode = await t.env(environment)

        async def give_up(c):
            while not environment.entered.is_set():
                await asyncio.sleep(0.001)
            asyncio.get_running_loop().call_later(0.02, environment.gate.set)
            raise ToolSaysNo("enough")

        with pytest.raises(ToolSaysNo):
            await t.branch(give_up, lambda c: c.act(episode, "5"))

    perform(TrajectoryUnderTest(), rollout)
    assert calls == ["reset", "step 5", "close"]


def test_an_environment_is_closed_when_a_step_comes_back_after_its_deadline(calls):
    environment = Gated()

    async def rollout(t):
        episode = await t.env(environment)
        environment.timeout = 0.05  # Not of its reset, which is done.
        await episode.step("1")

    with pytest.raises(EnvironmentBroken, match=r"Gated.step was not done within 0.05 s"):
        perform(TrajectoryUnderTest(), rollout)
    assert calls == ["reset"]
    environment.gate.set()
    eventually(lambda: calls == ["reset", "step 1", "close"])


def eventually(holds) -> None:
    for _ in range(12_000):
        if holds():
            return
        time.sleep(0.005)
    raise AssertionError("it did not come to that")


# --- calls and actions that cannot be done


class Terse(Counter):
    @property
    def tools(self):
        return (holdfast.Tool(self.add, max_result=20),)


def test_a_refused_call_is_no_part_of_the_world(calls):
    async def rollout(t):
        episode = await t.env(Terse())
        t.add("go")
        reply = await t.tool(call("add", '{"amount": "very many"}'), *episode.tools)
        assert not reply.ok
        await episode.step("3")
        await t.generate()
        await t.generate()

    subject = TrajectoryUnderTest()
    stopped(subject, rollout, after=4)
    perform(subject, rollout)
    assert calls == ["reset", "step 3", "close"]
    assert not history(subject).forks


def test_half_a_surrogate_pair_in_an_action_is_recorded_and_replayed(calls):
    async def rollout(t):
        episode = await t.env(Counter())
        seen = await episode.step("\ud800")
        await t.tool(call("add", r'{"amount": "\ud800"}'), *episode.tools)
        await t.generate()
        await t.generate()
        return seen.text

    subject = TrajectoryUnderTest()
    stopped(subject, rollout, after=4)
    assert perform(subject, rollout) == "say a number"
    assert not history(subject).forks
    assert calls == ["reset", "step \\ud800", "close"]


@pytest.mark.parametrize("where", ["prepare", "tools"])
def test_no_thread_is_left_of_an_environment_that_cannot_be_opened(where):
    class Unready(Counter):
        name = f"Unready {where}"

        def prepare(self):
            if where == "prepare":
                raise ValueError("no")

        @property
        def tools(self):
            raise ValueError("no")

    with pytest.raises((EnvironmentBroken, ValueError), match="no"):
        perform(TrajectoryUnderTest(), lambda t: t.env(Unready()))
    eventually(
        lambda: not any(f"Unready {where}" in thread.name for thread in threading.enumerate())
    )
