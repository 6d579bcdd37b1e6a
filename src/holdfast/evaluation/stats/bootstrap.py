"""Resampling: the cluster bootstrap, and the permutation test of differences.

Everything random is seeded from the argument `seed` alone: the same scores give the same numbers,
in every process, whatever the tasks are called and in whatever order they come. How much is drawn
is bounded, so that thousands of tasks take a second and not minutes.
"""

import math
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, compress
from random import Random
from statistics import NormalDist

from msgspec import Struct

CONFIDENCE = 0.95
SEED = 0
MOST_RESAMPLES = 10_000
FEWEST_RESAMPLES = 1_000
DRAWS = 1_000_000
"""How many tasks all resamples together draw; where there are many tasks, fewer resamples do."""
EXACT_FLIPS = 12
"""Up to so many differences, every pattern of signs is looked at."""
_NORMAL = NormalDist()
_BITS = bytes.maketrans(b"01", b"\x00\x01")

Clusters = Mapping[str, Sequence[float]]
"""The scores of each task."""
Interval = tuple[float, float]
Totals = tuple[complex, ...]
"""Of one task, for each run: the sum of its scores, and (as the imaginary part) their number.
One addition so adds both, which halves the time of a resample."""
Combine = Callable[[list[float]], float]


class Bootstrap(Struct, frozen=True):
    """What resampling the tasks says about an estimate."""

    mean: float
    """Of the resampled estimates."""
    standard_error: float
    """Their standard deviation."""
    interval: Interval
    resamples: int


def totals_of(runs: Sequence[Clusters]) -> list[Totals]:
    """One entry per task that any run has a score for."""
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
    confidence: float = CONFIDENCE,
    seed: int = SEED,
    resamples: int | None = None,
) -> Bootstrap | None:
    """The cluster bootstrap: tasks are drawn with replacement, each with all of its samples.

    The interval is BCa (bias-corrected and accelerated): percentiles of the resampled estimates,
    moved by how the estimate lies among them (z0, ties counted half) and by how its error changes
    (a, from leaving out one task at a time). None with fewer than two tasks.
    """
    if len(totals) < 2:
        return None
    estimate = _combined(_sum(totals), combine)
    found = sorted(_resampled(totals, combine, seed=seed, resamples=resamples))
    mean = math.fsum(found) / len(found)
    spread = math.sqrt(math.fsum((one - mean) ** 2 for one in found) / (len(found) - 1))
    if found[-1] - found[0] <= rounding(estimate):
        return Bootstrap(estimate, 0.0, (estimate, estimate), len(found))
    interval = _bca(found, estimate, _left_out(totals, combine), confidence=confidence)
    return Bootstrap(mean, spread, interval, len(found))


def bootstrap_interval(
    clusters: Clusters,
    *,
    confidence: float = CONFIDENCE,
    seed: int = SEED,
    resamples: int | None = None,
) -> Interval | None:
    """The BCa interval of the mean over all scores; None with fewer than two tasks."""
    found = bootstrap(totals_of([clusters]), confidence=confidence, seed=seed, resamples=resamples)
    return None if found is None else found.interval


def resamples_for(tasks: int) -> int:
    """10,000 for up to 100 tasks, then as many as draw a million tasks, at least 1,000."""
    return max(FEWEST_RESAMPLES, min(MOST_RESAMPLES, DRAWS // max(1, tasks)))


def _resampled(
    totals: Sequence[Totals], combine: Combine, *, seed: int, resamples: int | None
) -> list[float]:
    random, tasks = Random(seed), len(totals)
    times = resamples or resamples_for(tasks)
    if len(totals[0]) == 1:  # One run: no need to take its tuples apart.
        # Sorted, so that tasks that are named otherwise give the same numbers.
        flat = sorted((one[0] for one in totals), key=_order)
        if len(kinds := sorted(set(flat), key=_order)) == 1:
            sums = [tasks * kinds[0]] * times
        elif len(kinds) == 2:
            sums = _two_kinds(random, kinds, [flat.count(kind) for kind in kinds], times=times)
        else:
            sums = [sum(random.choices(flat, k=tasks)) for _ in range(times)]
        return [combine([one.real / one.imag]) for one in sums]
    ordered = sorted(totals, key=lambda one: [_order(part) for part in one])
    draws = (random.choices(ordered, k=tasks) for _ in range(times))
    return [_combined(_sum(draw), combine) for draw in draws]


def _two_kinds(
    random: Random, kinds: Sequence[complex], counts: Sequence[int], *, times: int
) -> list[complex]:
    """The sums of resamples where every task is of one of two kinds, such as right and wrong.

    How many of n drawn tasks are of the second kind is Binomial(n, its share), which is drawn
    from its distribution: the same as drawing n tasks, a hundred times faster.
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


def _order(total: complex) -> Interval:
    return total.real, total.imag


def _sum(totals: Sequence[Totals]) -> Totals:
    return tuple(map(sum, zip(*totals, strict=True)))


def _combined(sums: Totals, combine: Combine) -> float:
    """A run that has none of the drawn tasks says nothing."""
    return combine([one.real / one.imag for one in sums if one.imag])


def _left_out(totals: Sequence[Totals], combine: Combine) -> list[float]:
    whole = _sum(totals)
    found = []
    for one in totals:
        rest = tuple(a - b for a, b in zip(whole, one, strict=True))
        if any(part.imag for part in rest):
            found.append(_combined(rest, combine))
    return found


def _bca(
    found: list[float], estimate: float, left_out: list[float], *, confidence: float
) -> Interval:
    near = rounding(estimate)
    below = sum(one < estimate - near for one in found)
    same = sum(abs(one - estimate) <= near for one in found)
    rank = (below + same / 2) / len(found)
    tails = ((1 - confidence) / 2, (1 + confidence) / 2)
    if not 0 < rank < 1:
        return _quantile(found, tails[0]), _quantile(found, tails[1])
    bias, pull = _NORMAL.inv_cdf(rank), _acceleration(left_out)
    low, high = (_moved(tail, bias, pull) for tail in tails)
    return _quantile(found, low), _quantile(found, high)


def _acceleration(left_out: list[float]) -> float:
    middle = math.fsum(left_out) / len(left_out)
    away = [middle - one for one in left_out]
    squares = math.fsum(one * one for one in away)
    if squares <= rounding(middle) ** 2 * len(away):
        return 0.0
    return math.fsum(one * one * one for one in away) / (6 * squares * math.sqrt(squares))


def rounding(value: float) -> float:
    """What sums in another order may differ by: no difference."""
    return 1e-12 * max(1.0, abs(value))


def _moved(tail: float, bias: float, pull: float) -> float:
    z = bias + _NORMAL.inv_cdf(tail)
    bent = 1 - pull * z
    return tail if bent <= 0 else _NORMAL.cdf(bias + z / bent)


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Between the two nearest, linearly."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


# --- the permutation test


def sign_flip_p_value(differences: Sequence[float], *, seed: int = SEED) -> float | None:
    """The share of all patterns of signs whose sum is at least as far from 0 as the real one.

    Exact for up to 12 differences that are not 0, then sampled: (hits + 1) / (patterns + 1).
    """
    moved = sorted(abs(one) for one in differences if one)
    if len(differences) < 2 or not moved:
        return None
    total = math.fsum(moved)
    seen = abs(math.fsum(differences))
    least = seen - 1e-9 * total  # Sums in another order differ in their last digits.
    if len(moved) <= EXACT_FLIPS:
        sums = [0.0]
        for one in moved:
            sums = [value + sign for value in sums for sign in (one, -one)]
        return sum(abs(one) >= least for one in sums) / len(sums)
    random, size = Random(seed), len(moved)
    patterns = resamples_for(size)
    hits = sum(
        abs(total - 2 * sum(compress(moved, _bits(random, size)))) >= least for _ in range(patterns)
    )
    return (hits + 1) / (patterns + 1)


def _bits(random: Random, size: int) -> bytes:
    return f"{random.getrandbits(size):0{size}b}".encode().translate(_BITS)
