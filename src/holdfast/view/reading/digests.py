"""The digests of the runs that were looked at last. Each run is read by one reader at a time,
however many pages ask."""

import asyncio
import time
from collections import OrderedDict

from msgspec import Struct, field

from holdfast.journal.journal import Journal
from holdfast.records.run import Run
from holdfast.view.reading.digest import RunDigest

MAX_RUNS = 64
MAX_KEPT = 1_000_000
"""The most trajectories of all digests together, except for the last one."""
FRESH_SECONDS = 0.5
"""A digest that was read so recently is shown as it is."""


class _Kept(Struct):
    digest: RunDigest = field(default_factory=RunDigest)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    read_at: float = 0.0
    cost: float = 0.0


class Digests:
    """Keeps digests by the number of their run, and forgets those that were used least recently."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, _Kept] = OrderedDict()

    def known(self, run: Run) -> RunDigest | None:
        """Returns the digest as it was read last, without reading; None if it was not yet read."""
        kept = self._kept.get(run.id)
        return kept.digest if kept is not None and kept.digest.is_whole else None

    def cost(self, run: Run) -> float:
        """Returns how many seconds the last reading took."""
        kept = self._kept.get(run.id)
        return 0.0 if kept is None else kept.cost

    async def read(self, journal: Journal, run: Run) -> RunDigest:
        """Returns the digest as the journal is now."""
        kept = self._kept.setdefault(run.id, _Kept())
        self._kept.move_to_end(run.id)
        async with kept.lock:
            if time.monotonic() - kept.read_at > max(FRESH_SECONDS, 4 * kept.cost):
                start = time.monotonic()
                await kept.digest.refresh(journal, run)
                kept.read_at = time.monotonic()
                kept.cost = kept.read_at - start
        self._forget()
        return kept.digest

    def _forget(self) -> None:
        while len(self._kept) > 1 and (
            len(self._kept) > MAX_RUNS
            or sum(kept.digest.count for kept in self._kept.values()) > MAX_KEPT
        ):
            self._kept.popitem(last=False)
