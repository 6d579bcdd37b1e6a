"""Offers: trajectories that wait for an agent which others start.

An agent takes the next one, or a certain one. One that takes a trajectory which somebody has
already is its next attempt: the agent before it is gone, or will find its key refused. A trajectory
whose agent may have outlived the process that it spoke to is kept for that one for a while.
"""

import asyncio
from collections import Counter, deque

from msgspec import Struct

from holdfast.gateway.calls.attempt_status import standing_of
from holdfast.gateway.calls.trajectory import AgentTrajectory
from holdfast.gateway.protocol.messages import RequestRejected, shortened
from holdfast.gateway.server import Binding
from holdfast.records.task import Task
from holdfast.records.trajectory import TrajectoryKey

REJOIN = 30.0
TAKEN = 409
"""The HTTP status for whoever wanted an attempt that another agent got."""


class PendingTrajectory(Struct, eq=False):
    """One attempt that waits for its agent."""

    key: TrajectoryKey
    attempt: int
    task: Task
    binding: Binding
    trajectory: AgentTrajectory
    replaced: asyncio.Event
    """Set when another agent wants the trajectory."""
    is_taken: bool = False
    kept_until: float = 0.0
    """By the event loop's clock: until then it is given to nobody who does not ask for it."""
    older_key: str = ""
    """The one that its agent went on with, having outlived the process that it spoke to."""


class Offers:
    """What can be taken now. All of it belongs to one event loop."""

    def __init__(self, rejoin: float = REJOIN) -> None:
        self._rejoin = rejoin
        self._open: dict[TrajectoryKey, PendingTrajectory] = {}
        self._names: dict[str, PendingTrajectory] = {}
        self._waiting: deque[PendingTrajectory] = deque()
        self._wanted: Counter[TrajectoryKey] = Counter()
        """Those whose next attempt somebody waits for."""
        self._returned: set[TrajectoryKey] = set()
        self._over: RequestRejected | None = None
        self._changed = asyncio.Condition()

    async def close(self, why: RequestRejected) -> None:
        """Nothing is offered any more; whoever waits is told why."""
        self._over = why
        async with self._changed:
            self._changed.notify_all()

    async def put(self, offer: PendingTrajectory) -> None:
        standing = standing_of(offer.trajectory.session.history)
        # Whether it was told its key nobody knows; if it was, refusing it would be its end.
        has_agent = standing.attempts > 0 and not standing.last_failed
        is_returned = offer.key in self._returned
        self._returned.discard(offer.key)
        if has_agent and not is_returned and not self._wanted[offer.key]:
            offer.kept_until = asyncio.get_running_loop().time() + self._rejoin
        async with self._changed:
            self._open[offer.key] = self._names[str(offer.key)] = offer
            self._waiting.append(offer)
            self._changed.notify_all()

    async def withdraw(self, offer: PendingTrajectory) -> None:
        async with self._changed:
            if self._open.get(offer.key) is offer:
                del self._open[offer.key], self._names[str(offer.key)]
            if offer in self._waiting:
                self._waiting.remove(offer)
            self._changed.notify_all()

    def of(self, trajectory: str) -> PendingTrajectory | None:
        """That of the trajectory with this name, if it is open here."""
        return self._names.get(trajectory)

    def can_go_on(self, offer: PendingTrajectory) -> bool:
        """Whether the agent of the attempt before may have it: nobody else has, or waits for it."""
        return not offer.is_taken and not self._wanted[offer.key]

    def go_on(self, offer: PendingTrajectory, key: str) -> None:
        """The agent of the attempt before is back with its `key`, and goes on with that attempt."""
        self._waiting.remove(offer)
        offer.older_key = key
        offer.trajectory.go_on()
        self._taken(offer)

    def give_back(self, offer: PendingTrajectory) -> None:
        """Whoever took it was not told so: it is offered again, under another key."""
        self._returned.add(offer.key)
        offer.replaced.set()

    async def take(self, seconds: float) -> PendingTrajectory:
        """The next one, after at most so many seconds."""
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            if self._over is not None:
                raise self._over
            now = asyncio.get_running_loop().time()
            if (offer := self._next_free(now)) is not None:
                return self._taken(offer)
            if now >= deadline:
                raise RequestRejected(404, "no trajectory waits for an agent now", code="none_open")
            kept = [one.kept_until for one in self._waiting if one.kept_until > now]
            try:
                async with asyncio.timeout_at(min([deadline, *kept])), self._changed:
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _next_free(self, now: float) -> PendingTrajectory | None:
        found = next((one for one in self._waiting if one.kept_until <= now), None)
        if found is not None:
            self._waiting.remove(found)
        return found

    async def take_certain(self, task: str, sample: int, seconds: float) -> PendingTrajectory:
        """A certain one; if somebody has it, as its next attempt, which is begun within so many
        seconds. Of several that want the same attempt one gets it, and the others are refused."""
        found = next((one for one in self._open if (one.task, one.sample) == (task, sample)), None)
        if found is None:
            raise self._over or _not_open(task, sample)
        before = self._open[found]
        if not before.is_taken:
            self._waiting.remove(before)
            return self._taken(before)
        self._wanted[found] += 1
        before.replaced.set()
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: self._is_over(found, before))
                offer = self._open.get(found)
                if offer is None:
                    raise self._over or _not_open(task, sample)
                if offer.is_taken:
                    raise taken_by_another(task, sample)
                self._waiting.remove(offer)
                return self._taken(offer)
        except TimeoutError:
            raise RequestRejected(
                503, "its next attempt could not be begun yet", code="busy"
            ) from None
        finally:
            self._wanted[found] -= 1
            if not self._wanted[found]:
                del self._wanted[found]

    def _taken(self, offer: PendingTrajectory) -> PendingTrajectory:
        offer.is_taken = True
        offer.trajectory.heard()  # Its silence begins now.
        return offer

    def _is_over(self, key: TrajectoryKey, before: PendingTrajectory) -> bool:
        """Whether the attempt `before` has its successor, or will have none."""
        offer = self._open.get(key)
        if offer is None:
            return self._over is not None or before.trajectory.completed.is_set()
        return offer is not before


def _not_open(task: str, sample: int) -> RequestRejected:
    words = (
        f"task {shortened(task)!r}, sample {sample} is not open: it is done, or not of this run, "
        'or its next attempt is not begun yet, which "wait" waits for'
    )
    return RequestRejected(404, words, code="not_open")


def taken_by_another(task: str, sample: int) -> RequestRejected:
    words = (
        f"task {shortened(task)!r}, sample {sample} has just been taken by another agent; ask "
        "again only to replace that one"
    )
    return RequestRejected(TAKEN, words, code="taken")
