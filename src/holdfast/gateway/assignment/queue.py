"""Trajectories that wait for agents that are started elsewhere.

An agent takes the next trajectory, or one that it names. If another agent already has that
trajectory, its next attempt begins; the earlier agent is gone, or its key is rejected from then on.
A trajectory whose agent may have outlived the process that it spoke to is reserved for that agent
for a while.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable

from msgspec import Struct

from holdfast.gateway.calls.attempt_status import status_of
from holdfast.gateway.calls.trajectory import AgentTrajectory
from holdfast.gateway.protocol.messages import RequestRejected, shorten
from holdfast.gateway.server import Binding
from holdfast.records.task import Task
from holdfast.records.trajectory import TrajectoryKey

REJOIN_SECONDS = 30.0
TAKEN = 409
"""The HTTP status of a request for an attempt that another agent got."""


class PendingTrajectory(Struct, eq=False):
    """One attempt that waits for its agent."""

    key: TrajectoryKey
    attempt: int
    task: Task
    binding: Binding
    trajectory: AgentTrajectory
    replaced: asyncio.Event
    """Set when another agent takes the trajectory."""
    is_taken: bool = False
    reserved_until: float = 0.0
    """Until this time of the event loop's clock, only a request that names this trajectory gets
    it."""
    older_key: str = ""
    """The key of an agent that outlived its process of the gateway. The agent continues here with
    this key. Empty for a new agent."""


class PendingTrajectories:
    """The trajectories that are open in this process. Belongs to one event loop."""

    def __init__(self, rejoin: float = REJOIN_SECONDS) -> None:
        self._rejoin = rejoin
        self._open: dict[TrajectoryKey, PendingTrajectory] = {}
        self._free: deque[PendingTrajectory] = deque()
        self._requested: Counter[TrajectoryKey] = Counter()
        """The number of requests that wait for the next attempt of a trajectory."""
        self._returned: set[TrajectoryKey] = set()
        self._closed: RequestRejected | None = None
        self._changed = asyncio.Condition()

    async def close(self, why: RequestRejected) -> None:
        """Stops assigning trajectories. Waiting requests are rejected with `why`."""
        self._closed = why
        async with self._changed:
            self._changed.notify_all()

    async def put(self, pending: PendingTrajectory) -> None:
        status = status_of(pending.trajectory.session.history)
        # Nobody knows whether an agent received its key. If it did, a rejection would end that
        # agent.
        has_agent = status.attempts > 0 and not status.last_failed
        is_returned = pending.key in self._returned
        self._returned.discard(pending.key)
        if has_agent and not is_returned and not self._requested[pending.key]:
            pending.reserved_until = asyncio.get_running_loop().time() + self._rejoin
        async with self._changed:
            self._open[pending.key] = pending
            self._free.append(pending)
            self._changed.notify_all()

    async def withdraw(self, pending: PendingTrajectory) -> None:
        async with self._changed:
            if self._open.get(pending.key) is pending:
                del self._open[pending.key]
            if pending in self._free:
                self._free.remove(pending)
            self._changed.notify_all()

    def of(self, trajectory: str) -> PendingTrajectory | None:
        """Returns the pending trajectory with this name, or None if it is not open here."""
        matches = (pending for key, pending in self._open.items() if str(key) == trajectory)
        return next(matches, None)

    @property
    def is_closed(self) -> bool:
        return self._closed is not None

    def can_go_on(self, pending: PendingTrajectory) -> bool:
        """Returns whether the agent of the earlier attempt can continue. It can if no other agent
        has the trajectory or waits for it."""
        return not pending.is_taken and not self._requested[pending.key]

    def go_on(self, pending: PendingTrajectory, key: str) -> None:
        """Continues the earlier attempt with its agent, which is back with its `key`."""
        self._free.remove(pending)
        pending.older_key = key
        pending.trajectory.go_on()
        self._take(pending)

    def give_back(self, pending: PendingTrajectory) -> None:
        """Makes a trajectory available again, under another key, because the response did not reach
        the agent."""
        self._returned.add(pending.key)
        pending.replaced.set()

    def give_back_unless_seen(self, pending: PendingTrajectory, since: float) -> None:
        """Gives the trajectory back if its agent makes no call before the reservation ends.

        The response that assigned the trajectory may not have reached the agent. `since` is the
        time of the agent's last call so far.
        """

        def give_back() -> None:
            is_open = self._open.get(pending.key) is pending
            if is_open and pending.trajectory.last_seen == since:
                self.give_back(pending)

        asyncio.get_running_loop().call_later(self._rejoin, give_back)

    # --- waiting

    async def until(self, condition: Callable[[], bool], deadline: float) -> bool:
        """Waits until `condition` holds, the deadline of the event loop's clock passes, or the
        queue is closed. Tests the condition after each change, and returns whether it holds."""
        try:
            async with asyncio.timeout_at(deadline), self._changed:
                await self._changed.wait_for(lambda: condition() or self.is_closed)
        except TimeoutError:
            pass
        return condition()

    async def wait_available(self, task: str | None, sample: int, deadline: float) -> bool:
        """Waits until a trajectory is free or, if `task` is given, until the trajectory of this
        task and sample is open. Returns whether that is so by the deadline. Raises
        `RequestRejected` when the queue is closed."""
        if task is None:
            available = await self._wait_free(deadline)
        else:
            available = await self.until(lambda: self._find(task, sample) is not None, deadline)
        if self._closed is not None:
            raise self._closed
        return available

    async def _wait_free(self, deadline: float) -> bool:
        """Waits until a trajectory is free, and returns whether one is. Also wakes when a
        reservation ends, because `_changed` does not announce that."""
        loop = asyncio.get_running_loop()
        while self._next_free() is None and self._closed is None and loop.time() < deadline:
            ends = (pending.reserved_until for pending in self._free)
            soonest = min((end for end in ends if end > loop.time()), default=deadline)
            await self.until(lambda: self._next_free() is not None, min(deadline, soonest))
        return self._next_free() is not None

    # --- taking

    def take(self) -> PendingTrajectory:
        """Takes the next free trajectory. Raises `RequestRejected` if there is none."""
        if self._closed is not None:
            raise self._closed
        if (pending := self._next_free()) is None:
            raise RequestRejected(404, "no trajectory waits for an agent now", code="none_open")
        self._free.remove(pending)
        return self._take(pending)

    async def take_certain(self, task: str, sample: int, seconds: float) -> PendingTrajectory:
        """Takes the trajectory of a task and sample. If an agent already has it, takes its next
        attempt. If several requests want the same attempt, one request gets it and the others are
        rejected. Raises `RequestRejected` if the attempt does not begin within `seconds`."""
        key = self._find(task, sample)
        if key is None:
            raise self._closed or _not_open(task, sample)
        before = self._open[key]
        if not before.is_taken:
            self._free.remove(before)
            return self._take(before)
        self._requested[key] += 1
        before.replaced.set()
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: self._is_over(key, before))
                pending = self._open.get(key)
                if pending is None:
                    raise self._closed or _not_open(task, sample)
                if pending.is_taken:
                    raise taken_by_another(task, sample)
                self._free.remove(pending)
                return self._take(pending)
        except TimeoutError:
            raise RequestRejected(
                503, "its next attempt could not be begun yet", code="busy"
            ) from None
        finally:
            self._requested[key] -= 1
            if not self._requested[key]:
                del self._requested[key]

    def _next_free(self) -> PendingTrajectory | None:
        now = asyncio.get_running_loop().time()
        return next((pending for pending in self._free if pending.reserved_until <= now), None)

    def _find(self, task: str, sample: int) -> TrajectoryKey | None:
        return next((key for key in self._open if (key.task, key.sample) == (task, sample)), None)

    def _take(self, pending: PendingTrajectory) -> PendingTrajectory:
        pending.is_taken = True
        pending.trajectory.touch()  # Its time without a call begins now.
        return pending

    def _is_over(self, key: TrajectoryKey, before: PendingTrajectory) -> bool:
        """Returns whether the attempt `before` has a successor, or will never have one."""
        pending = self._open.get(key)
        if pending is None:
            return self._closed is not None or before.trajectory.completed.is_set()
        return pending is not before


def _not_open(task: str, sample: int) -> RequestRejected:
    message = (
        f"task {shorten(task)!r}, sample {sample} is not open: it is done, or not of this run, "
        'or its next attempt is not begun yet, which "wait" waits for'
    )
    return RequestRejected(404, message, code="not_open")


def taken_by_another(task: str, sample: int) -> RequestRejected:
    message = (
        f"task {shorten(task)!r}, sample {sample} has just been taken by another agent; request "
        "it again only to replace that one"
    )
    return RequestRejected(TAKEN, message, code="taken")
