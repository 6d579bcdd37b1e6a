"""The clock of leases: the time since boot, which nobody can set.

All processes of one machine share it, whatever container they are in, so that setting the wall
clock ends no lease. Only a worker of another boot is judged by the wall clock: the two have no
other in common. Clocks decide when a worker may be taken for dead; they never decide whether a
write is right.
"""

import logging
import math
import time
from typing import Protocol

from msgspec import Struct, structs

from holdfast.journal.process import boot_id, time_namespace

JUMP_SECONDS = 5.0
"""How far the wall clock may drift from the other one between two looks. Normal corrections are far
smaller."""
_log = logging.getLogger("holdfast.journal")

IS_LEASED = """(CASE WHEN w.clock <> '' AND w.clock = :clock THEN w.clock_until > :ticks
    ELSE (w.lease_until > :wall
            AND (w.lease_seconds = 0 OR w.lease_until <= :wall + 2 * w.lease_seconds))
        OR (w.lease_until > 0 AND :wall BETWEEN :since AND :since + w.lease_seconds) END)"""
"""Of a worker or a consumer `w`, at an `Instant`. A lease that would last longer than leases do was
written before the wall clock was set back: nobody waits until that time comes again. And who could
not renew its lease, because the journal was away, has the time of one lease to come back."""


SECONDS_LEFT = """(CASE WHEN w.clock <> '' AND w.clock = :clock THEN w.clock_until - :ticks
    ELSE w.lease_until - :wall END)"""
"""How long the lease of such a worker lasts."""


def with_lease_end(worker: object, seconds: float) -> str:
    """A worker's name, and until when nobody can take its work over."""
    return f"{worker} (its lease ends in {max(0, math.ceil(seconds))} s, unless it renews it)"


class Instant(Struct, frozen=True):
    """One moment, as a lease's two clocks show it."""

    clock: str
    """The name of the clock: only ticks of the same one can be compared. "" if none."""
    ticks: float
    wall: float
    since: float = 0.0
    """Since when the journal has been there, by the wall clock."""

    @property
    def parameters(self) -> dict[str, object]:
        """By name, for SQL."""
        return structs.asdict(self)


class LeaseClock(Protocol):
    def read(self) -> Instant: ...


class BootClock:
    """The machine's time since boot. Without such a clock, leases use the wall clock only."""

    def __init__(self) -> None:
        boot = boot_id() if hasattr(time, "CLOCK_BOOTTIME") else ""
        self._name = f"{boot} {time_namespace()}" if boot else ""

    def read(self) -> Instant:
        ticks = time.clock_gettime(time.CLOCK_BOOTTIME) if self._name else time.monotonic()
        return Instant(self._name, ticks, time.time())


class JumpWatch:
    """Logs that the wall clock was set, since what else goes by it may be wrong then."""

    def __init__(self) -> None:
        self._before: Instant | None = None

    def look(self, now: Instant) -> None:
        before, self._before = self._before, now
        if before is None:
            return
        jump = (now.wall - before.wall) - (now.ticks - before.ticks)
        if abs(jump) > JUMP_SECONDS:
            _log.warning("the clock was set %s; %s", _describe(jump), _describe_effect(now))


def _describe(jump: float) -> str:
    return f"{abs(jump):.0f} s {'forward' if jump > 0 else 'back'}"


def _describe_effect(now: Instant) -> str:
    if now.clock:
        return "leases go by the time since boot, and are as they were"
    return "leases go by it here: workers may take each other's work over (--lease sets how soon)"
