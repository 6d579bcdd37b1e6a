"""What user code raised may raise again when it is looked at."""

import pytest

from holdfast.records.errors import Cause, EnvironmentBroken, ToolSaysNo, Truncated
from holdfast.records.failure import as_exception, classify, failure_of
from holdfast.records.foreign import Unprintable, headline_of, message_of, readable, text_of
from support.hostile_errors import HOSTILE, NoAttributes, NoMessage


def raised(error: BaseException) -> BaseException:
    def user_function() -> None:
        raise error

    try:
        user_function()
    except BaseException as caught:
        return caught
    raise AssertionError


@pytest.mark.parametrize("kind", HOSTILE)
def test_an_error_that_cannot_be_looked_at_is_recorded_with_its_name_and_its_frames(kind) -> None:
    failure = failure_of(raised(kind("x")))
    assert failure.cause is Cause.CODE
    assert kind.__name__ in failure.text
    assert "in user_function" in failure.traceback


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_raised_instead_of_it_can_be_looked_at(kind) -> None:
    shown = as_exception(raised(kind("x")))
    assert isinstance(shown, Exception)
    assert str(shown)
    assert repr(shown)
    assert "user_function" in text_of(shown)
    assert kind.__name__ in headline_of(shown)


@pytest.mark.parametrize("kind", HOSTILE)
def test_an_error_that_follows_from_it_stays_what_it_is(kind) -> None:
    def call() -> None:
        try:
            raise kind("x")
        except Exception as error:
            raise EnvironmentBroken("the server is gone") from error

    with pytest.raises(EnvironmentBroken) as caught:
        call()
    failure = failure_of(caught.value)
    assert (failure.cause, failure.type) == (Cause.ENVIRONMENT, "EnvironmentBroken")
    assert failure.message == "the server is gone"
    assert "in call" in failure.traceback


def test_an_error_like_any_other_is_left_alone() -> None:
    error = raised(ValueError("x"))
    error.add_note("more")
    assert readable(error) is error
    assert "more" in failure_of(error).traceback


def test_a_message_that_cannot_be_read_is_said_to_be_so() -> None:
    assert message_of(NoMessage()) == "(its message cannot be read: SystemExit)"
    assert isinstance(readable(NoMessage()), Unprintable)


@pytest.mark.parametrize(
    ("members", "cause", "kind"),
    [
        ([ConnectionError("lost"), TypeError("bug")], Cause.CODE, "TypeError"),
        ([ConnectionError("lost"), EnvironmentBroken("gone")], Cause.ENVIRONMENT, None),
        ([Truncated("max_turns"), ConnectionError("lost")], Cause.INFRASTRUCTURE, None),
        ([Truncated("max_turns"), ToolSaysNo("no")], Cause.POLICY, "Truncated"),
        ([KeyError("first"), TypeError("second")], Cause.CODE, "KeyError"),
        ([ConnectionError("lost"), NoAttributes("x")], Cause.CODE, "Unprintable"),
    ],
)
def test_a_group_is_as_bad_as_its_worst_member(members, cause, kind) -> None:
    group = ExceptionGroup("many", [members[0], ExceptionGroup("inner", members[1:])])
    assert classify(group)[0] is cause
    failure = failure_of(group)
    assert failure.cause is cause
    assert kind is None or failure.type == kind
    assert "(and another error at the same time)" in failure.message


def test_a_group_made_by_hand_shows_where_it_was_raised_and_each_member() -> None:
    def never_raised() -> None:
        raise ExceptionGroup("many", [ConnectionError("lost"), TypeError("bug")])

    with pytest.raises(ExceptionGroup) as caught:
        never_raised()
    failure = failure_of(caught.value)
    assert failure.traceback.count("in never_raised") == 2
    assert failure.traceback.index("TypeError: bug") < failure.traceback.index(
        "ConnectionError: lost"
    )


def test_each_member_that_was_raised_keeps_its_traceback() -> None:
    def first() -> None:
        raise ConnectionError("lost")

    def second() -> None:
        raise TypeError("bug")

    members = []
    for function in (first, second):
        with pytest.raises((ConnectionError, TypeError)) as caught:
            function()
        members.append(caught.value)
    text = failure_of(ExceptionGroup("many", members)).traceback
    assert "in first" in text
    assert "in second" in text
