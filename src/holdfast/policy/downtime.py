"""Downtime: how long no replica was up. Time that no deadline counts."""

from collections.abc import Sequence

from holdfast.clock import Clock
from holdfast.policy.gate import Gate


class Downtime:
    """Watches the gates of all replicas; the time counts only while every one is in an outage."""

    def __init__(self, gates: Sequence[Gate], clock: Clock):
        self._gates = gates
        self._clock = clock
        self._before = 0.0
        self._since: float | None = None
        for gate in gates:
            gate.on_change = self._look

    @property
    def seconds(self) -> float:
        if self._since is None:
            return self._before
        return self._before + self._clock.elapsed() - self._since

    def _look(self) -> None:
        # One that was given up for good never comes back: it is down, and nobody waits for it.
        starts = [gate.down_since for gate in self._gates if not gate.is_given_up]
        if starts and None not in starts:
            if self._since is None:
                self._since = max(start for start in starts if start is not None)
        elif self._since is not None:
            self._before, self._since = self.seconds, None
