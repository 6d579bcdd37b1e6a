"""A summary follows from the log, and from nothing else."""

from msgspec import structs

from holdfast.records.errors import Cause
from holdfast.records.failure import Failure
from holdfast.records.history import History
from holdfast.records.samples.summary import Summary, summarize
from holdfast.records.step import AttemptFailed, Record, ScoringFailed
from holdfast.records.trajectory import Status
from support.records import finished, generated, scored, started

FAILURE = Failure(Cause.INFRASTRUCTURE, True, "OSError", "connection 7 lost", "Traceback …")
LOG: list[Record] = [
    started(),
    generated("0"),
    AttemptFailed(FAILURE, 1.0),
    started(2),
    generated("1"),
    finished(),
    scored(0.5),
]


def test_nothing_recorded_is_an_empty_summary() -> None:
    assert summarize(History()) == Summary()


def test_a_trajectory_in_numbers() -> None:
    summary = summarize(History(LOG))
    assert (summary.records, summary.status) == (7, Status.COMPLETED)
    assert (summary.turns, summary.retried_attempts, summary.reward) == (2, 1, 0.5)
    (failure,) = summary.failures
    assert (failure.root, failure.line) == ("OSError: connection # lost", FAILURE.line)
    assert not failure.permanent


def test_what_is_not_settled_has_no_reward() -> None:
    summary = summarize(History(LOG, settled=False))
    assert (summary.reward, summary.turns) == (None, 2)


def test_scoring_that_fails_for_good_is_the_permanent_failure() -> None:
    scoring = structs.replace(FAILURE, phase="scoring")
    summary = summarize(History([*LOG[:-1], ScoringFailed(scoring, 2.0, True)]))
    assert (summary.status, summary.reward) == (Status.FAILED, None)
    assert [failure.permanent for failure in summary.failures] == [False, True]
    assert summary.retried_attempts == 1


def test_a_history_after_records_is_another_one() -> None:
    for cut in range(len(LOG)):
        history = History(LOG[:cut])
        before = summarize(history)
        assert summarize(history.after(LOG[cut:])) == summarize(History(LOG))
        assert summarize(history) == before
        assert vars(history).keys() == vars(History()).keys()
