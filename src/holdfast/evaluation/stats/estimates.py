"""Computes estimates from scores in clusters. Tasks are independent, but the samples of one task
are not.

These are pure functions of numbers, without numpy, and the order of tasks and samples does not
matter. A *cluster* is the scores of one task. With too few data (one task, no rows), the result is
None.
"""

import math
from collections.abc import Iterable, Sequence

from msgspec import Struct

from holdfast.engine.progress.clustered import clustered_error, rounding, sum_of
from holdfast.evaluation.stats.bootstrap import (
    CONFIDENCE,
    SEED,
    Clusters,
    Interval,
    bootstrap_interval,
    counts_all_flips,
    sign_flip_p_value,
)


class Estimate(Struct, frozen=True):
    """A number with its standard error."""

    value: float
    standard_error: float | None
    """The standard error, or None with fewer than two tasks."""
    tasks: int
    rows: int


def clustered_mean(clusters: Clusters) -> Estimate | None:
    """Returns the mean over all N scores, with a standard error that is robust to clusters.

    With G clusters and their residual sums u_g = Σ_i (y_gi - mean): SE = sqrt(G / (G - 1) · Σ_g
    u_g²) / N. This is the cluster-robust (CR1) error of a regression on a constant; with one score
    per task it is s / sqrt(N).
    """
    filled = [list(scores) for _, scores in sorted(clusters.items()) if scores]
    rows = sum(map(len, filled))
    if not rows:
        return None
    mean = _mean([score for scores in filled for score in scores])
    sums = [sum_of(score - mean for score in scores) / rows for scores in filled]
    return Estimate(mean, clustered_error(sums, of=mean), len(filled), rows)


def fixed_set_error(clusters: Clusters) -> float | None:
    """Returns eval-protocol's standard error of a mean. It covers only the samples of a fixed set
    of tasks, with scores of 0 or 1: sqrt(Σ ȳ(1 - ȳ) / max(m - 1, 1)) / tasks. With one sample per
    task, it is always 0."""
    if not clusters:
        return None
    means = [(sum_of(scores) / len(scores), len(scores)) for scores in clusters.values()]
    within = sum_of(mean * (1 - mean) / max(size - 1, 1) for mean, size in means)
    return math.sqrt(max(within, 0.0)) / len(clusters)


# --- pass@k and pass^k


class PassRate(Struct, frozen=True):
    """pass@k or pass^k, as the mean over tasks."""

    k: int
    value: float
    standard_error: float | None
    """The standard deviation of the tasks' values / sqrt(tasks), or None with fewer than two
    tasks."""
    tasks: int
    left_out: int
    """The number of tasks with fewer than k scored samples."""


def pass_at(samples: int, correct: int, k: int) -> float:
    """Returns the chance that at least one of k samples is correct, unbiased: 1 - C(n-c, k) / C(n,
    k)."""
    _check(samples, correct, k)
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


def pass_all(samples: int, correct: int, k: int) -> float:
    """Returns the chance that all of k samples are correct (pass^k), unbiased: C(c, k) / C(n,
    k)."""
    _check(samples, correct, k)
    return math.comb(correct, k) / math.comb(samples, k)


def pass_rate(
    clusters: Clusters,
    k: int,
    *,
    all_of_them: bool = False,
) -> PassRate | None:
    """Returns pass@k (or pass^k) over the tasks with at least k scores, or None without such tasks.
    A score of 1 or more is correct."""
    rate_of_task = pass_all if all_of_them else pass_at
    values = [
        rate_of_task(len(scores), sum(score >= 1.0 for score in scores), k)
        for _, scores in sorted(clusters.items())
        if len(scores) >= k
    ]
    if not values:
        return None
    mean = _mean(values)
    error = clustered_error([(value - mean) / len(values) for value in values], of=mean)
    return PassRate(k, mean, error, len(values), len(clusters) - len(values))


def is_binary(scores: Iterable[float]) -> bool:
    return all(score in (0.0, 1.0) for score in scores)


def bound_when_all_alike(tasks: int) -> float:
    """Returns the largest probability, at 95 % confidence, of an event that occurred in none of the
    tasks: (1 - p)^tasks = 0.05.

    Use it if every task was solved, or if no task was solved, because the standard error is then 0.
    """
    return 1.0 - math.exp(math.log(1.0 - CONFIDENCE) / tasks)


def _check(samples: int, correct: int, k: int) -> None:
    if not (1 <= k <= samples and 0 <= correct <= samples):
        raise ValueError(f"there is no {k} of {samples} samples with {correct} correct")


# --- two runs on the same tasks


class Paired(Struct, frozen=True):
    """The difference of b from a on their common tasks. A positive difference means that b is
    higher."""

    difference: float
    """The mean over tasks of (mean of b's samples - mean of a's)."""
    standard_error: float | None
    interval: Interval | None
    p_value: float | None
    """The p-value of the two-sided sign-flip permutation test: the chance of a difference at least
    this large if a and b were equal. None if no task differs, or with only one task."""
    p_is_exact: bool
    """Whether all patterns of signs were counted, and not only a sample of them."""
    sign_p_value: float | None
    """The p-value of the sign test, which counts only which run won each task."""
    wins: int
    losses: int
    ties: int
    tasks: int
    mean_a: float
    mean_b: float
    only_a: tuple[str, ...]
    """Tasks that only a has a score for. They are left out."""
    only_b: tuple[str, ...]
    by_task: dict[str, float]


def paired(a: Clusters, b: Clusters, *, seed: int = SEED) -> Paired | None:
    """Compares two runs task by task, so that the tasks' difficulty does not count. Returns None
    without common tasks.

    With d_t the difference of the two means of task t, and T tasks: difference = mean of d, SE =
    s_d / sqrt(T); the interval is BCa over tasks.
    """
    with_a = {name for name, scores in a.items() if scores}
    with_b = {name for name, scores in b.items() if scores}
    common = sorted(with_a & with_b)
    if not common:
        return None
    means_a, means_b = ([_mean(run[name]) for name in common] for run in (a, b))
    differences = [_difference(*means) for means in zip(means_a, means_b, strict=True)]
    by_task = dict(zip(common, differences, strict=True))
    clusters = {name: (difference,) for name, difference in by_task.items()}
    estimate = clustered_mean(clusters)
    assert estimate is not None, "there are common tasks"
    wins = sum(difference > 0 for difference in differences)
    losses = sum(difference < 0 for difference in differences)
    return Paired(
        difference=estimate.value,
        standard_error=estimate.standard_error,
        interval=bootstrap_interval(clusters, seed=seed),
        p_value=sign_flip_p_value(differences, seed=seed),
        p_is_exact=counts_all_flips(differences),
        sign_p_value=sign_test_p_value(wins, losses),
        wins=wins,
        losses=losses,
        ties=len(common) - wins - losses,
        tasks=len(common),
        mean_a=_mean(means_a),
        mean_b=_mean(means_b),
        only_a=tuple(sorted(with_a - with_b)),
        only_b=tuple(sorted(with_b - with_a)),
        by_task=by_task,
    )


def sign_test_p_value(wins: int, losses: int) -> float | None:
    """Returns min(1, 2 · P(X ≤ min(wins, losses))) with X ~ Binomial(wins + losses, 1/2). Ties do
    not count."""
    trials = wins + losses
    if not trials:
        return None
    ways = tail = 1
    for hits in range(min(wins, losses)):
        ways = ways * (trials - hits) // (hits + 1)
        tail += ways
    # Integers, because with thousands of tasks both numbers are too large for floats.
    return min(1.0, tail / (1 << (trials - 1)))


def _difference(before: float, after: float) -> float:
    """Returns the difference. If it is only a rounding error, returns 0, so that it counts as a
    tie."""
    change = after - before
    return 0.0 if abs(change) <= rounding(max(abs(before), abs(after))) else change


def _mean(scores: Sequence[float]) -> float:
    return sum_of(scores) / len(scores)
