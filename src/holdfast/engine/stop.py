"""Stop: whether a run is to end, and why."""

import asyncio
from typing import Any

from holdfast.records.errors import HoldfastError


class Stop:
    """The first request gives the reason."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.reason = ""
        self.fatal: BaseException | None = None

    def request(self, reason: str) -> None:
        """Ends admission; trajectories stop at their next step."""
        if not self.event.is_set():
            self.reason = reason
            self.event.set()

    def fail(self, error: BaseException) -> None:
        """Stops the run for an error that no trajectory can go on after."""
        if self.fatal is None:
            self.fatal = error
        self.request(str(error) if isinstance(error, HoldfastError) else repr(error))

    @property
    def requested(self) -> bool:
        return self.event.is_set()

    async def wait_or(self, *tasks: "asyncio.Task[Any]") -> None:
        """Returns when a stop is requested, or one of the tasks is done, whichever comes first."""
        stopped = asyncio.create_task(self.event.wait(), name="stop")
        try:
            await asyncio.wait({stopped, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            await asyncio.wait({stopped})
