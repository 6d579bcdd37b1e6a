"""What holds of any scores."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import settings as options
from hypothesis import strategies as st

from holdfast.evaluation.stats.bootstrap import (
    bootstrap,
    bootstrap_interval,
    sign_flip_p_value,
    totals_of,
)
from holdfast.evaluation.stats.estimates import clustered_mean, paired, pass_all, pass_at, pass_rate

SCORES = st.floats(-100, 100, allow_nan=False).map(lambda score: round(score, 6))
CLUSTERS = st.dictionaries(st.text(max_size=4), st.lists(SCORES, max_size=4), max_size=8)
BINARY = st.dictionaries(
    st.text(max_size=4), st.lists(st.sampled_from([0.0, 1.0]), min_size=3, max_size=6), max_size=6
)
FEW = 200


def shuffled(clusters, seed):
    order = random.Random(seed)
    names = list(clusters)
    order.shuffle(names)
    return {name: order.sample(clusters[name], len(clusters[name])) for name in names}


@given(CLUSTERS, st.integers())
def test_no_order_changes_a_mean(clusters, seed):
    first, other = clustered_mean(clusters), clustered_mean(shuffled(clusters, seed))
    assert (first is None) == (other is None)
    if first is not None:
        assert other.value == pytest.approx(first.value, abs=1e-9)
        assert other.standard_error == pytest.approx(first.standard_error, abs=1e-9)


@given(CLUSTERS)
def test_a_mean_lies_among_its_scores_and_its_error_is_no_nan(clusters):
    estimate = clustered_mean(clusters)
    scores = [score for cluster in clusters.values() for score in cluster]
    assert (estimate is None) == (not scores)
    if estimate is not None:
        assert min(scores) - 1e-9 <= estimate.value <= max(scores) + 1e-9
        tasks = sum(bool(cluster) for cluster in clusters.values())
        assert (estimate.standard_error is None) == (tasks < 2)
        assert estimate.standard_error is None or estimate.standard_error >= 0


@given(CLUSTERS)
def test_tasks_that_are_there_twice_shrink_the_error_as_they_should(clusters):
    filled = {name: scores for name, scores in clusters.items() if scores}
    estimate = clustered_mean(filled)
    if estimate is None or estimate.standard_error is None:
        return
    twice = clustered_mean(filled | {f"{name}/again": scores for name, scores in filled.items()})
    tasks = len(filled)
    shrunk = estimate.standard_error * math.sqrt((tasks - 1) / (2 * tasks - 1))
    assert twice.value == pytest.approx(estimate.value, abs=1e-9)
    assert twice.standard_error == pytest.approx(shrunk, abs=1e-9)


@given(CLUSTERS, st.integers())
@options(max_examples=40)
def test_no_order_changes_an_interval(clusters, seed):
    first = bootstrap_interval(clusters, resamples=FEW)
    assert bootstrap_interval(shuffled(clusters, seed), resamples=FEW) == pytest.approx(
        first, abs=1e-6
    )


@given(CLUSTERS)
@options(max_examples=60)
def test_an_interval_is_in_order_and_among_the_scores(clusters):
    interval = bootstrap(totals_of([clusters]), resamples=FEW)
    scores = [score for cluster in clusters.values() for score in cluster]
    if interval is None:
        assert sum(bool(cluster) for cluster in clusters.values()) < 2
        return
    low, high = interval.interval
    assert min(scores) - 1e-6 <= low <= high <= max(scores) + 1e-6
    assert interval.standard_error >= 0


@given(SCORES, st.integers(2, 9), st.integers(1, 3))
def test_equal_scores_have_a_point_for_an_interval(score, tasks, samples):
    clusters = {str(place): [score] * samples for place in range(tasks)}
    assert bootstrap_interval(clusters, resamples=FEW) == pytest.approx((score, score))
    assert clustered_mean(clusters).standard_error == pytest.approx(0, abs=1e-9)


@given(BINARY.filter(bool))
def test_of_one_sample_both_rates_are_the_mean_of_the_tasks(clusters):
    means = [sum(scores) / len(scores) for scores in clusters.values()]
    mean = pytest.approx(sum(means) / len(means))
    assert pass_rate(clusters, 1).value == mean
    assert pass_rate(clusters, 1, all_of_them=True).value == mean


@given(BINARY.filter(bool))
def test_more_tries_find_more_and_agree_less(clusters):
    at = [pass_rate(clusters, k).value for k in (1, 2, 3)]
    together = [pass_rate(clusters, k, all_of_them=True).value for k in (1, 2, 3)]
    assert at == sorted(at)
    assert together == sorted(together, reverse=True)
    assert all(low <= high + 1e-12 for low, high in zip(together, at, strict=True))


@given(st.integers(1, 60), st.data())
def test_both_rates_mirror_each_other(samples, data):
    correct, k = data.draw(st.integers(0, samples)), data.draw(st.integers(1, samples))
    missed = pass_all(samples, samples - correct, k)
    assert pass_at(samples, correct, k) == pytest.approx(1 - missed)


@given(st.lists(SCORES, max_size=16))
@options(max_examples=60)
def test_a_p_value_is_a_chance_and_does_not_know_which_run_came_first(differences):
    value = sign_flip_p_value(differences)
    mirrored = sign_flip_p_value([-difference for difference in differences])
    assert value == mirrored
    assert value is None or 0 < value <= 1


@given(CLUSTERS, CLUSTERS)
@options(max_examples=40)
def test_a_comparison_turned_round_changes_its_sign(a, b):
    difference, other = paired(a, b), paired(b, a)
    assert (difference is None) == (other is None)
    if difference is not None:
        assert other.difference == pytest.approx(-difference.difference, abs=1e-9)
        assert (difference.wins, difference.losses, difference.ties) == (
            other.losses,
            other.wins,
            other.ties,
        )
        assert difference.p_value == other.p_value
        assert set(difference.only_a).isdisjoint(difference.only_b)
