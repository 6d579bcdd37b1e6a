"""A part of a pipeline waits for the other part only while the other part is alive.

A part is alive while a process holds its lease in the journal. A part that was killed, frozen or
never started holds no lease, however long one waits for it.
"""

import asyncio
from collections.abc import Awaitable, Callable

from holdfast.records.errors import WaitTimedOut

LOOK_SECONDS = 1.0
"""The wait between two looks at another part, in seconds."""


class OtherPart:
    """One part's view of the other part, for which it waits. `is_alive` looks at the other part's
    lease. `waits_for` says what the waiting part needs, who has to give it, and how to start the
    other part."""

    def __init__(
        self, is_alive: Callable[[], Awaitable[bool]], *, patience: float, waits_for: str
    ) -> None:
        self._is_alive = is_alive
        self._patience = patience
        self._waits_for = waits_for
        self._clock = asyncio.get_running_loop().time
        self._seen = self._looked = self._clock()

    def begin_wait(self) -> None:
        """Begins a new wait, for which the patience is counted from now on."""
        self._seen = self._clock()

    async def check(self) -> None:
        """Raises `WaitTimedOut` if the other part was not alive for longer than the patience. Looks
        at most once per `LOOK_SECONDS`."""
        now = self._clock()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        if await self._is_alive():
            self._seen = now
        elif (waited := now - self._seen) > self._patience:
            raise WaitTimedOut(f"waited {waited:.0f} s {self._waits_for}")
