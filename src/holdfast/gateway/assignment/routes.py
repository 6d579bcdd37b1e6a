"""Counter: where agents are given trajectories, at this worker or at another.

A trajectory that was given to nobody in the end (whoever asked went away before the answer) is
given again, under another key.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

import msgspec
from aiohttp import web
from msgspec import Struct

from holdfast.gateway.assignment.queue import TAKEN, Offers, PendingTrajectory, taken_by_another
from holdfast.gateway.http.request import Visit
from holdfast.gateway.protocol.messages import RequestRejected
from holdfast.gateway.server import Endpoint
from holdfast.gateway.workers import peers as between
from holdfast.gateway.workers.peers import GIVE_BACK, OWNS, STATS, TAKE, UNHEARD, Peers, WorkerStats

LONGEST_WAIT = 60.0
ASK_AGAIN = 0.5
"""Seconds between two times that the other workers are asked for one."""


class TrajectoryRequest(Struct, forbid_unknown_fields=True):
    task: str | None = None
    sample: int = 0
    wait: float = 0.0
    """Seconds to wait for one."""


class Counter:
    def __init__(
        self,
        offers: Offers,
        by_key: Mapping[str, PendingTrajectory],
        *,
        peers: Peers | None,
        unheard: Callable[[str], None],
    ):
        self._offers = offers
        self._by_key = by_key
        self._peers = peers
        self._unheard = unheard

    async def open(self, visit: Visit) -> web.StreamResponse:
        """`POST /trajectories`."""
        wanted = _read(await visit.body())
        deadline = asyncio.get_running_loop().time() + min(max(wanted.wait, 0.0), LONGEST_WAIT)
        while True:
            left = deadline - asyncio.get_running_loop().time()
            try:
                return await self._given(visit, wanted, left)
            except RequestRejected as refused:
                if refused.status != 404 or left <= 0:
                    raise
            if wanted.task is not None:
                await asyncio.sleep(min(left, ASK_AGAIN))

    async def _given(
        self, visit: Visit, wanted: TrajectoryRequest, left: float
    ) -> web.StreamResponse:
        """From here, or else from another worker."""
        if self._peers is None:
            return await self._told(visit, await self._taken(wanted, left))
        try:
            return await self._told(visit, await self._taken(wanted, 0))
        except RequestRejected as refused:
            if refused.status != 404:
                raise
        for index in self._peers.others:
            answer = await self._peers.ask_for(
                index, TAKE, wanted, unheard=partial(self._return, index)
            )
            if answer is not None and answer[0] == 200:
                return await self._told_for(index, visit, answer[1])
            if answer is not None and answer[0] == TAKEN and wanted.task is not None:
                raise taken_by_another(wanted.task, wanted.sample)
        return await self._told(visit, await self._taken(wanted, min(left, ASK_AGAIN)))

    async def _taken(self, wanted: TrajectoryRequest, seconds: float) -> PendingTrajectory:
        if wanted.task is None:
            return await self._offers.take(seconds)
        return await self._offers.take_certain(wanted.task, wanted.sample, LONGEST_WAIT)

    async def _told(self, visit: Visit, offer: PendingTrajectory) -> web.StreamResponse:
        visit.telling.trajectory = str(offer.key)
        try:
            await offer.trajectory.session.log.start_attempt()
            return await visit.telling.whole(msgspec.json.encode(_described(offer)))
        except BaseException:
            self._offers.give_back(offer)
            raise

    async def _told_for(self, index: int, visit: Visit, told: bytes) -> web.StreamResponse:
        given = msgspec.json.decode(told)
        visit.telling.trajectory = given["trajectory"]
        try:
            return await visit.telling.whole(told)
        except BaseException:
            self._return(index, told)
            raise

    def _return(self, index: int, told: bytes) -> None:
        assert self._peers is not None, "another worker gave it"
        self._peers.tell(index, GIVE_BACK, msgspec.json.decode(told)["key"])

    # --- for other workers

    def inner(self, stats: Callable[[], WorkerStats]) -> dict[str, Endpoint]:
        async def owns(visit: Visit) -> web.StreamResponse:
            name = await between.asked(visit, str)
            return await between.answer(visit, self._offers.of(name) is not None)

        async def take(visit: Visit) -> web.StreamResponse:
            return await self._told(visit, await self._taken(_read(await visit.body()), 0))

        async def give_back(visit: Visit) -> web.StreamResponse:
            offer = self._by_key.get(await between.asked(visit, str))
            if offer is not None:
                self._offers.give_back(offer)
            return await between.answer(visit, None)

        async def unheard(visit: Visit) -> web.StreamResponse:
            self._unheard(await between.asked(visit, str))
            return await between.answer(visit, None)

        async def tell_stats(visit: Visit) -> web.StreamResponse:
            return await between.answer(visit, stats())

        return {
            OWNS: owns,
            TAKE: take,
            GIVE_BACK: give_back,
            UNHEARD: unheard,
            STATS: tell_stats,
        }


def _read(body: bytes) -> TrajectoryRequest:
    try:
        wanted = msgspec.json.decode(body or b"{}", type=TrajectoryRequest)
    except (ValueError, RecursionError) as error:
        words = f'it wants {{"task": "t1", "sample": 0, "wait": 30}}, or less: {error}'
        raise RequestRejected(400, words) from error
    if wanted.sample and wanted.task is None:
        raise RequestRejected(400, "a sample is one of a task: name it too", param="task")
    return wanted


def _described(offer: PendingTrajectory) -> dict[str, object]:
    binding = offer.binding
    return {
        "trajectory": str(offer.key),
        "group": offer.key.group,
        "task": offer.task,
        "sample": offer.key.sample,
        "attempt": offer.attempt,
        "key": binding.key,
        "openai_base_url": f"{binding.url}/v1",
        "anthropic_base_url": binding.url,
        "bound_url": binding.bound_url,
    }
