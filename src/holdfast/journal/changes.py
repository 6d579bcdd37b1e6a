"""Changes within this process: who waits for work or for a batch wakes up at once.

Changes of other processes are not noticed here, so every wait has a timeout and looks again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

POLL_SECONDS = 1.0
"""How long another process's change may go unnoticed."""
Result = TypeVar("Result")


class Changes:
    """Counts changes. Read `count`, look, and then wait for another count: none is missed."""

    def __init__(self) -> None:
        self.count = 0
        self._waiting: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        self.count += 1
        waiting, self._waiting = self._waiting, set()
        for waiter in waiting:
            waiter.get_loop().call_soon_threadsafe(_wake, waiter)

    async def wait(self, seen: int, *, timeout: float) -> bool:
        """Returns when `count` is not `seen`, or, with False, after the timeout."""
        if self.count != seen:
            return True
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            await asyncio.wait({waiter}, timeout=timeout)
        finally:
            self._waiting.discard(waiter)
            waiter.cancel()
        return self.count != seen


def _wake(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)


async def look_until(
    look: Callable[[], Awaitable[Result]],
    is_enough: Callable[[Result], bool],
    *,
    changes: Changes,
    wait: float,
    poll: float,
) -> Result:
    """Looks until it is enough, or for `wait` seconds, and returns what it saw last."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait
    while True:
        seen = changes.count
        change = await look()
        left = deadline - loop.time()
        if is_enough(change) or left <= 0:
            return change
        await changes.wait(seen, timeout=min(left, poll))
