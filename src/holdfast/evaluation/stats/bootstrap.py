"""Resamples scores for the cluster bootstrap and for the permutation test of differences.

All random numbers come from the argument `seed`. So the same scores give the same numbers in every
process. The names and the order of the tasks do not matter. The number of draws is bounded, so that
thousands of tasks take a second and not minutes.
"""

import math
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, compress
from random import Random
from statistics import NormalDist

from msgspec import Struct

from holdfast.engine.progress.clustered import rounding

CONFIDENCE = 0.95
SEED = 0
MAX_RESAMPLES = 10_000
MIN_RESAMPLES = 1_000
MAX_DRAWS = 1_000_000
"""The number of tasks that all resamples together draw. With many tasks, there are fewer
resamples."""
EXACT_FLIPS = 12
"""Up to this number of differences, every pattern of signs is counted."""
MAX_PARTS = 60
"""Into how many parts the smallest difference is divided to find a common measure."""
MAX_COUNTING = 200_000_000
"""How many bits the exact count of patterns may work through."""
_NORMAL = NormalDist()
_BITS = bytes.maketrans(b"01", b"\x00\x01")

Clusters = Mapping[str, Sequence[float]]
"""The scores of each task."""
Interval = tuple[float, float]
Totals = tuple[complex, ...]
"""The sums of one task: for each run, the sum of its scores and, as the imaginary part, their
number. One addition adds both, which halves the time of a resample."""
Combine = Callable[[list[float]], float]


class Bootstrap(Struct, frozen=True):
    """The error of an estimate, from resampled tasks."""

    mean: float
    """The mean of the resampled estimates."""
    standard_error: float
    """The standard deviation of the resampled estimates."""
    interval: Interval
    resamples: int


def totals_of(runs: Sequence[Clusters]) -> list[Totals]:
    """Returns one entry for each task that has a score in any run."""
    names = sorted({name for run in runs for name, scores in run.items() if scores})
    return [
        tuple(complex(math.fsum(run.get(name, ())), len(run.get(name, ()))) for run in runs)
        for name in names
    ]


def mean_of_runs(means: list[float]) -> float:
    return means[0] if len(means) == 1 else math.fsum(means) / len(means)


def bootstrap(
    totals: Sequence[Totals],
    *,
    combine: Combine = mean_of_runs,
    seed: int = SEED,
    resamples: int | None = None,
) -> Bootstrap | None:
    """Runs the cluster bootstrap, which draws tasks with replacement, each with all of its samples.

    The interval is BCa (bias-corrected and accelerated). Its ends are percentiles of the resampled
    estimates, shifted by two numbers. The number z0 comes from the rank of the estimate among the
    resampled ones, with ties counted half. The number a comes from the estimates that leave out one
    task at a time. Returns None with fewer than two tasks.
    """
    if len(totals) < 2:
        return None
    estimate = _combine_sums(_sum(totals), combine)
    values = sorted(_resample(totals, combine, seed=seed, resamples=resamples))
    mean = math.fsum(values) / len(values)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
    if values[-1] - values[0] <= rounding(estimate):
        return Bootstrap(estimate, 0.0, (estimate, estimate), len(values))
    interval = _bca(values, estimate, _jackknife(totals, combine))
    return Bootstrap(mean, spread, interval, len(values))


def bootstrap_interval(
    clusters: Clusters,
    *,
    seed: int = SEED,
    resamples: int | None = None,
) -> Interval | None:
    """Returns the BCa interval of the mean over all scores, or None with fewer than two tasks."""
    interval = bootstrap(totals_of([clusters]), seed=seed, resamples=resamples)
    return None if interval is None else interval.interval


def resamples_for(tasks: int) -> int:
    """Returns the number of resamples: 10,000 for up to 100 tasks, then as many as draw a million
    tasks, but at least 1,000."""
    return max(MIN_RESAMPLES, min(MAX_RESAMPLES, MAX_DRAWS // max(1, tasks)))


def _resample(
    totals: Sequence[Totals], combine: Combine, *, seed: int, resamples: int | None
) -> list[float]:
    random, tasks = Random(seed), len(totals)
    times = resamples or resamples_for(tasks)
    if len(totals[0]) == 1:  # With one run, each tuple has one member.
        # Sorted, so that the names of tasks do not change the numbers.
        flat = sorted((total[0] for total in totals), key=_sort_key)
        if len(kinds := sorted(set(flat), key=_sort_key)) == 1:
            sums = [tasks * kinds[0]] * times
        elif len(kinds) == 2:
            sums = _two_kinds(random, kinds, [flat.count(kind) for kind in kinds], times=times)
        else:
            sums = [sum(random.choices(flat, k=tasks)) for _ in range(times)]
        return [combine([total.real / total.imag]) for total in sums]
    ordered = sorted(totals, key=lambda total: [_sort_key(part) for part in total])
    draws = (random.choices(ordered, k=tasks) for _ in range(times))
    return [_combine_sums(_sum(draw), combine) for draw in draws]


def _two_kinds(
    random: Random, kinds: Sequence[complex], counts: Sequence[int], *, times: int
) -> list[complex]:
    """Returns the sums of resamples of tasks that have only two results, such as right and wrong.

    Among n drawn tasks, the number with the second result is Binomial(n, its share). Drawing from
    that distribution is a hundred times faster than drawing n tasks.
    """
    first, second = kinds
    tasks, share = sum(counts), counts[1] / sum(counts)
    chances = accumulate(
        math.exp(
            math.lgamma(tasks + 1)
            - math.lgamma(hits + 1)
            - math.lgamma(tasks - hits + 1)
            + hits * math.log(share)
            + (tasks - hits) * math.log1p(-share)
        )
        for hits in range(tasks + 1)
    )
    below = list(chances)
    drawn = (min(bisect(below, random.random()), tasks) for _ in range(times))
    return [(tasks - hits) * first + hits * second for hits in drawn]


def _sort_key(total: complex) -> Interval:
    return total.real, total.imag


def _sum(totals: Sequence[Totals]) -> Totals:
    return tuple(map(sum, zip(*totals, strict=True)))


def _combine_sums(sums: Totals, combine: Combine) -> float:
    """Combines the means of the runs. A run that has none of the drawn tasks is left out."""
    return combine([total.real / total.imag for total in sums if total.imag])


def _jackknife(totals: Sequence[Totals], combine: Combine) -> list[float]:
    whole = _sum(totals)
    values = []
    for task in totals:
        rest = tuple(a - b for a, b in zip(whole, task, strict=True))
        if any(part.imag for part in rest):
            values.append(_combine_sums(rest, combine))
    return values


def _bca(values: list[float], estimate: float, jackknife: list[float]) -> Interval:
    near = rounding(estimate)
    below = sum(value < estimate - near for value in values)
    same = sum(abs(value - estimate) <= near for value in values)
    rank = (below + same / 2) / len(values)
    tails = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
    if not 0 < rank < 1:
        return _quantile(values, tails[0]), _quantile(values, tails[1])
    bias, pull = _NORMAL.inv_cdf(rank), _acceleration(jackknife)
    low, high = (_adjust_tail(tail, bias, pull) for tail in tails)
    return _quantile(values, low), _quantile(values, high)


def _acceleration(jackknife: list[float]) -> float:
    middle = math.fsum(jackknife) / len(jackknife)
    distances = [middle - distance for distance in jackknife]
    squares = math.fsum(distance * distance for distance in distances)
    if squares <= rounding(middle) ** 2 * len(distances):
        return 0.0
    return math.fsum(distance * distance * distance for distance in distances) / (
        6 * squares * math.sqrt(squares)
    )


def _adjust_tail(tail: float, bias: float, pull: float) -> float:
    z = bias + _NORMAL.inv_cdf(tail)
    bent = 1 - pull * z
    return tail if bent <= 0 else _NORMAL.cdf(bias + z / bent)


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Returns a quantile, interpolated linearly between the two nearest values."""
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


# --- the permutation test


def sign_flip_p_value(differences: Sequence[float], *, seed: int = SEED) -> float | None:
    """Returns the share of sign patterns whose sum is at least as far from 0 as the real sum.

    It is exact if all differences are multiples of one number, as shares of few samples are, and
    for up to 12 differences that are not 0. Otherwise patterns are sampled, and the result is
    (hits + 1) / (patterns + 1). Returns None with fewer than two differences, or if all are 0.
    """
    moved = sorted(abs(value) for value in differences if value)
    if len(differences) < 2 or not moved:
        return None
    total = math.fsum(moved)
    seen = abs(math.fsum(differences))
    least = seen - 1e-9 * total  # Sums in another order differ in their last digits.
    if multiples := _multiples(moved):
        return _share_of_patterns(multiples, round(seen / total * sum(multiples)))
    if len(moved) <= EXACT_FLIPS:
        sums = [0.0]
        for value in moved:
            sums = [total_so_far + sign for total_so_far in sums for sign in (value, -value)]
        return sum(abs(value) >= least for value in sums) / len(sums)
    random, size = Random(seed), len(moved)
    patterns = resamples_for(size)
    hits = sum(
        abs(total - 2 * sum(compress(moved, _bits(random, size)))) >= least for _ in range(patterns)
    )
    return (hits + 1) / (patterns + 1)


def counts_all_flips(differences: Sequence[float]) -> bool:
    """Returns whether `sign_flip_p_value` is exact for these differences, and not sampled."""
    moved = sorted(abs(value) for value in differences if value)
    return len(moved) <= EXACT_FLIPS or bool(_multiples(moved))


def _multiples(moved: Sequence[float]) -> list[int]:
    """Returns the values as multiples of the largest part of the smallest value that fits all; []
    if none fits, or if counting would take too long."""
    for parts in range(1, MAX_PARTS + 1):
        counts = [value * parts / moved[0] for value in moved]
        if all(math.isclose(count, round(count), rel_tol=1e-9) for count in counts):
            whole = [round(count) for count in counts]
            return whole if sum(whole) * len(whole) ** 2 <= MAX_COUNTING else []
    return []


def _share_of_patterns(values: Sequence[int], seen: int) -> float:
    """Returns the exact share of sign patterns whose sum is at least `seen` away from 0.

    `counts` is a polynomial: its coefficient k, in `width` bits, counts the patterns in which the
    values with a minus sign add up to k.
    """
    counts, width, total = 1, len(values) + 1, sum(values)
    for value in values:
        counts += counts << (value * width)
    tail = counts & ((1 << ((total - seen) // 2 + 1) * width) - 1)
    one_side = 0
    while tail:
        one_side += tail & ((1 << width) - 1)
        tail >>= width
    return 1.0 if seen == 0 else 2 * one_side / 2 ** len(values)


def _bits(random: Random, size: int) -> bytes:
    return f"{random.getrandbits(size):0{size}b}".encode().translate(_BITS)
