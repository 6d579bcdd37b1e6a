"""Holds that begin and end over HTTP, for a process that changes an engine's weights and is not
part of the run.

    POST /hold {"seconds": 60}   samples nothing new, for this time at most; a repeated request
                                 begins the time again
    POST /release                lets sampling continue; a repeated request changes nothing

Any worker may get the request. It responds when all workers have the order. The later of two orders
counts, whichever workers they reach and in whatever order they arrive, because the machine's one
clock stamps them. A worker that is started again requests the last order from the other workers
before it opens trajectories, and reads the order files of workers that are gone. A gateway that is
started again is not held.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from aiohttp import web
from msgspec import Struct

from holdfast.gateway.http.request import RequestContext
from holdfast.gateway.protocol.messages import RequestRejected
from holdfast.gateway.server import Endpoint
from holdfast.gateway.workers.peers import ORDER, ORDERED, Peers
from holdfast.policy.hold import HOLD_SECONDS, Hold

HOLD, RELEASE = "/hold", "/release"
MAX_HOLD_SECONDS = 86_400.0
ORDER_SUFFIX = ".order"
"""The ending of order files in the workers' folder. The next gateway has another folder."""
_log = logging.getLogger("holdfast.gateway")


class HoldRequest(Struct, forbid_unknown_fields=True):
    seconds: float = HOLD_SECONDS


class ReleaseRequest(Struct, forbid_unknown_fields=True):
    pass


class HoldOrder(Struct, frozen=True, order=True):
    """An order to hold or to release. The latest order counts."""

    stamp: int
    """The time of the order, in nanoseconds of the machine's clock."""
    worker: int
    until: float
    """The end of the hold, in seconds of the same clock. 0 is an order to release."""

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.until - time.monotonic())


class HoldRoutes:
    def __init__(self, hold: Callable[[float], Hold], *, peers: Peers | None):
        """`hold` holds this worker's gateway for a number of seconds."""
        self._begin = hold
        self._peers = peers
        self._order = HoldOrder(0, 0, 0.0)
        self._hold: Hold | None = None

    def endpoints(self) -> dict[str, Endpoint]:
        """Returns the routes that require the token."""
        return {HOLD: self._handle_hold, RELEASE: self._handle_release}

    def internal_routes(self) -> dict[str, Endpoint]:
        """Returns the routes for other workers."""

        async def order(context: RequestContext) -> web.StreamResponse:
            self._obey(await context.parse(HoldOrder, wanted="an order"))
            return await context.send_json(None)

        async def ordered(context: RequestContext) -> web.StreamResponse:
            return await context.send_json(self._order)

        return {ORDER: order, ORDERED: ordered}

    async def obey_earlier_orders(self) -> None:
        """Obeys the last order that was given before this worker was started. Await it once other
        workers can reach this worker, so that it misses no order."""
        if self._peers is None:
            return
        for path in Path(self._peers.place.folder).glob(f"*{ORDER_SUFFIX}"):
            self._obey(msgspec.json.decode(path.read_bytes(), type=HoldOrder))
        for body in (await self._peers.request_all(ORDERED)).values():
            self._obey(msgspec.json.decode(body, type=HoldOrder))

    async def _handle_hold(self, context: RequestContext) -> web.StreamResponse:
        request = await context.parse(HoldRequest, wanted='{"seconds": 60}')
        seconds = request.seconds
        if not 0 < seconds <= MAX_HOLD_SECONDS:
            message = f"a hold has a deadline: give seconds above 0, at most {MAX_HOLD_SECONDS:g}"
            raise RequestRejected(400, message, param="seconds")
        workers = await self._give(time.monotonic() + seconds)
        body = {"held": True, "seconds": seconds, "workers": workers}
        return await context.send_json(body)

    async def _handle_release(self, context: RequestContext) -> web.StreamResponse:
        await context.parse(ReleaseRequest, wanted="nothing")
        workers = await self._give(0.0)
        return await context.send_json({"held": False, "workers": workers})

    async def _give(self, until: float) -> int:
        """Gives an order to all workers. Returns how many of them obey it."""
        peers = self._peers
        order = HoldOrder(time.monotonic_ns(), 0 if peers is None else peers.place.index, until)
        self._obey(order)
        return 1 if peers is None else 1 + await peers.notify_all(ORDER, order)

    def _obey(self, order: HoldOrder) -> None:
        if order <= self._order:
            return
        self._order, before, self._hold = order, self._hold, None
        # The new hold begins first, so that no call starts between the two.
        if order.seconds_left:
            self._hold = self._begin(order.seconds_left)
        if before is not None:
            before.end()
        self._store()

    def _store(self) -> None:
        """Stores the order for workers that are started when no other worker is left to ask."""
        if self._peers is None:
            return
        place = self._peers.place
        own = Path(place.folder) / f"{place.index}{ORDER_SUFFIX}"
        try:
            new = own.with_suffix(".new")
            new.write_bytes(msgspec.json.encode(self._order))
            new.replace(own)
        except OSError as error:
            _log.warning("a hold is not kept, should all workers be killed at once: %s", error)
