"""`POST /trajectories`: assigns trajectories to agents, from this worker or from another.

A waiting request is answered as soon as a trajectory opens, here or at another worker. If the agent
did not receive its assignment, the trajectory is assigned again, under another key.
"""

import asyncio
import uuid
from collections.abc import Callable

import msgspec
from aiohttp import web
from msgspec import Struct

from holdfast.gateway.assignment.queue import (
    TAKEN,
    PendingTrajectories,
    PendingTrajectory,
    taken_by_another,
)
from holdfast.gateway.http.request import RequestContext
from holdfast.gateway.http.tickets import RelayReport
from holdfast.gateway.protocol.messages import RequestRejected
from holdfast.gateway.server import Endpoint
from holdfast.gateway.workers.peers import (
    AVAILABLE,
    OWNS,
    RELAYED,
    STATS,
    TAKE,
    Peers,
    WaitForTrajectory,
    WorkerStats,
)

MAX_WAIT_SECONDS = 60.0


class TrajectoryRequest(Struct, forbid_unknown_fields=True):
    task: str | None = None
    sample: int = 0
    wait: float = 0.0
    """Seconds to wait for a trajectory."""


class AssignmentRoutes:
    def __init__(
        self,
        pending: PendingTrajectories,
        *,
        peers: Peers | None,
        on_report: Callable[[RelayReport], None],
    ):
        """`on_report` is called with the reports of other workers about responses that they
        relayed."""
        self._pending = pending
        self._peers = peers
        self._on_report = on_report

    async def open(self, context: RequestContext) -> web.StreamResponse:
        """Handles `POST /trajectories`."""
        query = await _query(context)
        deadline = _deadline(min(max(query.wait, 0.0), MAX_WAIT_SECONDS))
        while True:
            try:
                return await self._assign(context, query)
            except RequestRejected as rejection:
                if rejection.status != 404 or _deadline(0) >= deadline:
                    raise
            await self._wait_available(query, deadline)

    async def _assign(
        self, context: RequestContext, query: TrajectoryRequest
    ) -> web.StreamResponse:
        """Assigns a trajectory of this worker, or of another one. Raises `RequestRejected`, with
        status 404 if there is no trajectory."""
        try:
            return await self._send(context, await self._take(query))
        except RequestRejected as rejection:
            if rejection.status != 404 or self._peers is None:
                raise
            none_here = rejection
        for index in self._peers.others:
            ticket = uuid.uuid4().hex
            response = await self._peers.request_ticketed(index, TAKE, query, ticket)
            if response is not None and response[0] == 200:
                return await self._forward(index, context, response[1], ticket)
            if response is not None and response[0] == TAKEN and query.task is not None:
                raise taken_by_another(query.task, query.sample)
        raise none_here

    async def _wait_available(self, query: TrajectoryRequest, deadline: float) -> None:
        """Waits until some worker may have a free trajectory, or the deadline passes. Raises
        `RequestRejected` when this worker closes."""
        here = self._pending.wait_available(query.task, query.sample, deadline)
        if self._peers is None:
            await here
        else:
            await self._peers.first_event(here, AVAILABLE, query, deadline)

    async def _take(self, query: TrajectoryRequest) -> PendingTrajectory:
        if query.task is None:
            return self._pending.take()
        return await self._pending.take_certain(query.task, query.sample, MAX_WAIT_SECONDS)

    async def _send(
        self, context: RequestContext, pending: PendingTrajectory
    ) -> web.StreamResponse:
        context.trajectory = str(pending.key)
        try:
            await pending.trajectory.session.log.start_attempt()
            return await context.send_json(_description(pending))
        except BaseException:
            self._pending.give_back(pending)
            raise

    async def _forward(
        self, index: int, context: RequestContext, body: bytes, ticket: str
    ) -> web.StreamResponse:
        assert self._peers is not None, "another worker assigned it"
        context.trajectory = msgspec.json.decode(body)["trajectory"]
        delivered = False
        try:
            response = await context.send(body)
            delivered = True
        finally:
            self._peers.report(index, RelayReport(ticket, delivered))
        return response

    # --- for other workers

    def internal_routes(self, stats: Callable[[], WorkerStats]) -> dict[str, Endpoint]:
        async def owns(context: RequestContext) -> web.StreamResponse:
            query = await context.parse(WaitForTrajectory, wanted="a trajectory")
            pending = await self._pending.until(
                lambda: self._pending.of(query.trajectory) is not None, _deadline(query.wait)
            )
            return await context.send_json(pending)

        async def available(context: RequestContext) -> web.StreamResponse:
            query = await _query(context)
            deadline = _deadline(query.wait)
            pending = await self._pending.wait_available(query.task, query.sample, deadline)
            return await context.send_json(pending)

        async def take(context: RequestContext) -> web.StreamResponse:
            pending = await self._take(await _query(context))
            assigned = _Assigned(self._pending, pending, pending.trajectory.last_seen)
            response = await self._send(context, pending)
            context.leave(assigned, delivered=True)
            return response

        async def relayed(context: RequestContext) -> web.StreamResponse:
            for report in await context.parse(list[RelayReport], wanted="reports"):
                self._on_report(report)
            return await context.send_json(None)

        async def send_stats(context: RequestContext) -> web.StreamResponse:
            return await context.send_json(stats())

        return {
            OWNS: owns,
            AVAILABLE: available,
            TAKE: take,
            RELAYED: relayed,
            STATS: send_stats,
        }


class _Assigned(Struct, frozen=True, eq=False):
    """A trajectory that was assigned to an agent through another worker."""

    queue: PendingTrajectories
    pending: PendingTrajectory
    since: float
    """The trajectory's `last_seen` when it was assigned."""

    def leave(self, *, delivered: bool | None) -> None:
        if delivered is None:
            self.queue.give_back_unless_seen(self.pending, self.since)
        elif not delivered:
            self.queue.give_back(self.pending)

    def mark_delivered(self) -> None:
        """Does nothing, because the agent's own calls show that it received the trajectory."""


async def _query(context: RequestContext) -> TrajectoryRequest:
    wanted = '{"task": "t1", "sample": 0, "wait": 30}, or less'
    query = await context.parse(TrajectoryRequest, wanted=wanted)
    if query.sample and query.task is None:
        raise RequestRejected(400, "a sample is one of a task: name it too", param="task")
    return query


def _deadline(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


def _description(pending: PendingTrajectory) -> dict[str, object]:
    binding = pending.binding
    return {
        "trajectory": str(pending.key),
        "group": pending.key.group,
        "task": pending.task,
        "sample": pending.key.sample,
        "attempt": pending.attempt,
        "key": binding.key,
        "openai_base_url": f"{binding.url}/v1",
        "anthropic_base_url": binding.url,
        "bound_url": binding.bound_url,
    }
