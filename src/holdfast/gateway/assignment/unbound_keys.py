"""Strangers: calls whose key is signed, and not bound in this process.

There are four kinds. The attempt's agent outlived the process that it spoke to: it goes on with the
same key. The trajectory is at another worker: the call is relayed. Nobody has it yet, because its
worker was just killed: the call waits a while. The attempt is over: it is refused, for ever.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from aiohttp import web

from holdfast.gateway.assignment.queue import Offers, PendingTrajectory
from holdfast.gateway.calls.attempt_status import Register, standing_of
from holdfast.gateway.http.exceptions import attempt_over, completed
from holdfast.gateway.http.relay import ELSEWHERE
from holdfast.gateway.http.request import Visit
from holdfast.gateway.protocol.keys import Bearer
from holdfast.gateway.protocol.messages import RequestRejected
from holdfast.gateway.workers.peers import OWNS, Peers

PATIENCE = 10.0
"""Seconds in which a call waits for its trajectory to be taken over."""
LOOK = 0.1
LOOKS_PER_READ = 10
KNOWN_OVER = 65_536


class Strangers:
    def __init__(
        self,
        offers: Offers,
        adopt: Callable[[PendingTrajectory, str], None],
        *,
        register: Register | None,
        peers: Peers | None,
        is_stopping: Callable[[], bool],
        patience: float = PATIENCE,
    ):
        self._offers = offers
        self._adopt = adopt
        self._register = register
        self._peers = peers
        self._is_stopping = is_stopping
        self._patience = patience
        self._over: OrderedDict[str, None] = OrderedDict()
        """Keys that were refused: whoever asks again costs nothing."""

    async def __call__(self, visit: Visit, bearer: Bearer) -> web.StreamResponse | None:
        if visit.key in self._over:
            raise attempt_over()
        looks = max(1, round(self._patience / LOOK)) if self._register is not None else 1
        for look in range(looks):
            if self._adopted(visit.key, bearer):
                return None
            if visit.is_inside:
                # No call of an agent's: another worker asked whether it is here, and it is not.
                visit.route = OWNS
                raise RequestRejected(503, "this worker has it not", code=ELSEWHERE)
            if self._peers is not None:
                told = await self._peers.relayed(visit, bearer.trajectory)
                if told is not None:
                    return told
            if look % LOOKS_PER_READ == 0:
                told = await self._told_from_record(visit, bearer)
                if told is not None:
                    return told
            if self._is_stopping():
                raise RequestRejected(503, "the gateway is closing", code="stopping")
            await asyncio.sleep(LOOK)
        raise RequestRejected(503, "the trajectory is not open again yet", code="not_yet")

    def _adopted(self, key: str, bearer: Bearer) -> bool:
        """Whether it is this process that the agent goes on with."""
        offer = self._offers.of(bearer.trajectory)
        if offer is None:
            return False
        if offer.older_key == key:
            return True  # By another of its calls, while this one waited.
        # Whoever holds the lease knows.
        standing = standing_of(offer.trajectory.session.history)
        if standing.is_over(bearer) or not self._offers.can_go_on(offer):
            raise self._refused(key)
        self._offers.go_on(offer, key)
        self._adopt(offer, key)
        return True

    async def _told_from_record(self, visit: Visit, bearer: Bearer) -> web.StreamResponse | None:
        found = None
        if self._register is not None:
            found = await self._register.standing(bearer.trajectory)
        if found is None:
            raise self._refused(visit.key)
        if visit.route == "/complete" and found.finished and found.is_last(bearer):
            # It was told before, and whoever said it may not have heard the answer.
            await visit.body()
            return await visit.telling.whole(completed(found.reward))
        if found.is_over(bearer):
            raise self._refused(visit.key, for_ever=not found.finished)
        return None

    def _refused(self, key: str, *, for_ever: bool = False) -> RequestRejected:
        if for_ever:
            self._over[key] = None
            if len(self._over) > KNOWN_OVER:
                self._over.popitem(last=False)
        return attempt_over()
