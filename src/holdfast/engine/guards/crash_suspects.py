"""Suspects: trajectories in whose calls the process died again and again.

They run with ever fewer of their like at once, the fewer the more deaths there were, and in the end
one by one. Then a death tells something: those that were only nearby have got on by then, and the
one that kills the process is the only suspect left.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from holdfast.records.errors import RunStopped
from holdfast.rollout.replay.crash_count import SUSPECTED_AFTER

LOOK = 0.1
MOST = 1024


def at_once(deaths: int) -> int:
    """How many suspects may run beside each other, one of them with so many deaths."""
    return max(1, MOST >> 2 * (deaths - SUSPECTED_AFTER))


class Slots:
    """They bound how many trajectories run at once."""

    def __init__(self, count: int):
        self._semaphore = asyncio.Semaphore(count)
        self.free = count
        """How many nobody has."""

    async def acquire(self) -> None:
        await self._semaphore.acquire()
        self.free -= 1

    def release(self) -> None:
        self.free += 1
        self._semaphore.release()


class Slot:
    """One of the slots. It is given up once only."""

    def __init__(self, slots: Slots):
        """`slots` has been acquired."""
        self._slots = slots
        self._is_held = True

    async def take(self) -> None:
        await self._slots.acquire()
        self._is_held = True

    def give_up(self) -> None:
        if self._is_held:
            self._is_held = False
            self._slots.release()


class Suspects:
    """Those that one process runs."""

    def __init__(self, stopping: Callable[[], bool]):
        self._stopping = stopping
        self._running: list[int] = []
        """The deaths of each."""

    @asynccontextmanager
    async def turn(self, deaths: int, slot: Slot) -> AsyncIterator[None]:
        """Held while a trajectory with so many deaths runs. It waits outside its slot, which
        others can use."""
        if deaths < SUSPECTED_AFTER:
            yield
            return
        while not self._has_room(deaths):
            slot.give_up()
            await self._room(deaths)
            await slot.take()
        self._running.append(deaths)
        try:
            yield
        finally:
            self._running.remove(deaths)

    def _has_room(self, deaths: int) -> bool:
        return len(self._running) < min(map(at_once, (deaths, *self._running)))

    async def _room(self, deaths: int) -> None:
        while not self._has_room(deaths):
            if self._stopping():
                raise RunStopped("the run is stopping; this trajectory goes on when it is resumed")
            await asyncio.sleep(LOOK)
