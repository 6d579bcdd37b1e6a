"""OutsideHold: a hold that is begun and ended over HTTP, for whoever changes the weights of an
engine and is no part of the run.

    POST /hold {"seconds": 60}   nothing new is sampled, for at most so long; again: anew so long
    POST /release                it goes on; saying it again changes nothing

Whichever worker is asked, all of them are told before it answers. Of two orders the later one
counts, wherever they were given and in whatever order they arrive: they are stamped by the one
clock of the machine. A worker that is started again asks the others before it has trajectories, and
looks at what those have kept that are gone; a gateway that is started again is not held.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from aiohttp import web
from msgspec import Struct

from holdfast.gateway.http.request import Visit
from holdfast.gateway.protocol.messages import RequestRejected
from holdfast.gateway.server import Endpoint
from holdfast.gateway.weight_hold import HOLD_SECONDS, Hold
from holdfast.gateway.workers import peers as between
from holdfast.gateway.workers.peers import ORDER, ORDERED, Peers

HOLD, RELEASE = "/hold", "/release"
LONGEST = 86_400.0
KEPT = ".order"
"""Files in the folder of this gateway's workers. The next gateway has another folder."""
_log = logging.getLogger("holdfast.gateway")


class HoldRequest(Struct, forbid_unknown_fields=True):
    seconds: float = HOLD_SECONDS


class Nothing(Struct, forbid_unknown_fields=True):
    pass


class Order(Struct, frozen=True, order=True):
    """The last word on it."""

    stamp: int
    """When it was given, in nanoseconds."""
    worker: int
    until: float
    """By the same clock; 0: it is over."""

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.until - time.monotonic())


class OutsideHold:
    def __init__(self, hold: Callable[[float], Hold], *, peers: Peers | None):
        """`hold`: holds this worker's gateway for so many seconds."""
        self._begin = hold
        self._peers = peers
        self._order = Order(0, 0, 0.0)
        self._hold: Hold | None = None

    def endpoints(self) -> dict[str, Endpoint]:
        """Those that the token opens."""
        return {HOLD: self._wanted, RELEASE: self._unwanted}

    def inner(self) -> dict[str, Endpoint]:
        """Those for other workers."""

        async def order(visit: Visit) -> web.StreamResponse:
            self._obey(await between.asked(visit, Order))
            return await between.answer(visit, None)

        async def ordered(visit: Visit) -> web.StreamResponse:
            return await between.answer(visit, self._order)

        return {ORDER: order, ORDERED: ordered}

    async def ask_others(self) -> None:
        """What was ordered before this worker was there. To be awaited once it can be told, so that
        no order is missed in between."""
        if self._peers is None:
            return
        for kept in Path(self._peers.place.folder).glob(f"*{KEPT}"):
            self._obey(msgspec.json.decode(kept.read_bytes(), type=Order))
        for told in (await self._peers.everyone(ORDERED)).values():
            self._obey(msgspec.json.decode(told, type=Order))

    async def _wanted(self, visit: Visit) -> web.StreamResponse:
        seconds = _read(await visit.body(), HoldRequest, '{"seconds": 60}').seconds
        if not 0 < seconds <= LONGEST:
            words = f"a hold has a deadline: give seconds above 0, at most {LONGEST:g}"
            raise RequestRejected(400, words, param="seconds")
        workers = await self._give(time.monotonic() + seconds)
        told = {"held": True, "seconds": seconds, "workers": workers}
        return await visit.telling.whole(msgspec.json.encode(told))

    async def _unwanted(self, visit: Visit) -> web.StreamResponse:
        _read(await visit.body(), Nothing, "nothing")
        workers = await self._give(0.0)
        told = {"held": False, "workers": workers}
        return await visit.telling.whole(msgspec.json.encode(told))

    async def _give(self, until: float) -> int:
        """How many workers obey."""
        peers = self._peers
        order = Order(time.monotonic_ns(), 0 if peers is None else peers.place.index, until)
        self._obey(order)
        if peers is None:
            return 1
        return 1 + await peers.tell_everyone(ORDER, order)

    def _obey(self, order: Order) -> None:
        if order <= self._order:
            return
        self._order, before, self._hold = order, self._hold, None
        # The new one first: nothing slips through between the two.
        if order.seconds_left:
            self._hold = self._begin(order.seconds_left)
        if before is not None:
            before.end()
        self._keep()

    def _keep(self) -> None:
        """For workers that are started when nobody lives any more who could tell them."""
        if self._peers is None:
            return
        place = self._peers.place
        own = Path(place.folder) / f"{place.index}{KEPT}"
        try:
            new = own.with_suffix(".new")
            new.write_bytes(msgspec.json.encode(self._order))
            new.replace(own)
        except OSError as error:
            _log.warning("a hold is not kept, should all workers be killed at once: %s", error)


def _read(body: bytes, kind: "type[between.Asked]", wanted: str) -> "between.Asked":
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (ValueError, RecursionError) as error:  # What is no UTF-8 is no MsgspecError.
        raise RequestRejected(400, f"it wants {wanted}: {error}") from error
