"""Restarts: how often one part has crashed, and when its policy lets it start again."""

import time
from collections import deque

from holdfast.pipeline.settings import RestartPolicy


class Restarts:
    """Of one part, through all its lives."""

    def __init__(self, policy: RestartPolicy):
        self._policy = policy
        self._crashes: deque[float] = deque()
        self.count = 0
        """So far."""

    def after_crash(self) -> float | None:
        """Seconds until the start that follows the crash of this moment, which is counted as one;
        None: there is none any more."""
        now = time.monotonic()
        self._crashes.append(now)
        while self._crashes[0] < now - self._policy.within:
            self._crashes.popleft()
        wait = self._policy.wait(len(self._crashes))
        self.count += wait is not None
        return wait


def last_cause(cause: str, restarts: int) -> str:
    """Of a part that is not started again."""
    return f"{cause} (and so {restarts} times before)"


def how_ended(name: str, code: int) -> str:
    """The exit status of a part in words."""
    how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
    return f"the {name} {how}"
