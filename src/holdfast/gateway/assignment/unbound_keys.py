"""Handles calls whose key is signed but not bound in this process.

There are four cases. If the attempt's agent outlived the process that it spoke to, the agent
continues with the same key. If the trajectory is at another worker, the call is relayed. If no
worker has it, because its worker was just killed, the call waits until a worker opens it. If the
attempt is over, the call is rejected for good.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from aiohttp import web

from holdfast.gateway.assignment.queue import PendingTrajectories, PendingTrajectory
from holdfast.gateway.calls.attempt_status import AttemptLookup, status_of
from holdfast.gateway.calls.rejections import attempt_over
from holdfast.gateway.http.call_route import completed
from holdfast.gateway.http.request import ELSEWHERE, RequestContext
from holdfast.gateway.protocol.keys import Bearer
from holdfast.gateway.protocol.messages import RequestRejected
from holdfast.gateway.workers.peers import OWNS, Peers, WaitForTrajectory

TAKEOVER_SECONDS = 10.0
"""Seconds for which a call waits until its trajectory is opened again."""
MAX_KNOWN_OVER = 65_536


class UnboundKeys:
    def __init__(
        self,
        pending: PendingTrajectories,
        adopt: Callable[[PendingTrajectory, str], None],
        *,
        register: AttemptLookup | None,
        peers: Peers | None,
        is_stopping: Callable[[], bool],
        takeover_seconds: float = TAKEOVER_SECONDS,
    ):
        self._pending = pending
        self._adopt = adopt
        self._register = register
        self._peers = peers
        self._is_stopping = is_stopping
        self._takeover_seconds = takeover_seconds if register is not None else 0.0
        self._over: OrderedDict[str, None] = OrderedDict()
        """Rejected keys, so that repeated calls are rejected without a lookup."""

    async def __call__(self, context: RequestContext, bearer: Bearer) -> web.StreamResponse | None:
        if context.key in self._over:
            raise attempt_over()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._takeover_seconds
        while True:
            if self._adopted(context.key, bearer):
                return None
            if context.is_inside:
                # This is not an agent's call: another worker looked for the trajectory here.
                context.route = OWNS
                raise RequestRejected(503, "this worker has it not", code=ELSEWHERE)
            response = await self._respond(context, bearer)
            if response is not None:
                return response
            if self._is_stopping() or self._pending.is_closed:
                raise RequestRejected(503, "the gateway is closing", code="stopping")
            if loop.time() >= deadline:
                raise RequestRejected(503, "the trajectory is not open again yet", code="not_yet")
            await self._wait_open(bearer.trajectory, deadline)

    def _adopted(self, key: str, bearer: Bearer) -> bool:
        """Lets the agent continue in this process if its trajectory is open here, and returns
        whether it is. Raises `RequestRejected` if the attempt is over or another agent has the
        trajectory."""
        pending = self._pending.of(bearer.trajectory)
        if pending is None:
            return False
        if pending.older_key == key:
            return True  # Another call of the agent has bound the key while this one waited.
        # Only the holder of the lease knows the answer.
        status = status_of(pending.trajectory.session.history)
        if status.is_over(bearer) or not self._pending.can_go_on(pending):
            raise self._rejection(key)
        self._pending.go_on(pending, key)
        self._adopt(pending, key)
        return True

    async def _respond(self, context: RequestContext, bearer: Bearer) -> web.StreamResponse | None:
        """Returns the response of another worker or, if no worker has the trajectory, the response
        from the record. Returns None if the call has to wait until a worker opens the trajectory.
        """
        if self._peers is not None:
            response = await self._peers.relay(context, bearer.trajectory)
            if response is not None:
                return response
        return await self._respond_from_record(context, bearer)

    async def _respond_from_record(
        self, context: RequestContext, bearer: Bearer
    ) -> web.StreamResponse | None:
        answer = None
        if self._register is not None:
            answer = await self._register.status(bearer.trajectory)
        if answer is None:
            raise self._rejection(context.key)
        if context.route == "/complete" and answer.finished and answer.is_last(bearer):
            # The end was confirmed before, but the agent may not have received the response.
            await context.body()
            return await context.send(completed(answer.reward))
        if answer.is_over(bearer):
            raise self._rejection(context.key, for_ever=not answer.finished)
        return None

    async def _wait_open(self, trajectory: str, deadline: float) -> None:
        """Waits until a worker has opened the trajectory, the run stops, or the deadline passes."""
        here = self._pending.until(
            lambda: self._pending.of(trajectory) is not None or self._is_stopping(), deadline
        )
        if self._peers is None:
            await here
        else:
            await self._peers.first_event(here, OWNS, WaitForTrajectory(trajectory), deadline)

    def _rejection(self, key: str, *, for_ever: bool = False) -> RequestRejected:
        if for_ever:
            self._over[key] = None
            if len(self._over) > MAX_KNOWN_OVER:
                self._over.popitem(last=False)
        return attempt_over()
