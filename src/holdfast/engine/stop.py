"""Stop says whether a run is to end, and why."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from holdfast.records.errors import HoldfastError


class Stop:
    """A request to end the run. The first request sets the reason."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.hurried = asyncio.Event()
        """Set when calls in flight are limited to their grace period. A stop for a spending limit
        alone does not set it."""
        self.reason = ""
        self.spent = False
        """Whether a spending limit is reached. Calls in flight are paid for, so the run waits
        for them.
        """
        self.fatal: BaseException | None = None
        self.in_scoring = False
        """Whether the fatal error came from scoring. Rollouts in flight may then still finish."""

    def request(self, reason: str, *, spent: bool = False) -> None:
        """Requests a stop. Admission ends, and trajectories stop at their next step."""
        if not self.event.is_set():
            self.reason, self.spent = reason, spent
            self.event.set()
        if not spent:
            self.hurried.set()

    def lift_limit(self) -> None:
        """Withdraws a stop for a spending limit. A stop for another reason stays.

        Call it if all remaining work was already in flight, so that the limit stopped nothing.
        """
        if self.spent and not self.hurried.is_set():
            self.reason, self.spent = "", False
            self.event.clear()

    def fail(self, error: BaseException, *, in_scoring: bool = False) -> None:
        """Stops the run because of an error after which no trajectory can continue."""
        if self.fatal is None:
            self.fatal, self.in_scoring = error, in_scoring
        self.request(str(error) if isinstance(error, HoldfastError) else repr(error))

    @property
    def requested(self) -> bool:
        return self.event.is_set()

    async def wait_or(
        self, *tasks: "asyncio.Future[Any]", event: asyncio.Event | None = None
    ) -> None:
        """Returns when a stop is requested (or `event` is set), or when one of the tasks is
        done.
        """
        stopped = asyncio.create_task((event or self.event).wait(), name="stop")
        try:
            await asyncio.wait({stopped, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            await asyncio.wait({stopped})

    async def cancels(
        self, work: Coroutine[Any, Any, object], *, name: str, event: asyncio.Event | None = None
    ) -> "asyncio.Task[object]":
        """Runs the work, and cancels it if a stop is requested (or `event` is set). Returns its
        finished task.
        """
        task = asyncio.create_task(work, name=name)
        try:
            await self.wait_or(task, event=event)
        finally:
            task.cancel()
            await asyncio.wait({task})
        return task
