"""Progress: what a run has done, counted as records become durable."""

import time
from collections.abc import Sequence

from holdfast.journal.journal import TrajectoryRow
from holdfast.records.encoding.tokens import count
from holdfast.records.history import History
from holdfast.records.step import AttemptFailed, Drafted, Finished, Generated, Record, Refilled
from holdfast.records.trajectory import Status


class Progress:
    """Plain counters; a display reads them when it likes."""

    def __init__(self) -> None:
        self.total = 0
        self.done_before = 0
        self.done = 0
        self.running = 0
        self.retried = 0
        self.refilled = 0
        self.failed_before = 0
        self.failed = 0
        self.truncated = 0
        self.turns = 0
        self.tokens = 0
        self.began = time.monotonic()

    def record(self, record: Record) -> None:
        match record:
            case Generated():
                self.turns += 1
                self.tokens += count(record.ids)
            case Drafted():
                self.tokens += count(record.ids)
            case AttemptFailed():
                self.retried += 1
            case Refilled():
                self.refilled += 1
            case Finished() if record.status is Status.FAILED:
                self.retried -= 1  # Its last failure was not followed by another try.

    def started(self) -> None:
        self.running += 1

    def stopped(self) -> None:
        self.running -= 1

    def settled(self, histories: Sequence[History]) -> None:
        for history in histories:
            self.running -= 1
            self.done += 1
            if history.status is Status.FAILED:
                self.failed += 1
            elif history.status is Status.TRUNCATED:
                self.truncated += 1

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / max(1e-9, time.monotonic() - self.began)

    @property
    def seconds_left(self) -> float | None:
        """A plain extrapolation; None while there is nothing to extrapolate from."""
        if self.done == 0:
            return None
        left = self.total - self.done_before - self.done
        return left * (time.monotonic() - self.began) / self.done

    def line(self) -> str:
        parts = [
            f"{self.done_before + self.done}/{self.total} done",
            f"{self.running} running",
            *self._counted(),
        ]
        if self.seconds_left is not None:
            parts.append(f"{_duration(self.seconds_left)} left")
        return ", ".join(parts)

    def _counted(self) -> list[str]:
        return [
            f"{self.retried} retried",
            f"{self.failed_before + self.failed} failed",
            f"{self.tokens_per_second:,.0f} tokens/s",
        ]


class WatchedProgress(Progress):
    """The progress of a run that other processes work on, from the journal's list, which has no
    retries and tokens."""

    def seen(self, rows: Sequence[TrajectoryRow]) -> None:
        rows = [row for row in rows if not row.resting]
        over = sum(row.settled for row in rows)
        if not self.total:
            self.done_before = over
        self.total = len(rows)
        self.done = over - self.done_before
        self.running = sum(bool(row.owner) and not row.settled for row in rows)
        self.failed = sum(row.settled and row.status is Status.FAILED for row in rows)

    def _counted(self) -> list[str]:
        return [f"{self.failed} failed"]


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{rest:02}s" if minutes else f"{rest}s"
