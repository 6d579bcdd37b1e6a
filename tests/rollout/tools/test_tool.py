"""Tools: what the model may do to the world, and what is known about it afterwards."""

import asyncio
import sys
import threading
import time
import traceback

import pytest

from holdfast.records.errors import EnvironmentBroken, ThreadsHang, ToolBug, ToolSaysNo, UsageError
from holdfast.records.step import Contract, ToolIntent, ToolResult
from holdfast.rollout.threads import pool as threads
from holdfast.rollout.tool_step import INTERRUPTED
from holdfast.rollout.tools.tool import Tool, as_tool, tool
from support.hostile_errors import NoAttributes
from support.paths import TESTS
from support.rollout.stage import TrajectoryUnderTest, call


def use(
    subject: TrajectoryUnderTest, item, arguments: str = "{}", *, name: str | None = None, **options
):
    wanted = call(name or as_tool(item).name, arguments)
    return asyncio.run(subject.perform(lambda t: t.tool(wanted, item), **options))


def add(a: int, b: int = 2) -> int:
    """Adds."""
    return a + b


async def add_async(a: int, b: int = 2) -> int:
    return a + b


class Adder:
    async def __call__(self, a: int, b: int = 2) -> int:
        return a + b


@pytest.mark.parametrize("item", [add, add_async, Tool(Adder(), name="adder"), tool(add)])
def test_functions_of_every_kind_are_tools(item):
    reply = use(TrajectoryUnderTest(), item, '{"a": 40}')
    assert (reply.content, reply.error, reply.ok) == ("42", "", True)


def test_the_schema_is_what_the_function_says():
    shown = tool(add).schema["function"]
    assert (shown["name"], shown["description"]) == ("add", "Adds.")
    assert shown["parameters"]["required"] == ["a"]
    assert shown["parameters"]["properties"]["b"] == {"type": "integer", "default": 2}


def variadic(*arguments: str) -> str: ...


def positional(word: str, /) -> str: ...


@pytest.mark.parametrize("function", [variadic, positional])
def test_parameters_that_a_model_cannot_give_are_refused(function):
    with pytest.raises(UsageError, match="cannot be"):
        Tool(function)


def test_a_synchronous_tool_does_not_block_the_loop():
    here = threading.Event()

    def waits() -> str:
        return "released" if here.wait(60) else "the loop was blocked"

    async def rollout(t):
        asyncio.get_running_loop().call_later(0.01, here.set)
        return await t.tool(call("waits"), waits)

    assert asyncio.run(TrajectoryUnderTest().perform(rollout)).content == "released"


@pytest.mark.parametrize(
    ("name", "arguments", "error", "message"),
    [
        ("divide", "{}", "UnknownTool", "the tools are: add"),
        ("add", "{a: 1}", "InvalidArguments", "malformed"),
        ("add", '{"a": "one"}', "InvalidArguments", "Expected `int`, got `str`"),
        ("add", "{}", "InvalidArguments", "missing required field `a`"),
        ("add", '{"a": 1, "c": 2}', "InvalidArguments", "unknown field `c`"),
        ("add", '{"a": "\\ud800"}', "InvalidArguments", "invalid arguments for add"),
        ("add", "[]", "InvalidArguments", "Expected `object`"),
    ],
)
def test_the_model_is_told_what_was_wrong_with_its_call(name, arguments, error, message):
    subject = TrajectoryUnderTest()
    reply = use(subject, add, arguments, name=name)
    assert (reply.error, reply.ok) == (error, False)
    assert message in reply.content
    assert use(subject, add, arguments, name=name) == reply


def test_a_tool_that_says_no_tells_the_model_and_the_rollout_goes_on():
    def refuse() -> str:
        raise ToolSaysNo("not today \ud800")

    async def rollout(t):
        await t.tool(call("refuse"), refuse)
        return t.messages

    (message,) = asyncio.run(TrajectoryUnderTest().perform(rollout))
    assert message.text == "not today \\ud800"
    assert message.tool_call_id == "call_1"


def raising(error: BaseException, *, is_async: bool):
    def in_thread() -> str:
        raise error

    async def on_loop() -> str:
        raise error

    return on_loop if is_async else in_thread


class Unreadable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


ACCIDENTS = [
    NoAttributes(),
    KeyError("the tool's own"),
    TimeoutError("the tool's own"),
    SystemExit(3),
    KeyboardInterrupt(),
    asyncio.CancelledError(),
    BaseExceptionGroup("many", [KeyboardInterrupt()]),
    ExceptionGroup("many", [KeyError("the tool's own")]),
    StopIteration(),
    Unreadable(),
]


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "thread"])
@pytest.mark.parametrize("error", ACCIDENTS, ids=lambda error: type(error).__name__)
def test_a_tool_that_breaks_is_an_accident_with_its_own_traceback(error, is_async):
    broken = (EnvironmentBroken, ToolBug)
    with pytest.raises(broken, match=r"tool (on_loop|in_thread) broke") as caught:
        use(TrajectoryUnderTest(), raising(error, is_async=is_async))
    shown = "".join(traceback.format_exception(caught.value))
    assert f"in {'on_loop' if is_async else 'in_thread'}" in shown
    assert "did not end within" not in str(caught.value)


def test_a_swallowed_accident_is_raised_again_by_the_next_step():
    async def rollout(t):
        with pytest.raises(EnvironmentBroken):
            await t.tool(call("on_loop"), raising(OSError("x"), is_async=True))
        await t.value(lambda: 1)

    with pytest.raises(EnvironmentBroken, match="OSError"):
        asyncio.run(TrajectoryUnderTest().perform(rollout))


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "thread"])
def test_a_tool_that_hangs_is_ended_by_its_deadline(is_async):
    release = threading.Event()

    async def sleeps() -> None:
        await asyncio.sleep(60)

    def blocks() -> None:
        release.wait(60)

    try:
        with pytest.raises(EnvironmentBroken, match=r"did not end within 0.02 s"):
            use(TrajectoryUnderTest(), Tool(sleeps if is_async else blocks, timeout=0.02))
    finally:
        release.set()


async def given_up(pool: threads.DaemonThreads, release: threading.Event) -> None:
    """A call that nobody waits for any more, while it hangs in its thread."""
    begun = threading.Event()

    def hang() -> None:
        begun.set()
        release.wait(600)

    hanging = asyncio.create_task(pool.run(hang))
    while not begun.is_set():
        await asyncio.sleep(0.005)
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging


def test_abandoned_threads_are_bounded_and_forgotten_when_they_end(monkeypatch):
    monkeypatch.setattr(threads, "MAX_ABANDONED", 2)
    pool, release = threads.DaemonThreads("sleepers"), threading.Event()

    async def main():
        await given_up(pool, release)
        await given_up(pool, release)
        with pytest.raises(ThreadsHang, match="2 sleepers still hang"):
            await pool.run(lambda: 1)
        release.set()
        while True:  # Bounded by the suite's timeout.
            try:
                return await pool.run(lambda: "works again")
            except ThreadsHang:
                await asyncio.sleep(0.01)

    assert asyncio.run(main()) == "works again"


def test_a_thread_that_ends_after_its_loop_disturbs_nobody():
    release = threading.Event()

    asyncio.run(given_up(threads.DaemonThreads("late"), release))
    release.set()
    deadline = time.monotonic() + 60
    while any(thread.name == "holdfast-late" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Opaque:
    def __repr__(self) -> str:
        return "<opaque>"


@pytest.mark.parametrize(
    ("returned", "shown"),
    [
        (b"raw \xff bytes", "raw \ufffd bytes"),
        ("half \ud800", "half \\ud800"),
        ("x" * 10_000_000, "x" * 10_000_000),
        (Opaque(), '"<opaque>"'),
        ({(1, 2): "tuple key"}, '{"(1, 2)":"tuple key"}'),
        ({"nested": "\ud800"}, "{'nested': '\\ud800'}"),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        (None, "null"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whatever_a_tool_returns_becomes_text_that_is_the_same_on_replay(returned, shown):
    subject = TrajectoryUnderTest()

    gives = Tool(lambda: returned, name="gives", max_result=10_000_000)
    assert use(subject, gives).content == shown
    assert use(subject, gives).content == shown


def test_a_result_that_no_journal_takes_breaks_the_call_and_not_the_run(monkeypatch):
    monkeypatch.setattr("holdfast.rollout.tools.result.MAX_RESULT", 100)
    with pytest.raises(ToolBug, match="101 bytes"):
        use(TrajectoryUnderTest(), Tool(lambda: "x" * 101, name="big"))


# --- what is durable when


def test_the_intent_is_durable_before_the_effect_and_the_result_before_it_is_seen():
    subject, seen = TrajectoryUnderTest(), []

    async def records():
        return [type(item) for item in await subject.journal.history((await subject.lease()).id)]

    async def effect() -> str:
        seen.append((await records())[-1])
        return "done"

    async def rollout(t):
        await t.tool(call("effect"), effect)
        seen.append((await records())[-1])

    asyncio.run(subject.perform(rollout))
    assert seen == [ToolIntent, ToolResult]


def interrupted(contract: Contract, keys: list[str]):
    """A tool that is cut off in the middle the first time: its effect is there, its answer not."""

    async def effect(idempotency_key: str) -> str:
        keys.append(idempotency_key)
        if len(keys) == 1:
            raise asyncio.CancelledError
        return f"effect {len(keys)}"

    return Tool(effect, contract=contract)


def perform_interrupted(contract: Contract):
    subject, keys = TrajectoryUnderTest(), []
    item = interrupted(contract, keys)

    async def rollout(t):
        t.add("go")
        await t.generate()
        return await t.tool(call("effect"), item)

    with pytest.raises(EnvironmentBroken):
        asyncio.run(subject.perform(rollout))
    return subject, keys, asyncio.run(subject.perform(rollout))


def test_an_interrupted_idempotent_call_is_run_again_with_the_same_key():
    subject, keys, reply = perform_interrupted(Contract.IDEMPOTENT)
    assert reply.content == "effect 2"
    assert keys[0] == keys[1]
    assert len(subject.oracle.requests) == 1


def test_an_interrupted_at_most_once_call_is_not_run_again_and_the_model_is_told():
    subject, keys, reply = perform_interrupted(Contract.AT_MOST_ONCE)
    assert (reply.content, reply.error) == (INTERRUPTED, "interrupted")
    assert len(keys) == 1
    assert len(subject.oracle.requests) == 1


def test_an_interrupted_restart_call_starts_the_trajectory_anew():
    subject, keys, reply = perform_interrupted(Contract.RESTART)
    assert len(keys) == 2
    assert reply.content == "effect 2"
    first, second = subject.oracle.requests
    assert (first.id, first.seed, list(first.prompt)) == (
        second.id,
        second.seed,
        list(second.prompt),
    )
    (fork,) = asyncio.run(subject.history()).forks
    assert fork.path == "0"


def test_keys_differ_between_calls_and_samples():
    keys: list[str] = []

    def effect(idempotency_key: str) -> None:
        keys.append(idempotency_key)

    async def rollout(t):
        await t.tool(call("effect"), effect)
        await t.tool(call("effect"), effect)

    subject = TrajectoryUnderTest(samples=2)
    asyncio.run(subject.perform(rollout))
    asyncio.run(subject.perform(rollout, sample=1))
    assert len(set(keys)) == 4


def test_a_tool_whose_signature_changed_meanwhile_tells_the_model():
    subject, keys = TrajectoryUnderTest(), []
    with pytest.raises(EnvironmentBroken):
        use(subject, interrupted(Contract.IDEMPOTENT, keys))

    def effect(must_have: int) -> None: ...

    assert use(subject, effect).error == "InvalidArguments"


def test_a_call_by_the_rollout_itself_is_not_part_of_the_conversation():
    async def rollout(t):
        adding = tool(add)
        reply = await t.tool(adding.call(a=1), adding)
        return reply.content, t.messages

    assert asyncio.run(TrajectoryUnderTest().perform(rollout)) == ("3", [])


def test_exiting_is_possible_while_a_tool_hangs():
    import subprocess

    script = """
import asyncio, sys, threading
sys.path.insert(0, %r)
from support.rollout.stage import TrajectoryUnderTest, call
from holdfast.rollout.tools.tool import Tool
try:
    hang = Tool(lambda: threading.Event().wait(), name="hang", timeout=0.01)
    asyncio.run(TrajectoryUnderTest().perform(lambda t: t.tool(call("hang"), hang)))
except Exception as error:
    print(type(error).__name__)
"""
    done = subprocess.run(
        [sys.executable, "-c", script % str(TESTS)], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout.strip(), done.returncode) == ("EnvironmentBroken", 0), done.stderr


def test_the_result_of_the_rollouts_own_call_is_durable_and_no_message():
    """No message of the model's asked for it; the rollout says what the model is to know."""
    item = tool(add)

    async def rollout(t):
        t.add("hello")
        reply = await t.tool(item.call(a=40), item)
        return reply.content, [message.content for message in t.messages]

    subject = TrajectoryUnderTest()
    live = asyncio.run(subject.perform(rollout))
    assert live == asyncio.run(subject.perform(rollout)) == ("42", ["hello"])
    assert [result.content for result in asyncio.run(subject.history()).results.values()] == ["42"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"timeout": "30"}, "timeout must be a number, not '30'"),
        ({"timeout": None}, "timeout must be a number, not None"),
        ({"max_result": "x"}, "max_result must be a whole number, not 'x'"),
        ({"isolated": "no"}, "isolated must be True or False, not 'no'"),
        ({"timout": 3}, "no argument 'timout'; is 'timeout' meant"),
    ],
)
def test_an_argument_of_another_type_or_name_is_refused_in_one_line(arguments, why: str) -> None:
    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    for make in (lambda: tool(**arguments)(add), lambda: Tool(add, **arguments)):
        with pytest.raises(UsageError, match=why):
            make()


def test_a_tool_from_a_schema_is_checked_as_one_from_a_function_is() -> None:
    schema = {"type": "object", "properties": {}}
    with pytest.raises(UsageError, match="timeout must be a number"):
        Tool.from_schema("n", "does it", schema, print, timeout="3")  # type: ignore[arg-type]


def test_one_tool_in_place_of_a_list_is_named():
    from holdfast.rollout.tools.tool import tools_of

    with pytest.raises(UsageError, match=r"not 'add_async' alone: write \[add_async\]$"):
        tools_of(add_async, where="tools")
