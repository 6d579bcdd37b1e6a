"""`POST /trajectories`: assigns trajectories to agents, from this worker or from another.

A request that waits is answered by the event that a trajectory opens, here or at another worker. A
trajectory whose assignment did not arrive is assigned again, under another key.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

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
from holdfast.gateway.protocol.messages import RequestRejected
from holdfast.gateway.server import Endpoint
from holdfast.gateway.workers import peers as between
from holdfast.gateway.workers.peers import (
    AVAILABLE,
    GIVE_BACK,
    OWNS,
    STATS,
    TAKE,
    UNDELIVERED,
    Peers,
    WaitForTrajectory,
    WorkerStats,
)

MAX_WAIT_SECONDS = 60.0


class TrajectoryRequest(Struct, forbid_unknown_fields=True):
    task: str | None = None
    sample: int = 0
    wait: float = 0.0
    """Seconds to wait for one."""


class AssignmentRoutes:
    def __init__(
        self,
        pending: PendingTrajectories,
        by_key: Mapping[str, PendingTrajectory],
        *,
        peers: Peers | None,
        on_undelivered: Callable[[str], None],
    ):
        """`on_undelivered` is called with the ticket of a response that did not arrive."""
        self._pending = pending
        self._by_key = by_key
        self._peers = peers
        self._on_undelivered = on_undelivered

    async def open(self, context: RequestContext) -> web.StreamResponse:
        """`POST /trajectories`."""
        query = _parse(await context.body())
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
        """From here, or else from another worker. Raises `RequestRejected`: 404 for none."""
        try:
            return await self._send(context, await self._take(query))
        except RequestRejected as rejection:
            if rejection.status != 404 or self._peers is None:
                raise
            none_here = rejection
        for index in self._peers.others:
            response = await self._peers.request_shielded(
                index, TAKE, query, undelivered=partial(self._return, index)
            )
            if response is not None and response[0] == 200:
                return await self._forward(index, context, response[1])
            if response is not None and response[0] == TAKEN and query.task is not None:
                raise taken_by_another(query.task, query.sample)
        raise none_here

    async def _wait_available(self, query: TrajectoryRequest, deadline: float) -> None:
        """Until there may be one, at any worker. Raises `RequestRejected` when this one closes."""
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
        context.response.trajectory = str(pending.key)
        try:
            await pending.trajectory.session.log.start_attempt()
            return await context.response.send(msgspec.json.encode(_description(pending)))
        except BaseException:
            self._pending.give_back(pending)
            raise

    async def _forward(
        self, index: int, context: RequestContext, body: bytes
    ) -> web.StreamResponse:
        context.response.trajectory = msgspec.json.decode(body)["trajectory"]
        try:
            return await context.response.send(body)
        except BaseException:
            self._return(index, body)
            raise

    def _return(self, index: int, body: bytes) -> None:
        assert self._peers is not None, "another worker assigned it"
        self._peers.notify(index, GIVE_BACK, msgspec.json.decode(body)["key"])

    # --- for other workers

    def internal_routes(self, stats: Callable[[], WorkerStats]) -> dict[str, Endpoint]:
        async def owns(context: RequestContext) -> web.StreamResponse:
            query = await between.parse_body(context, WaitForTrajectory)
            found = await self._pending.until(
                lambda: self._pending.of(query.trajectory) is not None, _deadline(query.wait)
            )
            return await between.send_json(context, found)

        async def available(context: RequestContext) -> web.StreamResponse:
            query = _parse(await context.body())
            deadline = _deadline(query.wait)
            found = await self._pending.wait_available(query.task, query.sample, deadline)
            return await between.send_json(context, found)

        async def take(context: RequestContext) -> web.StreamResponse:
            return await self._send(context, await self._take(_parse(await context.body())))

        async def give_back(context: RequestContext) -> web.StreamResponse:
            pending = self._by_key.get(await between.parse_body(context, str))
            if pending is not None:
                self._pending.give_back(pending)
            return await between.send_json(context, None)

        async def undelivered(context: RequestContext) -> web.StreamResponse:
            self._on_undelivered(await between.parse_body(context, str))
            return await between.send_json(context, None)

        async def send_stats(context: RequestContext) -> web.StreamResponse:
            return await between.send_json(context, stats())

        return {
            OWNS: owns,
            AVAILABLE: available,
            TAKE: take,
            GIVE_BACK: give_back,
            UNDELIVERED: undelivered,
            STATS: send_stats,
        }


def _parse(body: bytes) -> TrajectoryRequest:
    try:
        query = msgspec.json.decode(body or b"{}", type=TrajectoryRequest)
    except (ValueError, RecursionError) as error:
        message = f'it wants {{"task": "t1", "sample": 0, "wait": 30}}, or less: {error}'
        raise RequestRejected(400, message) from error
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
