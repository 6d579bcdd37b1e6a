"""Crash points: ending this process with SIGKILL at an exact moment.

A plan is `POINT:K` for the K-th time that a point of `holdfast.crashpoint` is reached (`POINTS`).
Three points are about commits: `before:K` dies when the journal's K-th operation is about to be
committed, `after:K` when it has just been and no caller knows it, `witnessed:K` when the witness
knows of it as well. Every record is an operation; so are creating a run, joining, claiming and
leaving. With such a plan each record is a transaction of its own, so that each boundary can be
hit. `HOLDFAST_CRASH` carries a plan to a command.
"""

import os
import signal

from holdfast import crashpoint
from holdfast.journal.sql import writer
from holdfast.records.errors import UsageError

POINTS = {
    "agent.ended": "agent.ended",
    "agent.folder": "agent.folder",
    "before": "journal.before_commit",
    "after": "journal.after_commit",
    "witnessed": "journal.witnessed",
    "compacting": "journal.compacting",
    "creating": "journal.creating",
    "migrating": "journal.migrating",
    "repairing": "journal.repairing",
    "engine.admitted": "engine.admitted",
    "engine.finished": "engine.finished",
    "export.row": "export.row",
    "gateway.delta": "gateway.delta",
    "gateway.recorded": "gateway.recorded",
    "gateway.sent": "gateway.sent",
    "gateway.refused": "gateway.refused",
    "gateway.finished": "gateway.finished",
    "train.batch": "train.batch",
    "train.stepped": "train.stepped",
    "checkpoint.file": "checkpoint.file",
    "checkpoint.written": "checkpoint.written",
    "checkpoint.renamed": "checkpoint.renamed",
    "train.committed": "train.committed",
    "weights.written": "weights.written",
    "weights.staged": "weights.staged",
    "weights.prepared": "weights.prepared",
    "weights.paused": "weights.paused",
    "weights.begun": "weights.begun",
    "weights.received": "weights.received",
    "weights.reloaded": "weights.reloaded",
    "weights.sent": "weights.sent",
    "weights.resumed": "weights.resumed",
    "weights.switched": "weights.switched",
    "train.published": "train.published",
    "delivery.reserved": "delivery.reserved",
    "delivery.commit": "delivery.commit",
    "delivery.committed": "delivery.committed",
    "stream.admitted": "stream.admitted",
    "stream.settled": "stream.settled",
    "stream.reserved": "stream.reserved",
    "stream.commit": "stream.commit",
    "stream.committed": "stream.committed",
    "slime.answered": "slime.answered",
    "trl.published": "trl.published",
    "trl.answered": "trl.answered",
    "trl.queued": "trl.queued",
    "trl.trained": "trl.trained",
}


def arm(plan: str) -> None:
    """Arms `plan` for this process. One that can never strike is an error: its test would pass."""
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
