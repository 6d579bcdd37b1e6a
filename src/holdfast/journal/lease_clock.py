"""The clock of leases is the time since boot, which users cannot set.

All processes and containers of one machine share this clock, so setting the wall clock ends no
lease. Only the leases of workers of another boot are measured by the wall clock, because two boots
share no other clock. Clocks decide when a worker counts as dead. They never decide whether a write
is correct.
"""

import logging
import math
import time
from typing import Protocol

from msgspec import Struct, structs

from holdfast.journal.process import boot_id, time_namespace

JUMP_SECONDS = 5.0
"""How far the wall clock may drift from the boot clock between two checks. Normal corrections are
much smaller."""
_log = logging.getLogger("holdfast.journal")

IS_LEASED = """(CASE WHEN w.clock <> '' AND w.clock = :clock THEN w.clock_until > :ticks
    ELSE (w.lease_until > :wall
            AND (w.lease_seconds = 0 OR w.lease_until <= :wall + 2 * w.lease_seconds))
        OR (w.lease_until > 0 AND :wall BETWEEN :since AND :since + w.lease_seconds) END)"""
"""SQL that is true if the lease of a worker or consumer `w` lasts at an `Instant`.

If more time is left than two leases take, the lease was written before the wall clock was set back,
and it counts as ended. If the journal was out of reach, holders could not renew their leases. They
then have the time of one lease, counted from `since`, to renew them.
"""


SECONDS_LEFT = """(CASE WHEN w.clock <> '' AND w.clock = :clock THEN w.clock_until - :ticks
    ELSE w.lease_until - :wall END)"""
"""SQL for the seconds until the lease of `w` ends."""


def with_lease_end(worker: object, seconds: float) -> str:
    """Returns a text with a worker's name and the seconds until its lease ends. After that, other
    workers can take over its work."""
    return f"{worker} (its lease ends in {max(0, math.ceil(seconds))} s, unless it renews it)"


class Instant(Struct, frozen=True):
    """One moment on the boot clock and on the wall clock."""

    clock: str
    """The name of the boot clock; "" if there is none. Only ticks of the same clock can be
    compared."""
    ticks: float
    wall: float
    since: float = 0.0
    """The time on the wall clock at which the journal last became reachable, such as the start of
    the server."""

    @property
    def parameters(self) -> dict[str, object]:
        """Returns the fields by their names, as parameters for SQL."""
        return structs.asdict(self)


class LeaseClock(Protocol):
    def read(self) -> Instant: ...


class BootClock:
    """The machine's time since boot. On a machine without this clock, leases use only the wall
    clock."""

    def __init__(self) -> None:
        boot = boot_id() if hasattr(time, "CLOCK_BOOTTIME") else ""
        self._name = f"{boot} {time_namespace()}" if boot else ""

    def read(self) -> Instant:
        ticks = time.clock_gettime(time.CLOCK_BOOTTIME) if self._name else time.monotonic()
        return Instant(self._name, ticks, time.time())


class JumpWatch:
    """Logs a warning when somebody has set the wall clock, because other uses of the wall clock may
    go wrong."""

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
