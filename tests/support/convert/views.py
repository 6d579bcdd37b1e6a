"""Trajectories as converters read them, made from records."""

from collections.abc import Sequence

from holdfast.records.failure import Failure
from holdfast.records.history import History
from holdfast.records.message import FunctionCall, Message, Role, ToolCall, assistant, user
from holdfast.records.step import (
    AttemptFailed,
    Contract,
    Finished,
    Record,
    ToolIntent,
    ToolResult,
)
from holdfast.records.task import Task
from holdfast.records.trajectory import Status, TrajectoryKey
from holdfast.records.view import TrajectoryView
from support.records import generated, scored, started

CALLS = (
    ToolCall("call-1", FunctionCall("add", '{"a": 1}')),
    ToolCall("call-2", FunctionCall("add", "{broken")),
)


def view_of(
    *records: Record,
    messages: Sequence[Message] = (user("do a"),),
    status: Status = Status.COMPLETED,
) -> TrajectoryView:
    reward = 1.0 if status is Status.COMPLETED else None
    ending = [Finished(status, "", reward, 2.0), *([scored()] if reward else [])]
    task = Task(id="a", messages=tuple(messages), ground_truth="3")
    history = History([started(), *records, *ending])
    return TrajectoryView(TrajectoryKey("run", "a", 0), task, history)


def one_reply(*, before: Sequence[Message] = ()) -> TrajectoryView:
    return view_of(generated("0", added=(*before, "task:0")))


def calling() -> TrajectoryView:
    """A reply with two tool calls, one result, and the reply to that."""
    called = generated(
        "0", message=Message(Role.ASSISTANT, "", tool_calls=CALLS), added=("task:0",)
    )
    intent = ToolIntent("1", b"", "add", '{"a": 1}', "call-1", Contract.IDEMPOTENT, "key")
    answer = generated(
        "2", base="0", keep=5, delta=(6,), added=("tool:1",), message=assistant("it is 3")
    )
    return view_of(called, intent, ToolResult("1", "3"), answer)


def branching() -> TrajectoryView:
    """Two conversations that begin with the same reply."""
    first = generated("0", added=("task:0",))
    one_way = generated("1", base="0", keep=5, delta=(6,), added=(user("more"),))
    other_way = generated("2", base="0", keep=5, delta=(7,), added=(user("less"),))
    return view_of(first, one_way, other_way)


def failing(failure: Failure) -> TrajectoryView:
    return view_of(AttemptFailed(failure, 1.5), status=Status.FAILED)
