"""A failure is classified once, from types; its root is kept; secrets are not."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.records import errors
from holdfast.records import failure as failure_module
from holdfast.records.encoding import redaction
from holdfast.records.errors import Cause, HoldfastError
from holdfast.records.failure import (
    MAX_LINE,
    MAX_MESSAGE,
    MAX_TRACEBACK,
    TREATMENT,
    classify,
    failure_of,
    fold_traceback,
    redact,
    root_of,
)


class OfNoKnownCause(HoldfastError):
    cause = "weather"  # type: ignore[assignment]
    retryable = "often"  # type: ignore[assignment]


CANARY = "CANARY7f3a9b2c5d8e1f40"


def all_errors() -> list[type[HoldfastError]]:
    results = [variable for variable in vars(errors).values() if isinstance(variable, type)]
    return [result for result in results if issubclass(result, HoldfastError)]


@pytest.mark.parametrize(
    ("error", "cause", "retryable"),
    [
        (errors.EngineUnavailable("gone"), Cause.INFRASTRUCTURE, True),
        (errors.BadAnswer("no ids"), Cause.INFRASTRUCTURE, True),
        (errors.PolicyRefused("401"), Cause.INFRASTRUCTURE, False),
        (errors.LeaseLost("taken"), Cause.INFRASTRUCTURE, False),
        (errors.EnvironmentBroken("crashed"), Cause.ENVIRONMENT, True),
        (errors.ContextOverflow(), Cause.POLICY, False),
        (errors.ToolSaysNo("no"), Cause.POLICY, False),
        (errors.BadRequest("what?"), Cause.CODE, False),
        (ZeroDivisionError(), Cause.CODE, True),
        (ConnectionError("a rollout's own socket"), Cause.INFRASTRUCTURE, True),
        (asyncio.CancelledError(), Cause.CODE, True),
        (OfNoKnownCause("a class of the user's"), Cause.CODE, True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_cause_and_retryability_come_from_the_type(
    error: BaseException, cause: Cause, retryable: bool
) -> None:
    assert classify(error) == (cause, retryable)


def test_every_error_of_ours_has_a_boundary_and_every_cause_a_treatment() -> None:
    assert len(all_errors()) > 15
    assert {item.cause for item in all_errors()} == set(TREATMENT) == set(Cause)


def test_only_the_policy_is_ever_in_a_baseline() -> None:
    assert [cause for cause, item in TREATMENT.items() if item.in_baseline] == [Cause.POLICY]


def test_a_group_of_errors_counts_as_its_worst_member() -> None:
    bug, accident, outage = (
        KeyError("a"),
        errors.EnvironmentBroken("b"),
        errors.EngineUnavailable("c"),
    )
    limit = errors.Truncated("max_turns")
    for worst, *others in (
        (bug, limit, outage, accident),
        (accident, limit, outage),
        (outage, limit),
    ):
        failure = failure_of(ExceptionGroup("several", [*others, worst]))
        assert failure.cause is failure_of(worst).cause, "wherever it stands"
        assert failure.type == type(worst).__name__


def test_the_root_is_found_inside_groups_and_is_never_a_cancellation() -> None:
    root = ValueError("the one")
    group = BaseExceptionGroup(
        "outer",
        [
            asyncio.CancelledError(),
            BaseExceptionGroup("inner", [asyncio.CancelledError(), root, KeyError("later")]),
        ],
    )
    assert root_of(group) is root
    only = BaseExceptionGroup("all", [asyncio.CancelledError("why")])
    assert isinstance(root_of(only), asyncio.CancelledError)


def test_a_failure_keeps_what_is_needed_to_find_it() -> None:
    def broken() -> None:
        raise errors.EngineUnavailable("replica 3 is down") from OSError("reset by peer")

    try:
        broken()
    except errors.EngineUnavailable as error:
        failure = failure_of(ExceptionGroup("tasks", [error]), step="2.0", attempt=3)
    assert (failure.type, failure.message) == ("EngineUnavailable", "replica 3 is down")
    assert (failure.step, failure.attempt, failure.phase) == ("2.0", 3, "rollout")
    assert "in broken" in failure.traceback
    assert "reset by peer" in failure.traceback
    assert failure.root == "EngineUnavailable: replica # is down"


def test_failures_that_differ_in_numbers_have_one_root() -> None:
    roots = {failure_of(ValueError(f"row {n} of 9\nmore {n}")).root for n in range(5)}
    assert roots == {"ValueError: row # of #"}


def test_failures_that_differ_in_where_an_object_lies_have_one_root() -> None:
    places = ("0x7f3c2a91b5e0", "0x55DEADBEEF00", "0x7fabcdefabcd")
    failures = [
        failure_of(TypeError(f"<generator object f at {place}> is not text")) for place in places
    ]
    assert {failure.root for failure in failures} == {
        "TypeError: <generator object f at #> is not text"
    }
    assert failures[0].line == f"TypeError: <generator object f at {places[0]}> is not text"
    assert failure_of(ValueError("box3x0 and 0xyz")).root == "ValueError: box#x# and #xyz"


def test_a_headline_is_short_however_long_the_message() -> None:
    failure = failure_of(ValueError("head" + "x" * 5_000_000))
    for messages in (failure.line, failure.root):
        assert messages.startswith("ValueError: headxxx")
        assert len(messages) < MAX_LINE + 50
    assert len(failure.message) > 10 * MAX_LINE, "what is recorded is not cut to a headline"


def test_a_failure_says_how_many_others_there_were() -> None:
    def group(*more: BaseException) -> BaseExceptionGroup[BaseException]:
        return BaseExceptionGroup("tasks", [ValueError("one\nand more"), *more])

    cancelled = asyncio.CancelledError()
    alone = failure_of(group(cancelled))
    two = failure_of(group(cancelled, KeyError("b")))
    four = failure_of(group(KeyError("b"), group(OSError("c"))))
    assert alone.message == "one\nand more"
    assert two.line == "ValueError: one (and another error at the same time)"
    assert four.line == "ValueError: one (and 3 other errors at the same time)"
    assert four.message.endswith("\nand more")
    assert {item.root for item in (alone, two, four)} == {"ValueError: one"}
    long = failure_of(BaseExceptionGroup("", [ValueError("x" * 9_000), KeyError("b")]))
    assert long.line.endswith("(and another error at the same time)")


def fails_inside() -> None:
    asyncio.run(own_part())


async def own_part() -> None:
    Path("/nowhere/at/all").read_text()


def test_a_traceback_begins_in_the_code_of_the_user() -> None:
    """The calls that lead there are Holdfast's own and tell nothing."""
    shown = failure_of(raised_through_holdfast(fails_inside)).traceback
    files = [line.split('"')[1] for line in shown.splitlines() if line.startswith("  File ")]
    assert files[0] == __file__
    assert redaction.__file__ not in files
    assert "in fails_inside" in shown
    assert "in own_part" in shown
    assert "pathlib" in files[-1], "what they called is kept"


def test_a_traceback_keeps_the_lines_of_holdfast_that_the_user_called() -> None:
    shown = failure_of(raised_through_holdfast(calls_holdfast)).traceback
    first, *called = (line for line in shown.splitlines() if line.startswith("  File "))
    assert __file__ in first
    assert called
    assert all(redaction.__file__ in line for line in called)


def test_a_traceback_without_a_line_of_the_user_is_whole() -> None:
    shown = failure_of(raised_through_holdfast(asyncio.get_running_loop)).traceback
    assert redaction.__file__ in shown


def test_a_traceback_of_a_cause_begins_in_the_code_of_the_user_too() -> None:
    try:
        raise ValueError("worse") from raised_through_holdfast(fails_inside)
    except ValueError as error:
        shown = failure_of(error).traceback
    assert "in own_part" in shown
    assert redaction.__file__ not in shown


def calls_holdfast() -> None:
    redact(None)  # type: ignore[arg-type]


def raised_through_holdfast(function: Callable[[], object]) -> BaseException:
    """What `function` raises when a line in Holdfast's own folder calls it."""
    code = compile("function()", redaction.__file__, "exec")
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever it raises
        exec(code, {"function": function})
    return caught.value.with_traceback(caught.tb.tb_next)


def test_a_long_message_keeps_its_head_and_its_tail() -> None:
    failure = failure_of(ValueError("head" + "x" * 100_000 + "tail"))
    assert failure.message.startswith("head")
    assert failure.message.endswith("tail")
    assert len(failure.message) < MAX_MESSAGE + 100
    assert len(failure.traceback) < MAX_TRACEBACK + 100


def test_a_message_that_cannot_be_encoded_is_written_all_the_same() -> None:
    failure = failure_of(ValueError("lone \ud800 surrogate"))
    assert failure.message.encode() == b"lone \\ud800 surrogate"


SECRETS = [
    f"Authorization: Bearer {CANARY}",
    f"authorization: bearer {CANARY}",
    f"headers={{'Authorization': 'Bearer {CANARY}'}}",
    f'{{"api_key": "{CANARY}"}}',
    f"OPENAI_API_KEY={CANARY}",
    f"api-key: {CANARY}",
    f"password={CANARY}",
    f"client_secret: '{CANARY}'",
    f"access_token={CANARY}&next=1",
    f"postgresql://user:{CANARY}@db.example/runs",
    f"https://{CANARY}:{CANARY}@example.com/x",
    f"key sk-{CANARY} was refused",
    f"hf_{CANARY} has no access",
    f"ghp_{CANARY}",
]


@pytest.mark.parametrize("text", SECRETS)
def test_secrets_never_reach_a_record(text: str) -> None:
    failure = failure_of(RuntimeError(f"before {text} after"))
    assert CANARY not in failure.message
    assert CANARY not in failure.traceback
    assert CANARY not in failure.root
    assert "[redacted]" in failure.message
    assert failure.message.startswith("before ")


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens: 4096 is more than the limit",
        "expected 3 tokens, found 2",
        "token: 17",
        "completion_tokens=1234567",
        "see https://example.com/docs@v2",
        "the secret of good agents",
    ],
)
def test_what_only_looks_like_a_secret_is_left(text: str) -> None:
    assert redact(text) == text


@given(st.text(max_size=200))
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    assert redact(redact(text)) == redact(text)


@pytest.mark.parametrize(
    "address", ["http://SECRET1@host", "HTTP://SECRET1@host:1", "http://u:p@SECRET1@host/path"]
)
def test_what_stands_before_the_host_of_an_address_is_taken_out(address: str) -> None:
    assert "SECRET1" not in redact(f"cannot reach {address}: no")
    assert "host" in redact(address)


PACKAGE = Path(failure_module.__file__).parent.parent
TRACEBACK = f"""Traceback (most recent call last):
  File "/home/me/holdfast/agent.py", line 4, in solve
    await t.tool(call, look_up)
          ^^^^^^
  File "{PACKAGE}/rollout/context.py", line 9, in tool
    return await self._tool(call)
  File "/usr/lib/python3.11/asyncio/tasks.py", line 3, in wait_for
    return fut.result()
  File "/opt/venv/lib/python3.11/site-packages/holdfast/rollout/tool_step.py", line 8, in run
    raise worse
  File "/opt/venv/lib/python3.11/site-packages/httpx/client.py", line 1, in get
    raise KeyError(1)
KeyError: 1

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/home/me/holdfast/agent.py", line 7, in solve
    await t.generate()
  File "{PACKAGE}/rollout/context.py", line 2, in generate
    raise error
ValueError: two
lines
"""


def test_frames_of_ours_are_one_line() -> None:
    assert (
        fold_traceback(TRACEBACK)
        == """Traceback (most recent call last):
  File "/home/me/holdfast/agent.py", line 4, in solve
    await t.tool(call, look_up)
          ^^^^^^
  … 3 frames of Holdfast (--full-tracebacks)
  File "/opt/venv/lib/python3.11/site-packages/httpx/client.py", line 1, in get
    raise KeyError(1)
KeyError: 1

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/home/me/holdfast/agent.py", line 7, in solve
    await t.generate()
  … 1 frame of Holdfast (--full-tracebacks)
ValueError: two
lines
"""
    )


def test_a_traceback_that_is_all_ours_is_one_line_too() -> None:
    frames = "".join(f'  File "{PACKAGE}/a/b.py", line {n}, in f\n    g()\n' for n in range(9))
    head, error = "Traceback (most recent call last):\n", "E: 1\n"
    folded = fold_traceback(head + frames + error)
    assert folded == f"{head}  … 9 frames of Holdfast (--full-tracebacks)\n{error}"


def test_a_traceback_that_begins_in_asyncio_begins_there() -> None:
    head = 'Traceback (most recent call last):\n  File "/lib/asyncio/runners.py", line 1, in run\n'
    ours = f'  File "{PACKAGE}/a/b.py", line 2, in f\n    g()\n'
    folded = fold_traceback(f"{head}{ours}E: 1\n")
    assert folded == f"{head}  … 1 frame of Holdfast (--full-tracebacks)\nE: 1\n"


def test_a_traceback_that_has_nothing_of_ours_stays_as_it_is() -> None:
    theirs = 'Traceback (most recent call last):\n  File "/home/me/b.py", line 1, in f\nE: 1\n'
    for text in (theirs, "E: 1\n", ""):
        assert fold_traceback(text) == text


def test_a_traceback_without_frames_that_repeats_its_message_is_left_out() -> None:
    assert fold_traceback("a.b.E: 1\n", "E: 1") == ""
    assert fold_traceback("a.b.E: 1\n", "E: 2") == "a.b.E: 1\n"
    assert fold_traceback(TRACEBACK, "ValueError: two") == fold_traceback(TRACEBACK)


def test_frames_of_an_installed_holdfast_are_not_taken_for_those_of_a_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed = "/venv/lib/site-packages/holdfast/"
    monkeypatch.setattr(failure_module, "_PACKAGE", installed)
    code = compile("raise UsageError('no score')", f"{installed}engine/scorer.py", "exec")
    try:
        exec(code, {"UsageError": errors.UsageError})
    except errors.UsageError as error:
        # Without the frame of this test, which is a user's.
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
        recorded = failure_of(error)
    assert recorded.traceback == "holdfast.records.errors.UsageError: no score\n"
