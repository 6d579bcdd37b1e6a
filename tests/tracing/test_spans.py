"""Records as spans: who contains whom, what is said, when it was, and the same each time."""

import asyncio
import json

import msgspec
import pytest

pytest.importorskip("opentelemetry.sdk")

from holdfast.journal.sqlite.journal import MemoryJournal
from holdfast.records.message import assistant
from holdfast.records.step import AttemptStarted, Contract, Forked, ToolIntent, ToolResult
from holdfast.tracing.messages import MAX_TEXT
from holdfast.tracing.spans import TrajectorySpans
from support.evaluation.graded_runs import (
    BROKEN,
    failed,
    refilled,
    retried,
    running,
    scored,
    with_tools,
    write,
)
from support.records import generated, spec


def spans_of(recorded, *, since=0):
    """The spans of one trajectory, its own one last."""

    async def read():
        async with MemoryJournal() as journal:
            run = await write(journal, spec(samples=1), {"kelp": [recorded]})
            run = msgspec.structs.replace(run, created=1.0)
            [row], [task] = await journal.trajectories(run), await journal.tasks(run)
            trajectory = TrajectorySpans(run, row, task)
            spans = [trajectory.take(record) for record in await journal.history(row.id)]
            return [*filter(None, spans[since:]), trajectory.own_span()]

    return asyncio.run(read())


def seconds(span):
    return (span.start_time / 1e9, span.end_time / 1e9)


def test_a_trajectory_is_a_trace_with_its_turns_tools_and_actions():
    *steps, own = spans_of(with_tools(0.5))
    assert [span.name for span in steps] == [
        "chat model", "execute_tool look_up", "execute_tool reset", "execute_tool step",
        "chat model",
    ]  # fmt: skip
    assert {span.parent.span_id for span in steps} == {own.context.span_id}
    assert {span.context.trace_id for span in steps} == {own.context.trace_id}
    assert own.parent is None
    assert own.attributes["holdfast.reward"] == 0.5
    first, tool, _, action, last = (span.attributes for span in steps)
    assert json.loads(first["gen_ai.output.messages"]) == [
        {
            "role": "assistant",
            "parts": [
                {"type": "reasoning", "content": "What is kelp?"},
                {"type": "text", "content": "Let me look."},
                {
                    "type": "tool_call", "id": "c1", "name": "look_up",
                    "arguments": '{"word": "kelp", "deep": true}',
                },
            ],
            "finish_reason": "tool_calls",
        }
    ]  # fmt: skip
    assert tool["gen_ai.tool.call.result"] == "Kelp is a large brown alga."
    assert tool["gen_ai.tool.call.id"] == "c1"
    assert action["holdfast.reward"] == 2.5
    asked = json.loads(last["gen_ai.input.messages"])
    assert [message["role"] for message in asked] == ["tool", "user", "user"]
    assert asked[0]["parts"][0]["response"] == "Kelp is a large brown alga."
    results = [event for event in own.events if event.name == "gen_ai.evaluation.result"]
    assert [event.attributes["gen_ai.evaluation.name"] for event in results] == [
        "reward", "depth", "style"
    ]  # fmt: skip


def test_the_same_records_give_the_same_spans_and_later_records_change_no_earlier_span():
    def plain(spans):
        return [span.to_json() for span in spans]

    assert plain(spans_of(with_tools())) == plain(spans_of(with_tools()))
    assert plain(spans_of(with_tools(), since=4)) == plain(spans_of(with_tools()))[2:]


def test_a_step_begins_where_the_one_before_ended_and_branches_begin_together():
    def turn(path, took, base=""):
        return msgspec.structs.replace(
            generated(path, added=("task:0",) if not base else (), base=base), seconds=took
        )

    intent = ToolIntent("4", b"", "ask", "{}", "c", Contract.IDEMPOTENT, "k")
    *steps, own = spans_of(
        scored(
            1.0,
            turn("0", 1.0), turn("3.0.0", 2.0), turn("3.1.0", 5.0), turn("3.0.1", 1.0),
            intent, turn("4.0.0", 2.0), ToolResult("4", "done", seconds=2.5), turn("5", 1.0),
        )
    )  # fmt: skip
    begin = steps[0].start_time / 1e9
    assert [tuple(at - begin for at in seconds(span)) for span in steps] == [
        (0, 1), (1, 3), (1, 6), (3, 4), (6, 8), (6, 8.5), (8.5, 9.5)
    ]  # fmt: skip
    *_, inner, tool, _ = steps
    assert inner.parent.span_id == tool.context.span_id
    assert seconds(own)[1] >= seconds(steps[-1])[1]


def test_what_was_forked_or_retried_is_another_span_and_failures_are_events():
    fork = Forked("0", "diverged", "the prompt differs", 3.0)
    first, second, own = spans_of(
        scored(1.0, generated("0", added=("task:0",)), fork, generated("0", added=("task:0",)))
    )
    assert first.context.span_id != second.context.span_id
    assert [event.name for event in own.events][:1] == ["fork"]
    own = spans_of(retried(0.5))[-1]
    assert own.events[0].attributes["exception.type"] == "ConnectionError"
    assert "refill" in [event.name for event in spans_of(refilled(0.5))[-1].events]
    *_, own = spans_of(failed())
    assert own.status.description == BROKEN.line
    assert own.attributes["error.type"] == "ConnectionError"


def test_a_tool_that_a_later_attempt_repeats_is_one_span_in_that_attempt():
    intent = ToolIntent("0", b"", "look", "{}", "c", Contract.IDEMPOTENT, "k")
    again = AttemptStarted(2, "w", 50.0)
    [tool, own] = spans_of(
        scored(1.0, intent, again, intent, ToolResult("0", "", "refused", seconds=1.0))
    )
    assert seconds(tool) == (50.0, 51.0)
    assert tool.status.description == "refused"
    assert own.events[0].name == "attempt"


def test_a_long_text_is_cut_and_says_so():
    reply = assistant("x" * (MAX_TEXT + 1000))
    turn, *_ = spans_of(scored(1.0, generated("0", added=("task:0",), message=reply)))
    [message] = json.loads(turn.attributes["gen_ai.output.messages"])
    assert message["parts"][0]["content"].endswith("x … (1,000 more characters are in the journal)")


def test_an_open_trajectory_has_its_turns_already():
    assert [span.name for span in spans_of(running())[:-1]] == ["chat model"]
