"""Hearing: one connection that waits for the answer of a call.

A call may have several of them, one after another or at once. None of them owns it: what ends a
hearing does not end the sampling.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from holdfast.gateway.exchange import Answer, Delta, Opening, Refused
from holdfast.gateway.live import Live
from holdfast.records.errors import RunStopped

Found = TypeVar("Found")


class Which(Struct, frozen=True):
    """Which of a trajectory's calls it is."""

    key: bytes
    occurrence: int
    older: tuple[bytes, int]
    """The same in older records, in whose keys the order of members counted."""

    def name_in(self, known: Mapping[tuple[bytes, int], Found]) -> tuple[bytes, int]:
        """The name under which it is known, if it is."""
        return self.older if self.older in known else (self.key, self.occurrence)


class Call(Struct):
    """One request of an attempt, and those that ask it again."""

    which: Which
    job: "asyncio.Task[Answer]"
    live: Live
    listeners: int = 0
    delivered: bool = False
    """Whether somebody heard the whole answer."""


class Hearing:
    def __init__(
        self,
        call: Call,
        *,
        on_leave: Callable[[], None],
        on_answer: Callable[[Answer], Awaitable[None]],
        on_refused: Callable[[Refused], Awaitable[None]],
    ):
        """`on_answer`, `on_refused`: before the connection is told of either."""
        self._call = call
        self._on_leave = on_leave
        self._on_answer = on_answer
        self.refused = on_refused
        self._heard = 0
        call.listeners += 1

    async def answer(self) -> Answer:
        """Cancelling it ends the waiting, not the sampling."""
        try:
            found = await asyncio.shield(self._call.job)
        except RunStopped as stopped:
            raise Refused(503, str(stopped), code="stopping") from stopped
        await self._on_answer(found)
        return found

    @property
    def is_ready(self) -> bool:
        return self._call.job.done()

    @property
    def opening(self) -> Opening | None:
        """What is known of an answer that is told while it is sampled."""
        return self._call.live.opening

    async def news(self, seconds: float) -> Sequence[Delta]:
        """What is durable and was not heard yet; nothing after so many seconds, or when the answer
        is there."""
        live, job = self._call.live, self._call.job
        if not self.is_ready and not live.since(self._heard):
            wanted: set[asyncio.Future[Any]] = {job, live.news}
            await asyncio.wait(wanted, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        found = () if self.is_ready else live.since(self._heard)
        self._heard += len(found)
        return found

    def leave(self, *, delivered: bool) -> None:
        self._call.listeners -= 1
        self._call.delivered = self._call.delivered or delivered
        self._on_leave()

    def miss(self) -> None:
        """What was taken for delivered did not arrive."""
        self._call.delivered = False
