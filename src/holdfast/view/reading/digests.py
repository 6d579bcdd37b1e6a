"""The digests of the runs that were looked at last.

Only one reader reads a run at a time, even if many pages ask for the run. A page does not wait for
a large run: it shows the part that was read so far, and the reading goes on.
"""

import asyncio
import time
from collections import OrderedDict

from msgspec import Struct, field

from holdfast.journal.sql.journal import Journal
from holdfast.records.run import Run
from holdfast.view.reading.digest import RunDigest

MAX_RUNS = 64
MAX_KEPT = 1_000_000
"""The largest number of trajectories in all digests together. The digest that was used last is kept
even if it is larger."""
FRESH_SECONDS = 0.5
"""A digest is not read again for at least this time after it was read."""


PATIENCE_SECONDS = 0.7
"""How long a page waits for a digest."""


class _Kept(Struct):
    digest: RunDigest = field(default_factory=RunDigest)
    reading: asyncio.Task[None] | None = None
    read_at: float = 0.0
    cost: float = 0.0


class Digests:
    """Keeps the digests of runs by the run's id, and forgets those that were used least
    recently."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, _Kept] = OrderedDict()

    def known(self, run: Run) -> RunDigest | None:
        """Returns the run's digest as it was read last, without reading. Returns None if the run
        was not yet read to its end."""
        kept = self._kept.get(run.id)
        return kept.digest if kept is not None and kept.digest.is_whole else None

    async def read(self, journal: Journal, run: Run) -> RunDigest:
        """Reads what has changed in the run, and returns its digest. If that takes long, returns
        the digest as far as it was read, while the reading continues."""
        kept = self._kept.setdefault(run.id, _Kept())
        self._kept.move_to_end(run.id)
        is_fresh = time.monotonic() - kept.read_at < max(FRESH_SECONDS, 4 * kept.cost)
        if kept.reading is None and not is_fresh:
            kept.reading = asyncio.create_task(_refresh(kept, journal, run))
        if (reading := kept.reading) is not None:
            done, _ = await asyncio.wait({reading}, timeout=PATIENCE_SECONDS)
            if done:
                kept.reading = None
                reading.result()
        self._forget()
        return kept.digest

    async def close(self) -> None:
        reading = {kept.reading for kept in self._kept.values() if kept.reading is not None}
        for task in reading:
            task.cancel()
        if reading:
            await asyncio.wait(reading)

    def _forget(self) -> None:
        while len(self._kept) > 1 and (
            len(self._kept) > MAX_RUNS
            or sum(kept.digest.count for kept in self._kept.values()) > MAX_KEPT
        ):
            self._kept.popitem(last=False)


async def _refresh(kept: _Kept, journal: Journal, run: Run) -> None:
    start = time.monotonic()
    await kept.digest.refresh(journal, run)
    kept.read_at = time.monotonic()
    kept.cost = kept.read_at - start
