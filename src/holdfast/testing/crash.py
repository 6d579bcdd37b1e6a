"""Crash points: ending this process with SIGKILL at an exact moment.

A plan is `POINT:K` for the K-th time that `holdfast.crashpoint` POINT is reached. Two points are
about records: `before:K` dies when the K-th record is about to be committed, `after:K` when it
has just been and nobody has been told. With a record plan every record is a transaction of its
own, so that each boundary can be hit. `HOLDFAST_CRASH` carries a plan to a command.
"""

import os
import signal

from holdfast import crashpoint
from holdfast.journal import writer
from holdfast.records.errors import UsageError

_RECORD_POINTS = {"before": "journal.before_commit", "after": "journal.after_commit"}


def arm(plan: str) -> None:
    """Arms `plan` for this process."""
    point, colon, number = plan.rpartition(":")
    if not colon or not number.isdigit():
        raise UsageError(f"a crash plan is POINT:K, not {plan!r}")
    if point in _RECORD_POINTS:
        writer.MAX_ROWS = 1
        point = _RECORD_POINTS[point]
    crashpoint.arm(_Trap(point, int(number)))


class _Trap:
    def __init__(self, point: str, times: int):
        self._point = point
        self._left = times

    def __call__(self, point: str) -> None:
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
