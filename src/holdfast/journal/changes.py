"""Changes within this process wake everyone who waits for work or for a batch.

Changes of other processes are not noticed here. Every wait therefore has a timeout, after which the
caller looks again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

POLL_SECONDS = 1.0
"""Seconds for which a change of another process may go unnoticed."""
Result = TypeVar("Result")


class Changes:
    """A counter of changes. Read `count`, look at the journal, then wait until `count` differs. In
    this order no change is missed."""

    def __init__(self) -> None:
        self.count = 0
        self._waiting: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        self.count += 1
        waiting, self._waiting = self._waiting, set()
        for waiter in waiting:
            waiter.get_loop().call_soon_threadsafe(_wake, waiter)

    async def wait(self, seen: int, *, timeout: float) -> bool:
        """Returns True as soon as `count` differs from `seen`, and False after the timeout."""
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
    """Calls `look` until `is_enough` accepts the result or `wait` seconds are over. Returns the
    last result."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait
    while True:
        seen = changes.count
        change = await look()
        left = deadline - loop.time()
        if is_enough(change) or left <= 0:
            return change
        await changes.wait(seen, timeout=min(left, poll))
