"""What a trajectory's records know of its worlds, and of how far an agent had come in them."""

import pytest
from msgspec import structs

from holdfast.records.history import History
from holdfast.records.message import FunctionCall, Message, Role, ToolCall
from holdfast.records.step import (
    Called,
    Contract,
    EnvironmentStepped,
    Forked,
    Snapshotted,
    ToolIntent,
)
from support.records import generated, started, value


def opened() -> EnvironmentStepped:
    return EnvironmentStepped("0", b"", "0", "", 0.0, False, environment="0")


def intent(path: str) -> ToolIntent:
    return ToolIntent(path, b"", "add", "{}", "", Contract.AT_MOST_ONCE, "key")


def called(path: str) -> Called:
    return Called(path, path.encode(), 0, (path,), b"", b"", b"", "/v1/x", "id", 0, "m")


def test_a_snapshot_knows_the_last_step_before_it_whatever_its_place() -> None:
    history = History([started(), opened(), intent("7.0.0"), generated("3.0.0")])
    history.take(Snapshotted("0", 0, b"first"))
    assert history.worlds["0"].last_step == "3.0.0"
    history.take(intent("8.0.0"))
    assert history.worlds["0"].last_step == "3.0.0"
    history.take(Snapshotted("0", 0, b"second"))
    assert history.worlds["0"].last_step == "8.0.0"


def test_calls_and_tools_are_counted_also_those_that_are_history_but_not_before_a_new_beginning():
    records = [started(), generated("0.0.0"), called("0.0.0"), intent("1.0.0"), value(5)]
    history = History(records)
    assert history.calls_ever == 2
    history.take(Forked("1.0.0", "diverged on replay", "", 0.0))
    assert history.calls_ever == 2
    history.take(Forked("0", "it has to start anew", "", 0.0))
    assert (history.calls_ever, history.steps) == (0, {})


@pytest.mark.parametrize(
    ("message", "calls", "reason"),
    [
        ("stop", False, "stop"),
        ("stop", True, "tool_calls"),
        ("tool_calls", True, "tool_calls"),
        ("tool_calls", False, "tool_calls"),
        ("length", True, "length"),
        ("content_filter", True, "content_filter"),
        ("deadline", True, "deadline"),
    ],
)
def test_a_reply_that_its_model_ended_with_calls_ended_with_tool_calls(
    message: str, calls: bool, reason: str
) -> None:
    made = (ToolCall("c1", FunctionCall("add", "{}")),) if calls else ()
    step = structs.replace(
        generated("0", message=Message(Role.ASSISTANT, "", tool_calls=made)),
        engine_finish_reason=message,
    )
    assert (step.finish_reason, step.engine_finish_reason) == (reason, message)
