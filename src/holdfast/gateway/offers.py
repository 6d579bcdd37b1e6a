"""Offers: trajectories that wait for an agent which others start.

An agent takes the next one, or a certain one. One that takes a trajectory which somebody has
already is its next attempt: the agent before it is gone, or will find its key refused.
"""

import asyncio
from collections import deque

from msgspec import Struct

from holdfast.gateway.exchange import Refused
from holdfast.gateway.server import Binding
from holdfast.gateway.trajectory import AgentTrajectory
from holdfast.records.task import Task
from holdfast.records.trajectory import TrajectoryKey


class Offer(Struct, eq=False):
    """One attempt that waits for its agent."""

    key: TrajectoryKey
    attempt: int
    task: Task
    binding: Binding
    trajectory: AgentTrajectory
    replaced: asyncio.Event
    """Set when another agent wants the trajectory."""
    is_taken: bool = False


class Offers:
    """What can be taken now. All of it belongs to one event loop."""

    def __init__(self) -> None:
        self._open: dict[TrajectoryKey, Offer] = {}
        self._waiting: deque[Offer] = deque()
        self._changed = asyncio.Condition()

    async def put(self, offer: Offer) -> None:
        async with self._changed:
            self._open[offer.key] = offer
            self._waiting.append(offer)
            self._changed.notify_all()

    async def withdraw(self, offer: Offer) -> None:
        async with self._changed:
            if self._open.get(offer.key) is offer:
                del self._open[offer.key]
            if offer in self._waiting:
                self._waiting.remove(offer)
            self._changed.notify_all()

    async def take(self, seconds: float) -> Offer:
        """The next one, after at most so many seconds."""
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: bool(self._waiting))
                return self._taken(self._waiting.popleft())
        except TimeoutError:
            raise Refused(404, "no trajectory waits for an agent now", code="none_open") from None

    async def take_certain(self, task: str, sample: int, seconds: float) -> Offer:
        """A certain one; if somebody has it, as its next attempt."""
        found = next((one for one in self._open if (one.task, one.sample) == (task, sample)), None)
        if found is None:
            words = f"task {task!r}, sample {sample} is not open: finished, unknown, or not begun"
            raise Refused(404, words, code="not_open")
        before = self._open[found]
        if not before.is_taken:
            self._waiting.remove(before)
            return self._taken(before)
        before.replaced.set()
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: self._next(found, before) is not None)
                offer = self._next(found, before)
                assert offer is not None, "it was waited for"
                self._waiting.remove(offer)
                return self._taken(offer)
        except TimeoutError:
            raise Refused(503, "its next attempt could not be begun yet", code="busy") from None

    def _taken(self, offer: Offer) -> Offer:
        offer.is_taken = True
        offer.trajectory.heard()  # Its silence begins now.
        return offer

    def _next(self, key: TrajectoryKey, before: Offer) -> Offer | None:
        offer = self._open.get(key)
        return None if offer is before or offer is None or offer.is_taken else offer
