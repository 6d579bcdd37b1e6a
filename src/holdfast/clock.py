"""A clock that tests can replace.

Code that waits or measures takes a `Clock`. Tests pass a clock that they move by hand
(`holdfast.testing.ManualClock`).
"""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Returns the seconds since the epoch, for records that people read."""
        ...

    def elapsed(self) -> float:
        """Returns the seconds of a clock that never goes back, for deadlines and durations."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def now(self) -> float:
        return time.time()

    def elapsed(self) -> float:
        # The loop's clock. It may stand still while code blocks the loop.
        try:
            return asyncio.get_running_loop().time()
        except RuntimeError:
            return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
