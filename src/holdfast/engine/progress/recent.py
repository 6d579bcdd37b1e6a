"""How many tokens a second there were lately: what is long gone says nothing about now."""

from collections import deque

WINDOW_SECONDS = 60.0
_STEP_SECONDS = 0.5


class RecentRate:
    """A count over the last minute, in steps of half a second."""

    def __init__(self, began: float):
        self._began = began
        self._steps: deque[tuple[float, int]] = deque()

    def add(self, number: int, now: float) -> None:
        if self._steps and now - self._steps[-1][0] < _STEP_SECONDS:
            at, before = self._steps[-1]
            self._steps[-1] = (at, before + number)
        else:
            self._steps.append((now, number))
        self._forget(now)

    def per_second(self, now: float) -> float:
        self._forget(now)
        seconds = min(WINDOW_SECONDS, now - self._began)
        return sum(number for _, number in self._steps) / max(1e-9, seconds)

    def _forget(self, now: float) -> None:
        while self._steps and now - self._steps[0][0] > WINDOW_SECONDS:
            self._steps.popleft()
