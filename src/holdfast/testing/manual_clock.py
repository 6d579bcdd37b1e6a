"""A clock that only moves when a test moves it."""

import asyncio
import heapq

_TURNS = 25


class ManualClock:
    """A `holdfast.clock.Clock` that a test moves. Tasks that sleep wake in the order of their
    times.

    After a task wakes and before the next one does, other tasks run until they sleep again or wait
    for a real event. So a sleep that begins during an `advance` also ends in it, if its time is
    reached.
    """

    def __init__(self, now: float = 1_700_000_000.0):
        self._began = now
        self._elapsed = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0

    def now(self) -> float:
        return self._began + self._elapsed

    def elapsed(self) -> float:
        return self._elapsed

    @property
    def sleepers(self) -> int:
        """The number of tasks that sleep."""
        return sum(not future.done() for _, _, future in self._sleepers)

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future = asyncio.get_running_loop().create_future()
        # The count keeps the order of waits that end at the same time.
        self._count += 1
        heapq.heappush(self._sleepers, (self._elapsed + seconds, self._count, future))
        await future

    async def advance(self, seconds: float) -> None:
        target = self._elapsed + seconds
        await _settle()
        while self._sleepers and self._sleepers[0][0] <= target:
            due, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                self._elapsed = due
                future.set_result(None)
                await _settle()
        self._elapsed = target
        await _settle()


async def _settle() -> None:
    # asyncio does not tell when nothing is left to run. A chain of tasks is rarely this long.
    for _ in range(_TURNS):
        await asyncio.sleep(0)
