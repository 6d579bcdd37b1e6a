"""Limits how many suspects run at once. A suspect is a trajectory that had calls in flight each
time the process crashed.

The more crashes, the fewer suspects run at once; in the end they run one by one. By then, the
trajectories that only ran beside the culprit have finished their calls, and only the culprit is
left.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdfast.engine.stop import Stop
from holdfast.records.errors import RunStopped
from holdfast.rollout.replay.session import SUSPECT_AFTER_CRASHES

MAX_AT_ONCE = 1024


def allowed_at_once(crashes: int) -> int:
    """Returns how many suspects may run at once if one of them has this crash count."""
    return max(1, MAX_AT_ONCE >> 2 * (crashes - SUSPECT_AFTER_CRASHES))


class Slots:
    """Bounds how many trajectories run at once."""

    def __init__(self, count: int):
        self._semaphore = asyncio.Semaphore(count)
        self.free = count

    async def acquire(self) -> None:
        await self._semaphore.acquire()
        self.free -= 1

    def release(self) -> None:
        self.free += 1
        self._semaphore.release()


class Slot:
    """One acquired slot. Giving it up a second time does nothing."""

    def __init__(self, slots: Slots):
        """Makes the slot that the caller has acquired from `slots`."""
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
    """The suspects that this process runs."""

    def __init__(self, stop: Stop):
        self._stop = stop
        self._running: list[int] = []
        """The crash count of each running suspect."""
        self._left = asyncio.Event()

    @asynccontextmanager
    async def turn(self, crashes: int, slot: Slot) -> AsyncIterator[None]:
        """Runs the block when the running suspects leave room for a trajectory with this crash
        count.

        Gives up `slot` while it waits for room. A trajectory with too few crashes to be a suspect
        does not wait.
        """
        if crashes < SUSPECT_AFTER_CRASHES:
            yield
            return
        while not self._has_room(crashes):
            slot.give_up()
            await self._wait_for_room(crashes)
            await slot.take()
        self._running.append(crashes)
        try:
            yield
        finally:
            self._running.remove(crashes)
            self._left.set()

    def _has_room(self, crashes: int) -> bool:
        return len(self._running) < min(map(allowed_at_once, (crashes, *self._running)))

    async def _wait_for_room(self, crashes: int) -> None:
        while not self._has_room(crashes):
            self._left.clear()
            await self._stop.cancels(self._left.wait(), name="room for a suspect")
            if self._stop.requested:
                raise RunStopped("the run is stopping; this trajectory goes on when it is resumed")
