"""Mistakes of whoever writes a rollout: each is told in one line that names it, and early."""

import asyncio

import pytest

from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.records.errors import UsageError
from holdfast.records.trajectory import Status
from holdfast.rollout.context import Rollout
from holdfast.rollout.processors.agent import AgentRolloutProcessor, EnvironmentRolloutProcessor
from holdfast.rollout.processors.dialogue import DialogueRolloutProcessor
from holdfast.rollout.processors.processor import RolloutConfig, as_processor
from holdfast.rollout.replay.budget import Limits
from holdfast.rollout.replay.speaker import Speaker
from support.engine.local_run import LocalRun
from support.rollout.stage import Oracle, TrajectoryUnderTest, call
from support.rollout.worlds import Counter


def search(query: str) -> str:
    """Searches."""
    return f"found {query}"


def untyped(query):
    return query


def another(query: str) -> str:
    return query


another.__name__ = "search"


class Plain:
    def reset(self, *, seed): ...


def refused(rollout, match: str) -> None:
    with pytest.raises(UsageError, match=match) as result:
        asyncio.run(TrajectoryUnderTest(Oracle(lambda request: "hi")).perform(rollout))
    assert "\n" not in str(result.value)


# --- refused when a processor is made


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        (lambda: AgentRolloutProcessor([untyped]), "untyped.*query"),
        (lambda: AgentRolloutProcessor(["search"]), "'search' is not a tool"),
        (lambda: AgentRolloutProcessor("search"), "tools wants a list .*, not 'search'"),
        (lambda: AgentRolloutProcessor(search), "tools wants a list"),
        (lambda: AgentRolloutProcessor([search, another]), "two tools are called 'search'"),
        (lambda: AgentRolloutProcessor(environments=[Counter()]), "lambda task: Counter"),
        (lambda: AgentRolloutProcessor(environments=Counter), "environments wants a list"),
        (lambda: AgentRolloutProcessor(max_turns=1.5), "max_turns must be a whole number, not 1.5"),
        (lambda: AgentRolloutProcessor(max_seconds="3"), "max_seconds must be a number, not '3'"),
        (lambda: EnvironmentRolloutProcessor(Counter()), "not an instance: lambda task: Counter"),
        (lambda: EnvironmentRolloutProcessor("Counter"), "lambda task: …, not 'Counter'"),
        (lambda: EnvironmentRolloutProcessor(lambda: Counter()), "does not take one argument"),
        (lambda: DialogueRolloutProcessor("You are a customer"), "makes the user's prompt"),
        (lambda: DialogueRolloutProcessor(str, stop=""), "words with which the user ends"),
        (lambda: DialogueRolloutProcessor(str, tools=["search"]), "'search' is not a tool"),
        (lambda: DialogueRolloutProcessor(str, max_tokens=True), "whole number, not True"),
    ],
)
def test_what_a_processor_cannot_work_with_is_refused_when_it_is_made(make, arguments):
    with pytest.raises(UsageError, match=arguments):
        make()


def test_what_a_processor_can_work_with_is_taken():
    class OfTask(Counter):
        def __init__(self, task):
            super().__init__()

    AgentRolloutProcessor((search,), environments=[lambda task: Counter()], max_seconds=1)
    EnvironmentRolloutProcessor(OfTask)
    DialogueRolloutProcessor(str, tools=[search], stop="bye")


@pytest.mark.parametrize(
    ("limits", "arguments"),
    [
        ({"turns": 1.5}, "turns has to be a whole number, not 1.5"),
        ({"turns": True}, "turns has to be a whole number"),
        ({"tokens": "9"}, "tokens has to be a whole number, not '9'"),
        ({"seconds": "3"}, "seconds has to be a number, not '3'"),
        ({"turns": 0}, "turns must be more than 0"),
    ],
)
def test_a_limit_is_a_number_and_turns_are_whole(limits, arguments):
    async def solve(t):
        t.limit(**limits)

    refused(solve, arguments)
    assert Limits(turns=1, tokens=2, seconds=0.5).seconds == 0.5


# --- environments


def test_a_class_in_place_of_an_environment_is_refused_and_stays_usable():
    def opening(environment):
        async def solve(t):
            return (await t.env(environment)).observation.text

        return asyncio.run(TrajectoryUnderTest().perform(solve))

    with pytest.raises(UsageError, match=r"^t.env wants an instance: Counter\(\)$"):
        opening(Counter)
    assert opening(Counter()).startswith("at ")


@pytest.mark.parametrize(
    ("environment", "arguments"),
    [
        (Plain(), "Plain object .* is not a holdfast.Environment: make it a subclass"),
        (None, "None is not a holdfast.Environment"),
        (type("My", (Counter,), {"tools": lambda self: ()})(), "My.tools is a method: .*@property"),
        (type("My", (Counter,), {"tools": search})(), "My.tools is a method"),
        (type("My", (Counter,), {"tools": "search"})(), "My.tools wants a list"),
        (type("My", (Counter,), {"identity": {"a": 1}})(), "My.identity has to be a string"),
        (type("My", (Counter,), {"identity": lambda self: "a"})(), "a property, not a method"),
        (type("My", (Counter,), {"timeout": "5"})(), "My.timeout has to be a number .*, not '5'"),
        (type("My", (Counter,), {"timeout": 0})(), "My.timeout has to be a number .* above 0"),
        (type("My", (Counter,), {"timeout": None})(), "My.timeout has to be a number"),
    ],
)
def test_an_environment_that_cannot_be_opened_is_refused_in_words(environment, arguments):
    async def solve(t):
        await t.env(environment)

    refused(solve, arguments)


def test_a_seed_is_a_number():
    async def solve(t):
        await t.env(Counter(), seed="x")

    refused(solve, "a seed is a whole number, not 'x'")


def test_a_reply_in_place_of_an_action_is_told_to_be_its_text():
    async def solve(t):
        episode = await t.env(Counter())
        t.add(episode.observation)
        await episode.step(await t.generate())

    refused(solve, r"^an action is text: reply\.text$")


# --- the conversation


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        (lambda t: t.task.messages, r"not a tuple of \d+; did you mean \*messages\?"),
        (lambda t: ["x"], r"not a list of 1; did you mean \*messages\?"),
        (lambda t: {"role": "user"}, "t.add: the message has no 'content'"),
        (lambda t: {"content": "x"}, "t.add: the message has no 'role'"),
        (lambda t: {"role": "user", "content": 3}, "t.add: the message: content is of type int"),
        (lambda t: 3, "t.add takes messages, dicts and strings, not int 3"),
        (lambda t: (t.task.id,), "t.add takes messages, dicts and strings, not a tuple of 1; did"),
        (lambda t: None, "not None"),
    ],
)
def test_what_is_no_message_is_refused_when_it_is_added(message, arguments):
    async def solve(t):
        t.add(message(t))

    refused(solve, arguments)


def test_a_conversation_of_a_chat_model_begins_with_a_message():
    class Templated:
        """Renders as bytes do, and is not them."""

        def __getattr__(self, name):
            return getattr(ByteRenderer(), name)

    def solve(*messages):
        async def rollout(t):
            t.session.speaker = Speaker(t.speaker.policy, Templated())
            t.add(*messages)
            return (await t.generate()).text

        return asyncio.run(TrajectoryUnderTest(Oracle(lambda request: "hi")).perform(rollout))

    with pytest.raises(UsageError, match="add a message first"):
        solve()
    assert solve("go") == "hi"


async def _generate_wrongly(t):
    await t.generate(max_token=5)


async def _generate_too_many(t):
    await t.generate(max_tokens=-1)


async def _add_nonsense(t):
    t.add(7)


async def _limit_nothing(t):
    t.limit(turns=-1)


async def _use_no_tool(t):
    await t.tool("search", search)


async def _open_nothing(t):
    await t.env(None)


@pytest.mark.parametrize(
    "mistake",
    [
        _generate_wrongly,
        _generate_too_many,
        _add_nonsense,
        _limit_nothing,
        _use_no_tool,
        _open_nothing,
    ],
)
def test_a_mistake_that_the_rollout_swallows_is_no_outcome(mistake):
    async def rollout(t):
        t.add("go")
        try:
            await mistake(t)
        except Exception:
            return 0.0
        return 1.0

    local = LocalRun("a", "b")
    local.run(rollout)
    history = local.history()
    assert (history.status, history.reward) == (Status.FAILED, None)
    (failure,) = history.failures
    assert (failure.cause, failure.retryable) == ("code", False)
    assert f"in {mistake.__name__}" in failure.traceback


# --- tool calls


@pytest.mark.parametrize("item", [True, False])
def test_a_tool_that_was_shown_and_is_not_there_is_the_rollouts_mistake(item):
    async def solve(t):
        t.add("go")
        await t.generate(tools=[search])
        answer = call("search", '{"query": "x"}')
        await (t.tool(answer) if item else t.tools([answer], untyped_free))

    def untyped_free() -> str:
        """Nothing."""
        return ""

    refused(solve, r"shown the tool 'search', but t.tool was not given it: t.tool\(call, search\)")


def test_a_tool_that_was_shown_in_the_turn_before_a_branch_has_to_be_there_too():
    async def solve(t):
        t.add("go")
        await t.generate(tools=[search])
        await t.branch(lambda s: s.tool(call("search", '{"query": "x"}')))

    refused(solve, "shown the tool 'search'")


def test_a_tool_that_nobody_showed_is_the_policys_mistake():
    async def solve(t):
        t.add("go")
        await t.generate(tools=[search])
        return await t.tool(call("fly"), search)

    reply = asyncio.run(TrajectoryUnderTest().perform(solve))
    assert (reply.error, reply.content) == (
        "UnknownTool",
        "there is no tool 'fly'; the tools are: search",
    )


@pytest.mark.parametrize(
    ("step", "arguments"),
    [
        (lambda t: t.tools([call("search")], [search]), r"is not a tool: .*did you mean \*tools\?"),
        (lambda t: t.tool((call("search"),), search), r"reply.tool_calls, .*did you mean t.tools"),
        (lambda t: t.tool("search", search), "reply.tool_calls, not str 'search'"),
        (lambda t: t.generate(tools=search), "tools wants a list"),
        (lambda t: t.generate(tools=["search"]), "'search' is not a tool"),
    ],
)
def test_calls_and_tools_of_another_shape_are_refused_in_words(step, arguments):
    async def solve(t):
        t.add("go")
        await step(t)

    refused(solve, arguments)


# --- a forgotten await


def performed(rollout) -> object:
    """What a processor's row comes to, as the engine runs it."""

    async def row():
        subject = TrajectoryUnderTest(Oracle(lambda request: "hi"))
        session = await subject.session()
        config = RolloutConfig(
            "oracle", session.context.spec.sampling, lambda task: Rollout(session)
        )
        (job,) = as_processor(rollout)([subject.task], config)
        try:
            return await job
        finally:
            await session.episodes.close()

    return asyncio.run(row())


@pytest.mark.parametrize(
    ("forgotten", "name"),
    [
        (lambda t, e: t.generate(), "t.generate"),
        (lambda t, e: t.tool(call("search"), search), "t.tool"),
        (lambda t, e: t.tools([call("search")], search), "t.tools"),
        (lambda t, e: t.env(Counter()), "t.env"),
        (lambda t, e: t.value(lambda: 1), "t.value"),
        (lambda t, e: t.branch(), "t.branch"),
        (lambda t, e: t.sub(lambda s: s.generate()), "t.sub"),
        (lambda t, e: t.beside().generate(), "t.generate"),
        (lambda t, e: e.step("1"), "episode.step"),
    ],
)
def test_a_step_that_nobody_awaits_fails_the_rollout(forgotten, name):
    async def solve(t):
        t.add("go")
        episode = await t.env(Counter())
        forgotten(t, episode)
        await t.generate()
        return 1.0

    with pytest.raises(UsageError, match=rf"^{name}\(\) was called and never awaited"):
        performed(solve)


def test_a_forgotten_await_is_noted_beside_the_error_that_it_led_to():
    async def solve(t):
        t.add("go")
        return t.generate().text

    with pytest.raises(AttributeError) as result:
        performed(solve)
    assert result.value.__notes__ == [
        "t.generate() was called and never awaited: await t.generate(…)"
    ]


def test_steps_that_are_awaited_later_or_by_other_tasks_are_not_missed():
    async def solve(t):
        t.add("go")
        first = t.value(lambda: 1, name="first")
        second = await t.value(lambda: 2, name="second")
        many = await asyncio.gather(*(t.value(lambda: 3, name="many") for _ in range(5)))
        task = asyncio.create_task(t.value(lambda: 4, name="in a task"))
        return float(await first + second + sum(many) + await task)

    assert performed(solve) == 22.0


def test_a_step_given_to_a_task_that_has_not_begun_is_left_to_it():
    begun = []

    async def solve(t):
        begun.append(asyncio.create_task(t.value(lambda: begun.append("ran"), name="late")))
        return 1.0

    assert performed(solve) == 1.0
    assert "ran" in begun


def test_a_step_is_still_called_what_it_is():
    assert Rollout.generate.__name__ == "generate"
    assert "Samples the assistant's next message" in Rollout.generate.__doc__


@pytest.mark.parametrize(
    "schema",
    [{"nme": "search"}, {"function": {"description": "Searches."}}, {"function": {"name": ""}}, {}],
)
def test_a_schema_without_a_name_is_refused(schema):
    async def rollout(t):
        t.add("hi")
        await t.generate(tools=[search, schema])

    refused(rollout, r"^t.generate: tools\[1\] names no function; it wants")


def test_a_schema_that_is_no_json_is_refused():
    async def rollout(t):
        t.add("hi")
        await t.generate(tools=[{"name": "search", "parameters": {"x": {1, 2}.__iter__()}}])

    refused(rollout, "the tools' schemas are not JSON")


def test_an_empty_conversation_is_refused_by_every_renderer_that_is_chosen_for_a_model():
    async def rollout(t):
        await t.generate(speaker=Speaker(t.speaker.policy, ByteRenderer()))

    refused(rollout, r"the conversation is empty: add a message first, as in t.add")


def test_parts_of_a_type_that_nothing_knows_are_refused():
    async def solve(t):
        t.add({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "txt"}]})

    refused(solve, r"content\[1\] is of the type 'txt'; the types of parts are text, image_url")
