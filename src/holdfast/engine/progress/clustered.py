"""Computes the mean of rewards in clusters. Tasks are independent, but the samples of one task are
not."""

import math
from collections.abc import Iterable

HUGE = 1e9


def sum_of(values: Iterable[float]) -> float:
    """Returns the exact sum. If the sum does not fit in a float, returns infinity or NaN."""
    listed = list(values)
    try:
        return math.fsum(listed)
    except (OverflowError, ValueError):
        return sum(listed)


def number_text(value: float, *, sign: str = "", places: int = 4) -> str:
    """Formats a number with `places` decimals, or a huge number with four digits. `sign="+"` always
    shows the sign.
    """
    return f"{value:{sign}.{places}f}" if abs(value) < HUGE else f"{value:{sign}.4g}"


def error_text(error: float | None, *, places: int = 4) -> str:
    """Formats an error as ` ± 0.0312`. Returns "" if the error is None or 0, for example if all
    rewards are equal.
    """
    return f" ± {number_text(error, places=places)}" if error else ""


def rounding(value: float) -> float:
    """Returns the largest difference from `value` that counts as a rounding error."""
    return 1e-12 * max(1.0, abs(value))


def clustered_error(influences: Iterable[float], *, of: float) -> float | None:
    """Returns the clustered standard error of the estimate `of`: sqrt(G / (G - 1) · Σ_g u_g²).

    u_g is how far task g moves the estimate. Returns None with fewer than two tasks, and 0 if the
    tasks move it no further than a rounding error.
    """
    sums = list(influences)
    tasks = len(sums)
    if tasks < 2:
        return None
    error = math.sqrt(tasks / (tasks - 1) * sum_of(influence * influence for influence in sums))
    return 0.0 if error <= rounding(of) else error


class RewardMean:
    """The mean of rewards that arrive one after the other, with its error. It needs only the sum
    and count of each task.

    It equals `clustered_mean` of the statistics on the same rewards.
    """

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, int]] = {}
        self.count = 0

    def add(self, task: str, reward: float) -> None:
        total, number = self._sums.get(task, (0.0, 0))
        self._sums[task] = (total + reward, number + 1)
        self.count += 1

    @property
    def mean(self) -> float | None:
        if not self.count:
            return None
        return sum_of(total for total, _ in self._sums.values()) / self.count

    @property
    def error(self) -> float | None:
        mean = self.mean
        if mean is None:
            return None
        sums = self._sums.values()
        moved = ((total - number * mean) / self.count for total, number in sums)
        return clustered_error(moved, of=mean)
