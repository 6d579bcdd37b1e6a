"""Steps that are taken by the code of other steps: sub-agents in tools, values of values."""

import asyncio

import pytest

import holdfast
from holdfast.records.errors import ToolBug, ToolSaysNo, Truncated, UsageError
from holdfast.rollout.episodes.environment import Environment, Observation
from support.rollout.kills import check_every_kill, ended
from support.rollout.stage import Oracle, TrajectoryUnderTest, call


def asks(question: str):
    async def ask(s):
        s.add(question)
        first = (await s.generate()).text
        s.add("more")
        return first + (await s.generate()).text

    return ask


def expert_of(t, contract="idempotent"):
    @holdfast.tool(contract=contract)
    async def expert(question: str) -> str:
        known = await t.value(lambda: f"{question}?", name="known")
        answers = await t.branch(asks(known), asks("why"))
        return str(answers) + await t.sub(asks("sum it up"))

    return expert


async def with_an_expert(t):
    expert = expert_of(t)
    t.add("go")
    await t.generate()
    await t.tool(call("expert", '{"question": "a"}', call_id="a"), expert)
    await t.generate()
    calls = [call("expert", f'{{"question": "{name}"}}', call_id=name) for name in "bc"]
    await t.tools(calls, expert)
    return (await t.generate()).text, t.spent.turns, t.spent.tokens


def test_what_a_tool_asks_is_replayed_with_it_and_moves_no_later_step():
    whole = asyncio.run(check_every_kill(with_an_expert))
    assert [path for path in whole.history.steps if "." not in path] == [
        "0",
        "1",
        "2",
        "3",
        "4",
        "5",
    ]
    assert whole.result[1] == 3 + 3 * 6, "what the policy says in a tool is spent, too"


def test_what_a_remembered_function_asks_is_replayed_with_it():
    async def rollout(t):
        t.add(await t.value(lambda: t.sub(asks("first")), name="answer"))
        await t.generate()
        return len(t.messages)

    asyncio.run(check_every_kill(rollout))


class Talker(Environment):
    """Its answers are a model's."""

    def __init__(self, t, recovery: str):
        self.t = t
        self.recovery = recovery
        self.done = 0

    async def reset(self, *, seed: int) -> str:
        self.done = 0
        return await self.t.sub(asks("begin"))

    async def step(self, action: str) -> Observation:
        self.done += 1
        return Observation(await self.t.sub(asks(f"{action} {self.done}")), 1.0)

    def snapshot(self) -> bytes:
        return bytes([self.done])

    def restore(self, state: bytes) -> None:
        self.done = state[0]


@pytest.mark.parametrize("recovery", ["replay", "snapshot"])
def test_an_environment_may_ask_the_policy(recovery):
    async def rollout(t):
        episode = await t.env(Talker(t, recovery))
        t.add(episode.observation)
        for _ in range(2):
            await t.generate()
            t.add(await episode.step("go"))
        await t.generate()
        return episode.total_reward, t.spent.turns

    asyncio.run(asyncio.wait_for(check_every_kill(rollout), 20))


def test_an_environment_that_asks_something_else_when_it_is_brought_back_does_not_hang():
    class Other(Talker):
        async def step(self, action: str) -> Observation:
            return await super().step(f"{action} {self.word}")

    def rollout(word):
        async def go(t):
            world = Other(t, "replay")
            world.word = word
            episode = await t.env(world)
            t.add(await episode.step("go"))
            return (await t.generate()).text

        return go

    async def check():
        before = await ended(rollout("here"))
        return before, await ended(rollout("there"), before.records[:-1])

    before, after = asyncio.run(asyncio.wait_for(check(), 20))
    assert after.result == before.result
    assert after.history.forks, "it asked its expert something else"


def test_an_environment_asks_the_same_under_limits_when_it_is_brought_back():
    async def rollout(t):
        t.limit(tokens=140)
        episode = await t.env(Talker(t, "replay"))
        t.add(episode.observation)
        try:
            while True:
                t.add(await episode.step("go"))
                await t.generate()
        except Truncated as limit:
            return str(limit)

    asyncio.run(asyncio.wait_for(check_every_kill(rollout), 20))


def test_an_environment_has_no_branches_of_a_conversation_that_goes_on():
    class Brancher(Environment):
        def __init__(self, t):
            self.t = t

        async def reset(self, *, seed: int) -> str:
            return str(await self.t.branch(asks("a")))

    async def rollout(t):
        await t.env(Brancher(t))

    with pytest.raises(UsageError, match=r"t.branch in an environment"):
        asyncio.run(TrajectoryUnderTest().perform(rollout))


def test_the_same_limits_are_met_live_and_on_replay():
    async def rollout(t):
        t.limit(tokens=160)
        try:
            return await with_an_expert(t)
        except Truncated as limit:
            return str(limit)

    whole = asyncio.run(check_every_kill(rollout))
    assert "token_budget" in str(whole.result)


def test_a_limit_that_is_met_inside_a_tool_truncates_the_trajectory():
    async def rollout(t):
        t.limit(turns=2)
        t.add("go")
        await t.generate()
        await t.tool(call("expert", '{"question": "a"}'), expert_of(t))

    with pytest.raises(Truncated, match="max_turns"):
        asyncio.run(TrajectoryUnderTest().perform(rollout))


async def test_a_call_that_is_run_again_does_not_ask_again():
    async def rollout(t):
        await t.tool(call("expert", '{"question": "a"}'), expert_of(t))
        return (await t.generate()).text

    whole = await ended(rollout)
    whole, again = whole, await ended(rollout, whole.records[:4])
    assert again.result == whole.result
    assert again.generated == whole.generated - 1


def test_a_refusal_keeps_what_was_asked_before_it():
    async def rollout(t):
        @holdfast.tool(contract="idempotent")
        async def refuse(question: str) -> str:
            raise ToolSaysNo(await t.sub(asks(question)))

        await t.tool(call("refuse", '{"question": "a"}'), refuse)
        return (await t.generate()).text

    asyncio.run(check_every_kill(rollout))


def other(kind: str):
    """Does something else where `branching` has its branches."""

    async def rollout(t):
        t.add("go")
        await t.generate()
        if kind == "generation":
            await t.generate()
        elif kind == "tool":
            expert = expert_of(t)
            await t.tool(expert.call(question="a"), expert)
        else:
            await t.value(lambda: t.sub(asks("new")) if kind == "asking" else 1, name="v")
        return (await t.generate()).text

    return rollout


async def branching(t):
    t.add("go")
    await t.generate()
    await t.branch(asks("a"), asks("b"))
    return (await t.generate()).text


@pytest.mark.parametrize("kind", ["generation", "tool", "asking", "plain"])
async def test_what_was_below_a_place_is_history_when_another_step_is_there(kind):
    wanted = (await ended(other(kind))).history.steps.keys()
    whole = await ended(branching)
    for kept in range(1, len(whole.records) + 1):
        changed = await ended(other(kind), whole.records[:kept])
        assert changed.history.steps.keys() == wanted, kept
        for also in range(kept, len(changed.records) + 1):
            again = await ended(other(kind), changed.records[:also])
            assert again.history.steps.keys() == wanted, (kept, also)


@pytest.mark.parametrize(
    "step",
    [
        lambda t: t.generate(),
        lambda t: t.tool(call("search")),
        lambda t: asyncio.sleep(0, t.add("hello")),
    ],
    ids=["generate", "tool", "add"],
)
def test_a_conversation_is_not_changed_by_code_that_replay_leaves_out(step):
    async def rollout(t):
        async def meddle() -> str:
            await step(t)
            return ""

        t.add("go")
        await t.tool(call("meddle"), meddle)

    subject = TrajectoryUnderTest()
    with pytest.raises(ToolBug, match=r"UsageError: t.*of its own, as in t.sub"):
        asyncio.run(subject.perform(rollout))
    assert not subject.oracle.requests


def test_the_same_is_told_of_a_remembered_function():
    async def rollout(t):
        await t.value(t.generate, name="reply")

    with pytest.raises(UsageError, match=r"t.generate in a tool"):
        asyncio.run(TrajectoryUnderTest().perform(rollout))


def test_a_run_inside_a_tool_counts_its_own_steps():
    async def inner(t):
        t.add("hello")
        await t.generate()
        return await t.value(lambda: 1, name="one")

    async def rollout(t):
        async def other_run() -> str:
            theirs = await ended(inner)
            return str(list(theirs.history.steps))

        return (await t.tool(call("other_run"), other_run)).content

    assert asyncio.run(TrajectoryUnderTest().perform(rollout)) == "['0', '1']"


def test_seeds_of_what_is_asked_in_a_tool_depend_on_its_place_alone():
    def seeds(rollout):
        oracle = Oracle()
        asyncio.run(ended(rollout, oracle=oracle))
        return [request.seed for request in oracle.requests]

    first = seeds(with_an_expert)
    assert first == seeds(with_an_expert)
    assert len(set(first)) == len(first)
