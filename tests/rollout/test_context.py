"""Steps at the same time on one conversation: what is live has to be what is replayed."""

import asyncio

import pytest

import holdfast
from holdfast.records.errors import Diverged, UsageError
from holdfast.records.message import Role, ToolCall
from holdfast.rollout.episodes.environment import Environment, Observation
from holdfast.rollout.replay.run_context import OnDivergence
from support.rollout.kills import check_every_kill, ended
from support.rollout.resumes import perform
from support.rollout.stage import Oracle, TrajectoryUnderTest, call, text_of


@holdfast.tool(contract="idempotent")
async def wait(turns: int) -> str:
    for _ in range(turns):
        await asyncio.sleep(0)
    return f"waited {turns}"


def waits(turns: int) -> ToolCall:
    return call("wait", f'{{"turns": {turns}}}', call_id=f"w{turns}")


async def gathered(t):
    t.add("go")
    await t.generate()
    await asyncio.gather(*(t.tool(waits(turns), wait) for turns in (30, 10, 20)))
    await t.generate()
    return [message.text for message in t.messages if message.role is Role.TOOL]


async def grouped(t):
    t.add("go")
    await t.generate()
    async with asyncio.TaskGroup() as group:
        group.create_task(t.tools([waits(30), waits(5)], wait))
        group.create_task(t.tool(waits(10), wait))
    await t.generate()
    return [message.text for message in t.messages if message.role is Role.TOOL]


@pytest.mark.parametrize("rollout", [gathered, grouped])
def test_results_stand_in_the_order_of_the_calls_whichever_ended_first(rollout):
    whole = asyncio.run(check_every_kill(rollout))
    first = {gathered: ["waited 30", "waited 10", "waited 20"]}
    assert whole.result == first.get(rollout, ["waited 30", "waited 5", "waited 10"])


def test_a_result_that_comes_late_moves_nothing_that_was_asked_already():
    async def rollout(t):
        t.add("go")
        late = asyncio.create_task(t.tool(waits(50), wait))
        await t.tool(waits(1), wait)
        await t.generate()
        await late
        await t.generate()
        return [step.prefix_break for step in t.session.history.generations]

    assert asyncio.run(TrajectoryUnderTest().perform(rollout)) == ["", ""]


@pytest.mark.parametrize("how", ["branch", "sub"])
def test_a_result_in_a_branch_comes_after_all_that_was_said_before_it(how):
    async def rollout(t):
        async def more(s):
            await s.tool(waits(2), wait)
            return [message.text for message in s.messages]

        t.add("go")
        await t.tools([waits(1), waits(3)], wait)
        return await (t.branch(more) if how == "branch" else t.sub(more))

    outcome = asyncio.run(TrajectoryUnderTest().perform(rollout))
    assert outcome == (
        [["go", "waited 1", "waited 3", "waited 2"]] if how == "branch" else ["waited 2"]
    )


def slowly(request):
    async def reply():
        await asyncio.sleep(0.01)
        return "hm"

    return reply()


def test_what_is_added_while_the_model_speaks_is_asked_in_the_next_turn():
    async def rollout(t):
        async def interrupt():
            await asyncio.sleep(0)
            t.add("and this")

        t.add("go")
        await asyncio.gather(t.generate(), interrupt())
        await t.generate()
        return [message.text for message in t.messages]

    subject = TrajectoryUnderTest(Oracle(slowly))
    assert asyncio.run(subject.perform(rollout)) == ["go", "hm", "and this", "hm"]
    assert "and this" in text_of(subject.oracle.requests[1].prompt)
    first, second = asyncio.run(subject.history()).generations
    assert [item.text for item in second.added] == ["and this"]
    assert (second.base, second.prefix_break) == (first.path, "")


class Slow(Oracle):
    async def sample(self, request):
        for _ in range(5):
            await asyncio.sleep(0)
        return await super().sample(request)


def asks(question: str, turns: int = 1):
    async def ask(s):
        s.add(question)
        return [(await s.generate()).text for _ in range(turns)]

    return ask


def beginning(kind: str):
    """Something is begun, and waited for at the end; the conversation goes on meanwhile."""

    async def rollout(t):
        t.add("go")
        begun = {
            "sub": lambda: t.sub(asks("aside", 4)),
            "branch": lambda: t.branch(asks("one", 3), asks("two")),
            "tool": lambda: t.tool(wait.call(turns=9), wait),
            "value": lambda: t.value(lambda: asyncio.sleep(0, 1), name="later"),
        }
        job = asyncio.create_task(begun[kind]())
        await t.generate()
        await t.value(lambda: 1, name="between")
        reply = await t.generate()
        return reply.text, str(await job)

    return rollout


@pytest.mark.parametrize("kind", ["sub", "branch", "tool", "value"])
def test_what_is_begun_in_a_task_has_the_place_on_replay_that_it_had_live(kind):
    asyncio.run(check_every_kill(beginning(kind), oracle=Slow))


async def test_a_step_that_is_cut_while_others_begin_is_not_replayed():
    def rollout(name):
        async def go(t):
            t.add("go")
            seen = asyncio.create_task(t.tool(waits(1), wait))
            await t.value(lambda: 1, name=name)
            return (await seen).content

        return go

    before = await ended(rollout("one"))
    after = await ended(rollout("two"), before.records)
    assert after.result == "waited 1"
    assert [fork.path for fork in after.history.forks] == ["0"]
    assert after.history.steps.keys() == before.history.steps.keys()


async def test_calls_at_once_that_diverge_are_cut_before_any_of_them_runs():
    def rollout(*turns):
        async def go(t):
            t.add("go")
            results = await asyncio.gather(*(t.tool(waits(turn), wait) for turn in turns))
            await t.generate()
            return [result.content for result in results]

        return go

    before = await ended(rollout(1, 2, 3))
    for kept in range(1, len(before.records) + 1):
        after = await ended(rollout(4, 2, 5), before.records[:kept])
        assert after.result == ["waited 4", "waited 2", "waited 5"]
        assert after.history.steps.keys() == before.history.steps.keys()


class Kept(Environment):
    recovery = "snapshot"

    def reset(self, *, seed: int) -> str:
        return "here"

    def step(self, action: str) -> Observation:
        return Observation(f"did {action}", 1.0)

    async def snapshot(self) -> bytes:
        await asyncio.sleep(0.01)
        return b"state"

    def restore(self, state: bytes) -> None: ...


def test_two_generations_at_once_are_refused_while_a_snapshot_is_taken_too():
    async def rollout(t):
        episode = await t.env(Kept())
        t.add(await episode.step("go"))
        await asyncio.gather(t.generate(), t.generate())

    with pytest.raises(UsageError, match="two generations at once"):
        asyncio.run(TrajectoryUnderTest().perform(rollout))


# --- other key spaces where steps were


async def stepping(t):
    t.add("go")
    await t.value(lambda: 1, name="one")
    return (await t.generate()).text


def opening(kind: str):
    async def rollout(t):
        async def ask(s):
            s.add("ask")
            return (await s.generate()).text

        t.add("go")
        if kind == "branch":
            await t.branch(ask, ask)
        elif kind == "sub":
            await t.sub(ask)
        else:
            judge = t.beside()
        reply = await t.generate()
        if kind == "beside":
            judge.add(reply.text)
            await judge.generate()
        return reply.text

    return rollout


@pytest.mark.parametrize("kind", ["branch", "sub", "beside"])
async def test_a_key_space_that_is_opened_where_a_step_was_forks_there_and_loses_nothing(kind):
    wanted = await ended(opening(kind))
    before = await ended(stepping)
    changed = await ended(opening(kind), before.records)
    assert changed.history.steps.keys() == wanted.history.steps.keys()
    (fork,) = changed.history.forks
    assert fork.path == "0"
    assert "recorded value 'one', now" in fork.difference
    for kept in range(len(before.records), len(changed.records) + 1):
        again = await ended(opening(kind), changed.records[:kept])
        assert again.history.steps.keys() == wanted.history.steps.keys(), kept
        assert len(again.history.forks) == 1


async def test_the_same_fails_where_divergence_fails():
    before = await ended(stepping)
    with pytest.raises(Diverged, match="recorded value 'one', now 2 branches"):
        await ended(opening("branch"), before.records, on_divergence=OnDivergence.FAIL)


# --- messages that are recorded elsewhere


def acting(*, first: bool):
    async def rollout(t):
        episode = await t.env(Kept())

        async def act(s):
            if first:
                await s.value(lambda: 1, name="new")
            return await s.act(episode, "go")

        (seen,) = await t.branch(act)
        t.add(seen)
        await t.generate()

    return rollout


def judged(*, first: bool):
    async def rollout(t):
        judge = t.beside()
        if first:
            await t.value(lambda: 1, name="new")
        episode = await t.env(Kept())
        judge.add(await episode.step("go"))
        await judge.generate()

    return rollout


@pytest.mark.parametrize("rollout", [acting, judged])
async def test_what_was_asked_is_told_also_when_what_it_saw_is_recorded_elsewhere_now(rollout):
    before = await ended(rollout(first=False))
    after = await ended(rollout(first=True), before.records)
    assert after.history.forks
    assert [[token.text for token in prompt] for prompt in after.prompts] == [["did go"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"temprature": 1},
            r"^t\.generate has no argument 'temprature'; is 'temperature' meant\?$",
        ),
        ({"xyzzy": 1}, r"^t\.generate has no argument 'xyzzy'; it has chat_template_kwargs, "),
        ({"temperature": "hot"}, "^temperature is a number, not 'hot'$"),
    ],
)
def test_a_mistake_in_an_argument_of_generate_is_one_line(arguments, message):
    async def rollout(t):
        t.add("go")
        await t.generate(**arguments)

    with pytest.raises(UsageError, match=message):
        perform(TrajectoryUnderTest(), rollout)


def test_a_limit_that_there_is_not_is_named():
    async def rollout(t):
        t.limit(turn=3)

    with pytest.raises(UsageError, match=r"^t\.limit has no argument 'turn'; is 'turns' meant"):
        asyncio.run(TrajectoryUnderTest().perform(rollout))
