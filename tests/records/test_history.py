"""The fold: where a trajectory stands, from its records alone."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.records.conversation import conversation
from holdfast.records.errors import Cause
from holdfast.records.failure import Failure
from holdfast.records.history import History, stream_of, turns
from holdfast.records.message import FunctionCall, Message, Role, ToolCall, user
from holdfast.records.step import (
    AttemptFailed,
    Contract,
    Drafted,
    Finished,
    Forked,
    Record,
    Refilled,
    Reopened,
    ScoringFailed,
    ToolIntent,
    ToolResult,
    is_cut_by,
    scope_of,
)
from holdfast.records.trajectory import Status
from support.records import finished, generated, make_tasks, scored, started, value

paths = st.lists(st.integers(0, 3), min_size=1, max_size=5).map(lambda p: ".".join(map(str, p)))


def failure(message: str = "broken") -> Failure:
    return Failure(Cause.INFRASTRUCTURE, True, "EngineUnavailable", message, "")


def intent(path: str, call: str = "c1") -> ToolIntent:
    return ToolIntent(path, b"", "add", "{}", call, Contract.IDEMPOTENT, "key")


def test_a_trajectory_is_pending_then_running_then_over() -> None:
    history = History()
    seen = [history.status]
    for record in (started(), generated("0"), finished(Status.TRUNCATED)):
        history.take(record)
        seen.append(history.status)
    assert seen == [Status.PENDING, Status.RUNNING, Status.RUNNING, Status.TRUNCATED]


def test_the_scorer_has_the_last_word_on_the_reward() -> None:
    history = History([started(), Finished(Status.COMPLETED, "", 0.25, 0.0)])
    assert history.reward == 0.25
    history.take(scored(1.0))
    assert history.reward == 1.0


def test_what_is_no_outcome_has_no_reward() -> None:
    assert History([started()]).reward is None
    assert History([Finished(Status.FAILED, "", 1.0, 0.0)]).reward is None
    assert History([finished(), ScoringFailed(failure(), 1.0, final=True)]).reward is None


def test_a_scorer_that_fails_for_good_fails_the_trajectory() -> None:
    history = History([finished(), ScoringFailed(failure(), 1.0, final=False)])
    assert history.status is Status.COMPLETED
    history.take(ScoringFailed(failure(), 2.0, final=True))
    assert history.status is Status.FAILED
    assert len(history.scoring_failures) == 2


def test_failed_attempts_are_counted_and_kept() -> None:
    history = History(
        [
            started(),
            AttemptFailed(failure("one"), 1.0),
            started(2),
            AttemptFailed(failure("two"), 2.0),
        ]
    )
    assert history.spent == 2
    assert [item.message for item in history.failures] == ["one", "two"]


def test_a_refill_starts_a_new_life_and_keeps_what_failed() -> None:
    history = History(
        [
            started(),
            generated("0"),
            value(1),
            AttemptFailed(failure(), 1.0),
            Refilled(1, "spent", 2.0),
            started(2),
            generated("0", ids=[7]),
        ]
    )
    assert (history.life, history.spent, list(history.steps)) == (1, 0, ["0"])
    assert stream_of(history, "0").tolist() == [1, 2, 7]
    assert len(history.failures) == 1


def test_reopening_gives_new_budgets_and_keeps_the_steps() -> None:
    history = History(
        [
            started(),
            value(0),
            AttemptFailed(failure(), 1.0),
            finished(Status.FAILED),
            Reopened("", 2.0),
        ]
    )
    assert (history.status, history.spent) == (Status.RUNNING, 0)
    assert list(history.steps) == ["0"]


def test_a_fork_cuts_what_comes_after_it_in_its_scope_and_below() -> None:
    history = History(
        [
            generated("0"),
            intent("1"),
            ToolResult("1", "x"),
            value(2),
            generated("3.0.0"),
            generated("3.0.1"),
            generated("3.1.0"),
            generated("3.1.1"),
            Forked("3.0.1", "diverged", "", 1.0),
        ]
    )
    assert set(history.steps) == {"0", "1", "2", "3.0.0", "3.1.0", "3.1.1"}
    history.take(Forked("1", "diverged", "", 2.0))
    assert set(history.steps) == {"0"}
    assert history.results == {}
    assert len(history.forks) == 2


def test_a_result_belongs_to_the_intent_before_it() -> None:
    records: list[Record] = [intent("0"), ToolResult("0", "old"), Forked("0", "", "", 1.0)]
    history = History([*records, intent("0")])
    assert "0" in history.steps
    assert "0" not in history.results


@given(paths, paths)
def test_a_cut_is_a_comparison_within_the_scope(path: str, cut: str) -> None:
    scope, first = scope_of(cut)
    inside = path.startswith(scope)
    expected = inside and [int(part) for part in path[len(scope) :].split(".")] >= [first]
    assert is_cut_by(path, cut) == expected


@given(paths)
def test_a_step_is_cut_by_a_fork_at_itself_and_at_the_root(path: str) -> None:
    assert is_cut_by(path, path)
    assert is_cut_by(path, "0")


def test_a_stream_is_put_together_from_its_deltas() -> None:
    history = History(
        [
            generated("0", delta=[1, 2], ids=[3, 4]),
            generated("1", base="0", keep=4, delta=[5], ids=[6]),
            generated("2", base="1", keep=3, delta=[9], ids=[8]),
        ]
    )
    assert stream_of(history, "1").tolist() == [1, 2, 3, 4, 5, 6]
    assert stream_of(history, "2").tolist() == [1, 2, 3, 9, 8]


def test_messages_that_are_recorded_elsewhere_are_found() -> None:
    (task,) = make_tasks("a")
    history = History(
        [
            generated("0", added=("task:0",)),
            intent("1"),
            ToolResult("1", "42"),
            generated("2", base="0", keep=5, added=("tool:1", user("and now?"))),
        ]
    )
    first, second = turns(history, task)
    assert first.prompt == task.messages
    assert [message.role for message in second.prompt] == [Role.TOOL, Role.USER]
    assert (second.prompt[0].content, second.prompt[0].tool_call_id) == ("42", "c1")
    assert [message.text for message in conversation(history, task)] == [
        "do a",
        "reply 0",
        "42",
        "and now?",
        "reply 2",
    ]


def test_a_conversation_shows_tool_results_that_nobody_has_answered() -> None:
    (task,) = make_tasks("a")
    called = intent("1")
    call = ToolCall(called.call_id, FunctionCall(called.name, called.arguments))
    reply = Message(Role.ASSISTANT, "reply 0", tool_calls=(call,))
    history = History(
        [generated("0", added=("task:0",), message=reply), called, ToolResult("1", "42")]
    )
    assert [message.text for message in conversation(history, task)] == ["do a", "reply 0", "42"]
    assert conversation(History(), task) == list(task.messages)


def test_a_conversation_has_each_result_once_though_an_engine_gives_the_same_ids_again() -> None:
    (task,) = make_tasks("a")
    call = ToolCall("call_0", FunctionCall("add", "{}"))
    reply = Message(Role.ASSISTANT, "reply", tool_calls=(call,))
    history = History(
        [
            generated("0", added=("task:0",), message=reply),
            intent("1", "call_0"),
            ToolResult("1", "first"),
            generated("2", base="0", keep=5, added=("tool:1",), message=reply),
            intent("3", "call_0"),
            ToolResult("3", "second"),
        ]
    )
    texts = [message.text for message in conversation(history, task)]
    assert texts == ["do a", "reply", "first", "reply", "second"]


def test_the_fold_does_not_depend_on_where_it_was_interrupted() -> None:
    records: list[Record] = [
        started(),
        generated("0"),
        AttemptFailed(failure(), 1.0),
        started(2),
        Forked("0", "", "", 1.0),
        generated("0", ids=[9]),
        finished(),
        scored(),
    ]
    whole = History(records)
    for at in range(len(records)):
        parts = History(records[:at])
        for record in records[at:]:
            parts.take(record)
        assert vars(parts) == vars(whole)


def draft(start: int, ids: bytes, *, fingerprint: bytes = b"f") -> Drafted:
    return Drafted("0", fingerprint, start, ids, ids, ())


def test_drafts_of_one_generation_are_one_draft_however_often_it_was_interrupted() -> None:
    history = History([started(), draft(0, b"aaaabbbb"), draft(2, b"cccc"), draft(3, b"dddd")])
    assert history.drafts["0"].ids == b"aaaabbbbccccdddd"
    assert history.status is Status.RUNNING


def test_a_draft_that_begins_earlier_takes_the_place_of_what_follows_there() -> None:
    history = History([draft(0, b"aaaabbbbcccc"), draft(1, b"BBBB")])
    assert history.drafts["0"].ids == b"aaaaBBBB"


def test_a_draft_of_another_prompt_or_before_a_fork_is_gone() -> None:
    other = History([draft(0, b"aaaa"), draft(0, b"bbbb", fingerprint=b"g")])
    assert other.drafts["0"].ids == b"bbbb"
    assert not History([draft(0, b"aaaa"), Forked("0", "diverged", "", 0.0)]).drafts
    assert not History([draft(0, b"aaaa"), Refilled(1, "spent", 0.0)]).drafts
