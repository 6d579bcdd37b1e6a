"""The state of an attempt: what keeps it from going on, and which error counts."""

import asyncio

import pytest

from holdfast.records.errors import EnvironmentBroken, RunStopped, Truncated
from holdfast.rollout.replay.session import AttemptState, is_accident


def test_the_first_error_breaks_the_attempt_and_stays():
    state = AttemptState(asyncio.Event())
    first, second = EnvironmentBroken("first"), EnvironmentBroken("second")
    assert state.fail(first) is first
    assert state.fail(second) is second
    assert state.broken is first
    with pytest.raises(EnvironmentBroken, match="first"):
        state.check_usable()


def test_a_stop_of_the_run_breaks_the_attempt_at_its_next_new_step():
    stop = asyncio.Event()
    state = AttemptState(stop)
    state.check_usable()
    stop.set()
    state.check_unbroken()
    with pytest.raises(RunStopped):
        state.check_running()
    assert isinstance(state.broken, RunStopped)


def test_nothing_is_done_once_it_is_over():
    state = AttemptState(asyncio.Event())
    state.end()
    with pytest.raises(RunStopped, match="over"):
        state.check_open()


def test_an_error_belongs_to_the_step_that_is_blamed_or_else_to_the_last_one():
    state = AttemptState(asyncio.Event())
    state.step = "3"
    blamed, other = ValueError(), ValueError()
    state.fail(blamed, "1.0")
    assert (state.step_of(blamed), state.step_of(other)) == ("1.0", "3")


@pytest.mark.parametrize(
    ("error", "accident"),
    [(Truncated("max_turns"), False), (EnvironmentBroken("x"), True), (ValueError(), True)],
)
def test_a_limit_that_the_policy_met_is_no_accident(error, accident):
    assert is_accident(error) is accident
