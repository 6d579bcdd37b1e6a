"""Known answers: by hand, from statsmodels 0.15 and from scipy 1.17."""

import math
from itertools import product
from random import Random

import pytest

from holdfast.evaluation.stats.bootstrap import (
    bootstrap,
    bootstrap_interval,
    counts_all_flips,
    resamples_for,
    sign_flip_p_value,
    totals_of,
)
from holdfast.evaluation.stats.estimates import (
    bound_when_all_alike,
    clustered_mean,
    is_binary,
    paired,
    pass_all,
    pass_at,
    pass_rate,
    sign_test_p_value,
)

UNEVEN = {"a": [1, 0, 1], "b": [0.5], "c": [0, 0, 0.25, 1], "d": [1, 1]}
TWELVE = [0.3, 0.9, 0.1, 0.4, 0.8, 0.7, 0.2, 0.95, 0.5, 0.6, 0.35, 0.05]
SKEWED = [0.3, 0.9, 0.1, 2.4, 0.8, 0.7, 0.2, 0.95, 0.5, 0.6, 0.35, 0.05]
EIGHT = [0.25, -0.1, 0.5, 0.0, 0.3, -0.05, 0.2, 0.15]
# numpy: default_rng(0).normal(.08, .3, 40).round(3)
FORTY = [
    0.118, 0.04, 0.272, 0.111, -0.081, 0.188, 0.471, 0.364, -0.131, -0.3, -0.107, 0.092, -0.618,
    0.014, -0.294, -0.14, -0.083, -0.015, 0.203, 0.393, 0.041, 0.49, -0.12, 0.185, 0.351, 0.108,
    -0.143, -0.197, -0.057, 0.146, -0.223, 0.017, 0.032, 0.242, 0.144, 0.187, -0.116, 0.041, 0.315,
    0.528,
]  # fmt: skip


def singles(scores):
    return {f"t{place}": [score] for place, score in enumerate(scores)}


# --- the mean


def test_the_error_of_a_mean_is_that_of_a_cluster_robust_regression():
    estimate = clustered_mean(UNEVEN)
    assert estimate.value == pytest.approx(0.575)
    # statsmodels: OLS(y, ones).fit(cov_type="cluster", cov_kwds={"groups": task}).bse
    assert estimate.standard_error == pytest.approx(0.15942605391424153, rel=1e-12)
    assert (estimate.tasks, estimate.rows) == (4, 10)


def test_with_one_score_per_task_the_error_is_the_textbook_s():
    estimate = clustered_mean(singles([0, 0, 1, 1]))
    assert estimate.value == 0.5
    assert estimate.standard_error == pytest.approx(math.sqrt(1 / 3) / 2)


def test_samples_that_repeat_each_other_are_no_more_evidence():
    once, often = (
        clustered_mean(singles(TWELVE)),
        clustered_mean({name: scores * 10 for name, scores in singles(TWELVE).items()}),
    )
    assert often.value == pytest.approx(once.value)
    assert often.standard_error == pytest.approx(once.standard_error)
    assert often.rows == 10 * once.rows


def test_one_task_has_a_mean_and_no_error_and_none_has_nothing():
    alone = clustered_mean({"a": [0.0, 1.0, 1.0, 1.0]})
    assert (alone.value, alone.standard_error) == (0.75, None)
    assert clustered_mean({}) is None
    assert clustered_mean({"a": []}) is None


# --- pass@k and pass^k


@pytest.mark.parametrize(
    ("samples", "correct", "k", "any_of_them", "all_of_them"),
    [
        (4, 2, 1, 1 / 2, 1 / 2),
        (4, 2, 2, 5 / 6, 1 / 6),  # of 6 pairs, one has none correct, one has both
        (4, 2, 4, 1.0, 0.0),
        (10, 3, 5, 1 - 21 / 252, 0.0),
        (10, 7, 3, 1 - 1 / 120, 35 / 120),
        (5, 0, 3, 0.0, 0.0),
        (5, 5, 3, 1.0, 1.0),
        (1, 1, 1, 1.0, 1.0),
    ],
)
def test_the_chance_of_k_samples_counts_subsets(samples, correct, k, any_of_them, all_of_them):
    assert pass_at(samples, correct, k) == pytest.approx(any_of_them)
    assert pass_all(samples, correct, k) == pytest.approx(all_of_them)


def test_a_pass_rate_is_a_mean_over_tasks_with_their_error():
    rate = pass_rate({"a": [1, 1, 0, 0], "b": [0, 0, 0, 0], "c": [1, 1, 1, 1]}, 2)
    assert rate.value == pytest.approx((5 / 6 + 0 + 1) / 3)
    spread = [5 / 6, 0, 1]
    mean = sum(spread) / 3
    assert rate.standard_error == pytest.approx(
        math.sqrt(sum((item - mean) ** 2 for item in spread) / 2) / math.sqrt(3)
    )
    assert (rate.tasks, rate.left_out) == (3, 0)


def test_a_task_with_too_few_samples_is_left_out_and_told():
    rate = pass_rate({"a": [1, 0], "b": [1], "c": [0, 0]}, 2, all_of_them=True)
    assert (rate.value, rate.tasks, rate.left_out) == (0.0, 2, 1)
    assert pass_rate({"a": [1]}, 2) is None


def test_more_samples_than_there_are_is_a_mistake():
    with pytest.raises(ValueError, match="there is no 5 of 4 samples"):
        pass_at(4, 2, 5)
    with pytest.raises(ValueError, match="there is no 0 of 4"):
        pass_all(4, 2, 0)


def test_thousands_of_samples_overflow_nothing():
    assert pass_at(5_000, 1, 2_500) == pytest.approx(0.5)
    assert pass_all(5_000, 4_999, 2_500) == pytest.approx(0.5)


def test_where_all_tasks_are_alike_a_bound_is_left():
    # The rule of three: 3 / n, nearly.
    assert bound_when_all_alike(100) == pytest.approx(0.0295130, abs=1e-6)
    assert bound_when_all_alike(1) == pytest.approx(0.95)


def test_only_zeros_and_ones_are_binary():
    assert is_binary([0, 1, 1.0, 0.0])
    assert not is_binary([0, 0.5])


# --- the bootstrap


def test_the_bootstrap_agrees_with_scipy():
    # scipy.stats.bootstrap(…, method="BCa", n_resamples=200_000): (0.3250, 0.6542), SE 0.08430
    interval = bootstrap(totals_of([singles(TWELVE)]))
    assert interval.resamples == 10_000
    assert interval.interval == pytest.approx((0.3250, 0.6542), abs=0.012)
    assert interval.standard_error == pytest.approx(0.08430, rel=0.02)
    assert interval.mean == pytest.approx(sum(TWELVE) / 12, abs=0.003)


def test_a_skewed_sample_gets_a_skewed_interval_as_in_scipy():
    # (1.613, 5.547) with 400,000 resamples; percentiles alone would give (1.4, 4.1).
    low, high = bootstrap_interval(singles(map(math.exp, SKEWED)))
    assert low == pytest.approx(1.613, abs=0.03)
    assert high == pytest.approx(5.547, abs=0.12)


@pytest.mark.parametrize("right", [1, 6, 20, 39])
def test_two_kinds_of_tasks_are_drawn_as_any_others_are(right):
    """Right and wrong are drawn by a shortcut, which a third kind that hardly differs forbids."""
    plain = [1.0] * right + [0.0] * (40 - right)
    short = bootstrap(totals_of([singles(plain)]))
    long = bootstrap(totals_of([singles([*plain[:-1], 1e-7])]))
    assert short.mean == pytest.approx(long.mean, abs=0.004)
    assert short.standard_error == pytest.approx(long.standard_error, rel=0.04)
    assert short.interval == pytest.approx(long.interval, abs=0.026), "one task is 0.025"


def test_the_same_scores_give_the_same_interval_and_another_seed_nearly_so():
    totals = totals_of([singles(TWELVE)])
    first, other = bootstrap(totals), bootstrap(totals, seed=1)
    assert first == bootstrap(totals)
    assert other.mean != first.mean
    assert other.interval == pytest.approx(first.interval, abs=0.02)


def test_tasks_are_drawn_whole():
    """Ten copies of each score would shrink an interval that drew rows."""
    copied = {name: scores * 10 for name, scores in singles(TWELVE).items()}
    assert bootstrap_interval(copied) == pytest.approx(bootstrap_interval(singles(TWELVE)))


def test_of_several_runs_each_resample_draws_the_same_tasks():
    run = singles(TWELVE)
    interval, both = bootstrap(totals_of([run])), bootstrap(totals_of([run, run]), combine=max)
    assert both.interval == pytest.approx(interval.interval)
    higher = {name: [scores[0] + 0.1] for name, scores in run.items()}
    best = bootstrap(totals_of([run, higher]), combine=max)
    assert best.interval == pytest.approx([end + 0.1 for end in interval.interval])


@pytest.mark.parametrize("tasks", [10, 30])
def test_the_interval_holds_the_truth_about_as_often_as_it_says(tasks):
    """Tasks of another difficulty each, four binary samples of each; the true mean is a half."""
    random = Random(tasks)
    held = 0
    for _ in range(200):
        chances = [random.random() for _ in range(tasks)]
        run = {
            str(i): [float(random.random() < p) for _ in range(4)] for i, p in enumerate(chances)
        }
        low, high = bootstrap_interval(run, resamples=300)
        held += low <= 0.5 <= high
    assert 0.90 <= held / 200 <= 0.99


def test_one_task_has_no_interval_and_equal_scores_a_point():
    assert bootstrap_interval({"a": [0, 1, 1]}) is None
    assert bootstrap_interval({}) is None
    assert bootstrap_interval(singles([0.1] * 7)) == pytest.approx((0.1, 0.1))


def test_what_is_drawn_is_bounded():
    assert [resamples_for(tasks) for tasks in (2, 100, 400, 1_000, 50_000)] == [
        10_000, 10_000, 2_500, 1_000, 1_000,
    ]  # fmt: skip
    rows = singles([place % 7 / 6 for place in range(5_000)])
    assert bootstrap(totals_of([rows])).resamples == 1_000
    assert paired(rows, singles([place % 5 / 4 for place in range(5_000)])).tasks == 5_000


# --- two runs


def test_the_sign_flips_agree_with_scipy():
    # scipy.stats.permutation_test(…, permutation_type="samples"), exact
    assert sign_flip_p_value(EIGHT) == pytest.approx(0.078125)
    # … and with 400,000 resamples: 0.1129
    assert sign_flip_p_value(FORTY) == pytest.approx(0.1129, abs=0.002)


def test_differences_of_shares_are_counted_exactly_however_many_they_are():
    wins_and_losses = [1.0] * 30 + [-1.0] * 20 + [0.0] * 50
    assert sign_flip_p_value(wins_and_losses) == pytest.approx(sign_test_p_value(30, 20))
    assert sign_flip_p_value([1.0] * 40) == 2 / 2**40
    twice = [0.1] * 7 + [-0.3] * 4
    patterns = [
        sum(s * v for s, v in zip(signs, twice, strict=True))
        for signs in product((1, -1), repeat=11)
    ]
    share = sum(abs(value) >= 0.5 - 1e-9 for value in patterns) / len(patterns)
    assert sign_flip_p_value(twice) == pytest.approx(share)
    assert counts_all_flips(twice)
    assert not counts_all_flips([math.sqrt(place) for place in range(1, 40)])


def test_the_sign_test_agrees_with_scipy():
    assert sign_test_p_value(5, 2) == pytest.approx(0.453125)
    assert sign_test_p_value(2, 10) == pytest.approx(0.03857421875)
    assert sign_test_p_value(0, 0) is None
    assert sign_test_p_value(3, 3) == 1.0
    assert sign_test_p_value(3_000, 2_000) < 1e-40


def test_a_comparison_is_that_of_the_tasks_means():
    a = {f"t{place}": [0.0, 0.2] for place in range(8)}
    b = {f"t{place}": [0.1 + change] * 3 for place, change in enumerate(EIGHT)}
    difference = paired(a, b)
    assert difference.difference == pytest.approx(0.15625)
    assert difference.standard_error == pytest.approx(0.07098635432250343)
    assert difference.p_value == pytest.approx(0.078125)
    assert (difference.wins, difference.losses, difference.ties, difference.tasks) == (5, 2, 1, 8)
    assert (difference.mean_a, difference.mean_b) == (pytest.approx(0.1), pytest.approx(0.25625))
    low, high = difference.interval
    assert low < difference.difference < high
    assert difference.by_task["t2"] == pytest.approx(0.5)


def test_tasks_of_one_side_are_told_and_left_out():
    difference = paired({"a": [1], "b": [0], "x": [1]}, {"a": [0], "b": [0], "y": [1], "z": []})
    assert (difference.only_a, difference.only_b, difference.tasks) == (("x",), ("y",), 2)
    assert difference.difference == -0.5
    assert paired({"a": [1]}, {"b": [1]}) is None


def test_one_common_task_has_a_difference_and_no_certainty():
    difference = paired({"a": [1, 0]}, {"a": [1, 1]})
    assert difference.difference == 0.5
    assert (difference.standard_error, difference.interval, difference.p_value) == (
        None,
        None,
        None,
    )


def test_runs_that_agree_everywhere_have_no_p_value():
    difference = paired(singles(TWELVE), singles(TWELVE))
    assert (difference.difference, difference.standard_error, difference.p_value) == (
        0.0,
        0.0,
        None,
    )
    assert (difference.interval, difference.ties) == ((0.0, 0.0), 12)
