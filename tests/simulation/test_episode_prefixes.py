"""Every prefix of a trajectory's log as the crash point, in memory.

A rollout is performed once without a disturbance. Then, for each of its records, only those up to
it became durable: whoever goes on from there comes to the same result and the same steps, and
where nothing has to start anew, without a fork.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

import holdfast
from holdfast.records.errors import Rewound
from holdfast.records.history import History
from holdfast.records.step import EnvironmentStepped, Generated, Record, ToolIntent, ToolResult
from holdfast.rollout.episodes.environment import Environment, Observation
from support.rollout import worlds
from support.rollout.resumes import history, records_of, resumed
from support.rollout.stage import Oracle, TrajectoryUnderTest, call
from support.rollout.worlds import AsyncCounter, Counter

LEVELS = ("snapshot", "replay", "stateless", "restart")
MAX_REWINDS = 6

Shape = Callable[..., Awaitable[object]]


@holdfast.tool(contract="idempotent")
async def look(x: int) -> str:
    """Looks."""
    await asyncio.sleep(0)
    return f"looked {x}"


class Echo(Counter):
    """Has no state: says what it was told."""

    def step(self, action: str) -> Observation:
        return Observation(f"at {action}", float(action))

    @property
    def tools(self):
        return (holdfast.Tool(self.add, contract="idempotent"),)

    def add(self, amount: int) -> str:
        """Adds an amount."""
        return f"now {amount}"


class AsyncEcho(Echo):
    async def reset(self, *, seed: int) -> Observation:
        return super().reset(seed=seed)

    async def step(self, action: str) -> Observation:
        return super().step(action)


# --- the shapes of rollouts


async def in_turn(t, make):
    episode, seen = await t.env(make()), []
    for action in "123":
        t.add(episode.observation)
        await t.generate()
        seen.append((await episode.step(action)).text)
    return seen


async def calls_side_by_side(t, make):
    episode, seen = await t.env(make()), []
    t.add("go")
    for turn in range(2):
        await t.generate()
        request = [
            call("look", f'{{"x": {turn}}}', call_id="a"),
            call("add", '{"amount": 5}', call_id="b"),
            call("add", '{"amount": "z"}', call_id="c"),
            call("add", '{"amount": 7}', call_id="d"),
            call("nothing", call_id="e"),
            call("add", '{"amount": -1}', call_id="f"),
        ]
        replies = await t.tools(request, *episode.tools, look)
        seen += [reply.content for reply in replies]
    return seen, (await episode.step("4")).text


async def three_worlds(t, make):
    episode, other, seen = await t.env(make()), await t.env(Counter("snapshot")), []
    t.add("go")
    for action in "12":
        await t.generate()
        seen += [(await episode.step(action)).text, (await other.step(f"3{action}")).text]
    late = await t.env(AsyncCounter("replay"))
    seen.append((await late.step("9")).text)
    await t.generate()
    return [*seen, (await episode.step("7")).text, (await other.step("5")).text]


async def a_world_for_each_branch(t, make):
    t.add("go")

    async def alone(c):
        episode, seen = await c.env(make()), []
        for action in "12":
            await c.generate()
            seen.append((await episode.step(action)).text)
        return seen

    result = await t.branch(alone, alone, alone)
    await t.generate()
    return result


async def a_shared_world(t, make):
    """Who is next is settled by what was done, not by the clock: so is every answer."""
    episode, turns = await t.env(make()), [asyncio.Event() for _ in range(4)]
    t.add("go")

    async def taking_turns(c, mine):
        seen = []
        for turn in mine:
            if turn:
                await turns[turn - 1].wait()
            seen.append((await c.act(episode, str(10**turn))).text)
            turns[turn].set()
            await c.generate()
        return seen

    result = await t.branch(lambda c: taking_turns(c, (0, 2)), lambda c: taking_turns(c, (1, 3)))
    await t.generate()
    return result, (await episode.step("5")).text


async def one_after_the_other(t, make):
    t.add("go")
    seen = []
    for turn in "012":
        episode = await t.env(make())
        for _ in range(2):
            await t.generate()
            seen.append((await episode.step(turn)).text)
        await episode.close()
    return seen


async def opened_in_a_sub_rollout(t, make):
    async def opened(c):
        c.add("sub")
        episode = await c.env(make())
        await c.generate()
        await c.act(episode, "1")
        return episode

    episode = await t.sub(opened)
    t.add("go")
    await t.generate()
    return (await t.act(episode, "2")).text


SHAPES = (
    in_turn,
    calls_side_by_side,
    three_worlds,
    a_world_for_each_branch,
    a_shared_world,
    one_after_the_other,
    opened_in_a_sub_rollout,
)


# --- crash, go on, compare


def finished(subject: TrajectoryUnderTest, rollout):
    """As the engine does it: begins again as long as a world came back different."""
    for _ in range(MAX_REWINDS):
        try:
            return asyncio.run(subject.perform(rollout))
        except Rewound:
            continue
    raise AssertionError("it begins again and again")


def crash_points(whole: Sequence[Record]) -> list[int]:
    """How many records can be durable: a call that is refused is written with its result."""
    refused = [
        at
        for at, record in enumerate(whole)
        if isinstance(record, ToolResult) and record.error == "UnknownTool"
    ]
    assert all(whole[at - 1].path == whole[at].path for at in refused)
    return [kept for kept in range(len(whole) + 1) if kept not in refused]


def steps_of(result: History) -> list[tuple[object, ...]]:
    return [(step.path, _content(result, step)) for step in result.in_order]


def _content(result: History, step: object) -> object:
    match step:
        case EnvironmentStepped():
            return step.action, step.observation, step.reward, step.done
        case Generated():
            return step.message.text
        case ToolIntent():
            return step.name, result.results[step.path].content
    raise AssertionError(f"{step!r} is none that these rollouts take")


def maker(level: str, is_async: bool) -> Callable[[], Environment]:
    if level == "stateless":
        return lambda: (AsyncEcho if is_async else Echo)(level)
    return lambda: (AsyncCounter if is_async else Counter)(level, goal=10**9)


@pytest.mark.parametrize("is_async", [False, True], ids=["blocking", "async"])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_a_rollout_that_was_killed_after_any_record_ends_as_one_that_was_not(
    shape, level, is_async
):
    def rollout(t):
        return shape(t, maker(level, is_async))

    worlds.CALLS.clear()
    undisturbed = TrajectoryUnderTest(Oracle(lambda request: f"re {request.id}"))
    expected = finished(undisturbed, rollout)
    whole, steps = records_of(undisturbed), steps_of(history(undisturbed))
    for kept in crash_points(whole):
        subject = resumed(undisturbed, whole[:kept])
        where = f"killed after record {kept} of {len(whole)}: {whole[kept - 1] if kept else None}"
        assert finished(subject, rollout) == expected, where
        stored = history(subject)
        assert steps_of(stored) == steps, where
        assert level == "restart" or not stored.forks, where
