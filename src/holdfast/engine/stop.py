"""Stop: one place that knows whether the run is ending, and why."""

import asyncio

from holdfast.records.errors import HoldfastError


class Stop:
    """Asked for once; the first reason stands."""

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
        """Something that no trajectory can go on without is gone."""
        if self.fatal is None:
            self.fatal = error
        self.request(str(error) if isinstance(error, HoldfastError) else repr(error))

    @property
    def requested(self) -> bool:
        return self.event.is_set()
