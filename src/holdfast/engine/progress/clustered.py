"""A mean of rewards in clusters: tasks are independent, the samples of one task are not."""

import math
from collections.abc import Iterable


def clustered_error(influences: Iterable[float]) -> float | None:
    """sqrt(G / (G - 1) · Σ_g u_g²), u_g being how far task g moves the estimate. None with fewer
    than two tasks."""
    found = list(influences)
    tasks = len(found)
    if tasks < 2:
        return None
    return math.sqrt(tasks / (tasks - 1) * math.fsum(influence * influence for influence in found))


class RewardMean:
    """The mean of growing data, and its error, from the sum and count of each task. It equals
    `clustered_mean` of the statistics on the same rewards."""

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
        return math.fsum(total for total, _ in self._sums.values()) / self.count

    @property
    def error(self) -> float | None:
        mean = self.mean
        if mean is None:
            return None
        sums = self._sums.values()
        return clustered_error((total - number * mean) / self.count for total, number in sums)
