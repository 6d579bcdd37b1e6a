"""One number for a run, and whether it is enough."""

import math

import pytest

from holdfast.evaluation.stats.estimates import clustered_mean
from holdfast.evaluation.stats.results import Results, RowResult
from holdfast.evaluation.stats.verdict import Aggregation, Threshold, verdict_of
from holdfast.records.errors import UsageError
from support.evaluation.graded_runs import (
    failed,
    failed_to_score,
    results,
    retried,
    running,
    scored,
    truncated,
    unscored,
)


def graded(*scores, samples=1, num_runs=1):
    """Tasks of `samples` scores each."""
    rows = [
        RowResult(f"t{place // samples}", place % samples, score=score)
        for place, score in enumerate(scores)
    ]
    return Results("run", tuple(rows), samples=samples, num_runs=num_runs)


def test_the_score_is_the_mean_with_the_clustered_error():
    grade = graded(1, 0, 1, 1, 0, 0, samples=2)
    verdict = verdict_of(grade)
    expected = clustered_mean({"t0": [1, 0], "t1": [1, 1], "t2": [0, 0]})
    assert verdict.score == expected.value == 0.5
    assert verdict.standard_error == pytest.approx(expected.standard_error)
    low, high = verdict.interval
    assert 0 <= low < 0.5 < high <= 1
    assert (verdict.tasks, verdict.rows, verdict.scored) == (3, 6, 6)


def test_failures_are_in_no_mean_and_are_counted_by_cause():
    report = results(
        {"a": [scored(1.0), failed(), failed()], "b": [scored(0.0), failed_to_score(), running()]}
    )
    verdict = verdict_of(report)
    assert verdict.score == 0.5
    assert (verdict.failed, verdict.failed_by_cause) == (3, {"infrastructure": 2, "code": 1})
    assert (verdict.scored, verdict.unsettled, verdict.rows) == (2, 1, 6)


def test_truncations_are_the_policy_s_own_and_are_scored():
    report = results(
        {"a": [truncated(0.0), truncated(1.0)], "b": [truncated(0.5, "max_tokens")] * 2}
    )
    verdict = verdict_of(report)
    assert verdict.score == 0.5
    assert verdict.truncated_by_reason == {"max_tokens": 2, "max_turns": 2}
    assert (verdict.truncated, verdict.failed, verdict.failed_by_cause) == (4, 0, {})


def test_disturbed_scores_stand_beside_clean_ones():
    verdict = verdict_of(results({"a": [scored(1.0), retried(0.0)], "b": [scored(0.5), failed()]}))
    assert (verdict.clean.value, verdict.clean.rows) == (0.75, 2)
    assert (verdict.disturbed.value, verdict.disturbed.rows) == (0.0, 1)


def test_an_invalid_score_is_counted_as_none():
    verdict = verdict_of(
        results({"a": [scored(None), scored(1.0)], "b": [unscored(), scored(0.0)]})
    )
    assert (verdict.score, verdict.scored, verdict.unscored) == (0.5, 2, 2)


# --- several runs


@pytest.mark.parametrize(
    ("method", "score"), [("mean", 0.5), ("max", 0.75), ("min", 0.25), ("bootstrap", 0.5)]
)
def test_runs_are_averaged_first_and_then_aggregated(method, score):
    # run 0 has 1, 0, 0, 0; run 1 has 1, 1, 1, 0
    grade = graded(1, 1, 0, 1, 0, 1, 0, 0, samples=2, num_runs=2)
    verdict = verdict_of(grade, aggregation=method)
    assert verdict.run_scores == (0.25, 0.75)
    assert verdict.score == pytest.approx(score, abs=0.01 if method == "bootstrap" else 1e-12)
    assert verdict.aggregation is Aggregation(method)
    low, high = verdict.interval
    assert low <= verdict.score <= high
    assert verdict.standard_error > 0


def test_the_error_of_the_mean_of_equal_runs_is_the_clustered_one():
    grade = graded(1, 1, 0, 1, 0, 1, 0, 0, samples=2, num_runs=2)
    assert verdict_of(grade).standard_error == pytest.approx(
        clustered_mean(grade.by_task()).standard_error
    )


def test_a_run_with_fewer_scores_weighs_as_much_as_the_others():
    grade = graded(1, 0, 1, None, 1, None, samples=2, num_runs=2)
    verdict = verdict_of(grade)
    assert verdict.run_scores == (1.0, 0.0)
    assert verdict.score == 0.5
    # Task 0 moves it by (0 + 0), no other moves it: every run agrees with itself.
    assert verdict.standard_error == 0.0


def test_the_bootstrap_s_own_error_is_near_the_formula_s():
    grade = graded(*[place % 3 / 2 for place in range(90)])
    mean, boot = verdict_of(grade), verdict_of(grade, aggregation="bootstrap")
    assert boot.standard_error == pytest.approx(mean.standard_error, rel=0.05)
    assert boot.interval == mean.interval


def test_an_unknown_aggregation_is_refused_with_the_known_ones():
    with pytest.raises(UsageError, match="no aggregation 'median'; there is mean, max, min, boot"):
        verdict_of(graded(1), aggregation="median")


# --- pass@k


def test_rates_are_there_for_binary_scores_of_several_samples():
    verdict = verdict_of(graded(1, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, samples=4))
    assert [rate.k for rate in verdict.pass_at] == [1, 2, 4]
    assert verdict.pass_at[0].value == pytest.approx(verdict.score)
    assert [rate.value for rate in verdict.pass_all] == pytest.approx([5 / 12, 1 / 3, 1 / 3])
    assert verdict.binary


def test_all_samples_are_a_k_even_where_they_are_no_power_of_two():
    verdict = verdict_of(graded(1, 0, 1, 1, 0, 0, samples=3))
    assert [rate.k for rate in verdict.pass_at] == [1, 2, 3]


def test_there_are_no_rates_of_single_samples_or_of_partial_scores():
    assert verdict_of(graded(1, 0, 1)).pass_at == ()
    assert verdict_of(graded(1, 0.5, 1, 0, samples=2)).pass_all == ()


# --- the threshold


def clustered(error: float) -> Threshold:
    return Threshold(0.5, clustered_standard_error=error)


def test_without_a_threshold_there_is_no_verdict():
    verdict = verdict_of(graded(1, 0))
    assert (verdict.passed, verdict.reason) == (None, "")


@pytest.mark.parametrize(
    ("threshold", "passed", "arguments"),
    [
        (Threshold(0.5), True, "score 0.5 reaches the threshold of 0.5"),
        (Threshold(0.51), False, "score 0.5 is below the threshold of 0.51"),
        (Threshold(0.0), True, "reaches the threshold of 0"),
        (Threshold(0.5, 0.0), True, "standard error (of a fixed set) of 0 (of 0 that is allowed)"),
        (clustered(0.3), True, "clustered standard error of 0.288675 (of 0.3 that is allowed)"),
        (clustered(0.2), False, "its clustered standard error 0.288675 is above the 0.2 that is"),
        (clustered(0.0), False, "above the 0 that is allowed"),
    ],
)
def test_a_threshold_decides_and_says_why(threshold, passed, arguments):
    verdict = verdict_of(graded(0, 0, 1, 1), threshold=threshold)
    assert verdict.passed is passed
    assert arguments in verdict.reason


def test_a_threshold_in_percent_is_named_where_scores_are_shares():
    verdict = verdict_of(graded(1, 0), threshold=Threshold(80))
    text = (
        "score 0.5 is below the threshold of 80, and no score is above 1 (in shares, 80 % is 0.8)"
    )
    assert verdict.reason == text
    beyond = verdict_of(graded(1, 0), threshold=Threshold(1.5))
    assert beyond.reason == "score 0.5 is below the threshold of 1.5, and no score is above 1"
    points = verdict_of(graded(70, 0), threshold=Threshold(80))
    assert points.reason == "score 35 is below the threshold of 80"


def test_a_near_miss_does_not_look_like_a_hit():
    verdict = verdict_of(graded(0.79999, 0.79999), threshold=Threshold(0.8))
    assert verdict.reason == "score 0.79999 is below the threshold of 0.8"


def test_an_error_that_is_not_known_does_not_pass_a_bound():
    verdict = verdict_of(graded(1, 1, samples=2), threshold=clustered(0.1))
    assert verdict.standard_error is None
    assert not verdict.passed
    assert "with one task its clustered standard error is unknown" in verdict.reason


@pytest.mark.parametrize(
    ("scores", "samples", "expected"),
    [
        ((1, 0, 1, 1), 1, 0.0),
        ((1, 0, 1, 1), 2, 0.25),  # sqrt(0.5 · 0.5 / 1) / 2
        ((1, 0, 0, 0), 4, 0.25),  # sqrt(0.25 · 0.75 / 3) / 1
        ((0.5, 0.5), 1, math.sqrt(0.5) / 2),
        ((3, 3), 2, 0.0),
    ],
)
def test_eval_protocols_standard_error_keeps_its_meaning(scores, samples, expected):
    verdict = verdict_of(graded(*scores, samples=samples), threshold=Threshold(0.0, expected))
    assert verdict.fixed_set_error == pytest.approx(expected, abs=1e-9)
    assert verdict.passed is True
    if expected:
        tight = verdict_of(
            graded(*scores, samples=samples), threshold=Threshold(0.0, expected - 0.01)
        )
        assert tight.passed is False


def test_only_a_mean_has_eval_protocols_standard_error():
    grade = graded(1, 0, 0, 1, samples=2)
    verdict = verdict_of(grade, aggregation="bootstrap", threshold=Threshold(0.0, 0.0))
    assert (verdict.fixed_set_error, verdict.passed) == (None, True)


# --- what else fails a test


def test_rows_that_failed_for_good_fail_the_verdict_of_a_test():
    report = results({"a": [failed(), scored(1.0)]})
    reached = verdict_of(report, threshold=Threshold(0.5), failures_fail=True)
    assert (reached.passed, reached.reached) == (False, True)
    assert reached.reason.endswith("of 0.5, but 1 of 2 rows failed for good")
    assert verdict_of(report, threshold=Threshold(0.5), failures_fail=False).passed is True
    bare = verdict_of(report, failures_fail=True)
    assert (bare.passed, bare.reason) == (False, "1 of 2 rows failed for good")
    assert verdict_of(report).passed is None, "nobody asked"


def test_a_test_without_a_score_has_failed():
    verdict = verdict_of(results({"a": [unscored()]}), failures_fail=False)
    assert verdict.passed is False
    assert verdict.reason == "no row has a score (1 not scored)"


def test_no_score_at_all_does_not_pass_and_says_why():
    report = results({"a": [failed(), running()], "b": [unscored(), failed()]})
    verdict = verdict_of(report, threshold=Threshold(0.0))
    assert (verdict.score, verdict.passed) == (None, False)
    assert verdict.reason == "no row has a score (2 failed for good, 1 not settled, 1 not scored)"
    empty = verdict_of(Results("run", ()), threshold=Threshold(0.0))
    assert empty.reason == "no row has a score (there are no rows)"


def test_a_threshold_that_is_no_number_is_refused():
    with pytest.raises(UsageError, match="success must be a finite number"):
        Threshold(math.nan)
    with pytest.raises(UsageError, match="standard_error must be 0 or more"):
        Threshold(0.5, -0.1)


def test_the_order_of_rows_changes_nothing():
    grade = graded(1, 0, 0, 1, 1, 0.5, samples=2)
    turned = Results("run", tuple(reversed(grade.rows)), samples=2)
    assert verdict_of(turned) == verdict_of(grade)


def test_a_score_that_equals_its_threshold_reaches_it() -> None:
    results = Results("run", tuple(RowResult(f"t{n}", 0, score=0.02) for n in range(29)))
    verdict = verdict_of(results, threshold=Threshold(0.02))
    assert verdict.passed, verdict.reason
    assert verdict_of(results, threshold=Threshold(0.0201)).passed is False
