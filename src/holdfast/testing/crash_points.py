"""Ends this process with SIGKILL at an exact moment, a crash point.

A plan is a text `POINT:K`. The process dies when it reaches the point `POINT` of
`holdfast.crashpoint` for the K-th time. `POINTS` lists the points. Three of them are about commits.
With `before:K`, the process dies when the journal's K-th operation is about to be committed. With
`after:K`, it dies when this operation was just committed and no caller knows of the commit. With
`witnessed:K`, it dies when the witness, too, knows of the commit. Every record is an operation, and
so are creating a run, joining, claiming and leaving. With one of these three plans, each record is
its own transaction, so that the process can die at each boundary. `HOLDFAST_CRASH` passes a plan to
a command.
"""

import os
import signal

from holdfast import crashpoint
from holdfast.journal.sql import writer
from holdfast.records.errors import UsageError

_JOURNAL = {
    "before": "journal.before_commit",
    "after": "journal.after_commit",
    "witnessed": "journal.witnessed",
    "compacting": "journal.compacting",
    "creating": "journal.creating",
    "migrating": "journal.migrating",
    "repairing": "journal.repairing",
}
POINTS = _JOURNAL | {
    f"{place}.{moment}": f"{place}.{moment}"
    for place, moments in {
        "agent": "ended folder",
        "engine": "admitted reused finished",
        "export": "row",
        "gateway": "delta recorded sent refused finished",
        "train": "batch stepped committed published",
        "checkpoint": "file written renamed",
        "weights": "written staged prepared noted paused begun received reloaded sent resumed "
        "checked switched",
        "delivery": "reserved commit committed",
        "stream": "admitted settled reserved commit committed",
        "worlds": "planned made attached snapshot removing removed",
        "slime": "answered",
        "trl": "published answered queued trained",
    }.items()
    for moment in moments.split()
}


def arm(plan: str) -> None:
    """Makes this process die as `plan` says. Raises `UsageError` for a plan whose point cannot be
    reached, because a test with this plan would pass without a crash."""
    point, _, number = plan.rpartition(":")
    if point not in POINTS or not number.isdigit() or int(number) < 1:
        raise UsageError(
            f"a crash plan is POINT:K with K from 1, not {plan!r}; points: {', '.join(POINTS)}"
        )
    if point in ("before", "after", "witnessed"):
        writer.MAX_ROWS = 1
    crashpoint.arm(_Trap(POINTS[point], int(number)))


class _Trap:
    def __init__(self, point: str, times: int):
        self._point = point
        self._left = times

    def __call__(self, point: str) -> None:
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
