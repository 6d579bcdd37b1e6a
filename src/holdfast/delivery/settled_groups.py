"""Waits for groups of a run to settle, with one reader of the journal for all waiters.

A trainer may wait for hundreds of groups at once, each with its own call. If each call read the
journal after every change, their total cost would grow with the square of their number.
"""

import asyncio
import time
from collections.abc import Callable, Collection

from holdfast.journal.sql.journal import Journal
from holdfast.records.errors import HoldfastError
from holdfast.records.run import Run

LOOK_SECONDS = 1.0
"""Seconds after which a change by another process is noticed. Changes by this process wake waiters
at once."""
_PAUSE = 4
"""The pause between two looks, as a multiple of the time that a look takes."""
_MAX_PAUSE = 0.05
"""The longest pause in seconds. A look may only seem slow because the event loop was busy."""


class SettledGroups:
    """Waits for groups of one run to settle. `check` raises an error once the rollouts have ended;
    every open wait then raises this error."""

    def __init__(self, journal: Journal, run: Run, *, check: Callable[[], None]):
        self._journal = journal
        self._run = run
        self._check = check
        self._waiting: dict[asyncio.Future[None], Collection[int]] = {}
        self._watching: asyncio.Task[None] | None = None

    async def under_way(self, ordinals: Collection[int]) -> set[int]:
        """Returns the ordinals of the groups that are not settled yet."""
        rows = await self._journal.trajectories(self._run, ordinals=ordinals)
        return {row.ordinal for row in rows if not row.settled}

    async def wait(self, ordinals: Collection[int]) -> None:
        """Waits until all of the groups are settled."""
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[settled] = ordinals
        try:
            if self._watching is None or self._watching.done():
                self._watching = asyncio.create_task(self._watch(), name="groups that settle")
            # Otherwise the watch may sleep through a change that came before this wait.
            if await self.under_way(ordinals):
                await settled
        finally:
            self._waiting.pop(settled, None)

    async def close(self) -> None:
        """Ends the watch. Every wait that is still open raises an error."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})
        self._fail(HoldfastError("the rollouts have ended: nothing is waited for any more"))

    async def _watch(self) -> None:
        try:
            while self._waiting:
                seen = self._journal.changes.count
                began = time.monotonic()
                await self._look()
                await asyncio.sleep(min(_MAX_PAUSE, _PAUSE * (time.monotonic() - began)))
                await self._journal.changes.wait(seen, timeout=LOOK_SECONDS)
        except Exception as error:
            self._fail(error)

    async def _look(self) -> None:
        waiting = list(self._waiting.items())
        wanted = {ordinal for _, ordinals in waiting for ordinal in ordinals}
        under_way = await self.under_way(wanted)
        for settled, ordinals in waiting:
            if under_way.isdisjoint(ordinals) and not settled.done():
                settled.set_result(None)
        if under_way:
            self._check()

    def _fail(self, error: Exception) -> None:
        for settled in self._waiting:
            if not settled.done():
                settled.set_exception(error)
