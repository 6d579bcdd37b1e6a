"""Peers: the other workers of one gateway.

Workers are equal: whichever accepts a connection answers it, or asks the one that has the
trajectory. They find each other by sockets in a folder that only their user can enter. One that
does not answer is not there, now; the supervisor starts it again.
"""

import asyncio
import uuid
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from aiohttp import ClientError, ClientSession, ClientTimeout, UnixConnector, web
from msgspec import Struct
from yarl import URL

from holdfast.gateway.http.metrics import Family
from holdfast.gateway.http.relay import ELSEWHERE_HEADER, headers_of, relay
from holdfast.gateway.http.request import Visit
from holdfast.gateway.limits import GatewayLimits

KNOWN_OWNERS = 65_536
ANSWER_SECONDS = 10.0
OWNS, TAKE, GIVE_BACK = "/-/owns", "/-/take", "/-/give-back"
Asked = TypeVar("Asked")
Told = tuple[int, bytes] | None
"""A status and a body; None: nobody is there."""
STATS, UNHEARD = "/-/stats", "/-/unheard"
ORDER, ORDERED = "/-/order", "/-/ordered"


class WorkerStats(Struct, frozen=True):
    """What one process has done, and does."""

    trajectories: int
    families: tuple[Family, ...]


class WorkerPlace(Struct, frozen=True):
    """A worker's place among the others."""

    folder: str
    index: int
    count: int

    def inside(self, index: int) -> Path:
        return Path(self.folder) / f"{index}.sock"

    @property
    def own(self) -> Path:
        return self.inside(self.index)


class Peers:
    """Open between `start` and `aclose`."""

    def __init__(self, place: WorkerPlace, limits: GatewayLimits):
        self.place = place
        self._limits = limits
        self._ways: dict[int, ClientSession] = {}
        self._owners: OrderedDict[str, int] = OrderedDict()
        """Who had a trajectory when it was last looked for."""
        self._asking: set[asyncio.Task[Told]] = set()
        """For which nobody waits, or perhaps not for long."""

    async def start(self) -> None:
        for index in range(self.place.count):
            if index != self.place.index:
                way = UnixConnector(path=str(self.place.inside(index)), limit=0)
                # A call may be sampled, or held, for as long as it takes.
                timeout = ClientTimeout(total=None, sock_connect=ANSWER_SECONDS)
                self._ways[index] = ClientSession(
                    connector=way, timeout=timeout, auto_decompress=False
                )

    async def aclose(self) -> None:
        while self._asking:
            await asyncio.wait(self._asking, timeout=ANSWER_SECONDS)
        for way in self._ways.values():
            await way.close()

    # --- asking

    async def ask(self, index: int, path: str, body: object = None) -> Told:
        """The status and the body of its answer; None when it is not there."""
        sent = msgspec.json.encode(body)
        try:
            async with (
                asyncio.timeout(ANSWER_SECONDS),
                self._ways[index].post(f"http://worker{path}", data=sent) as answer,
            ):
                return answer.status, await answer.read()
        except (ClientError, OSError, TimeoutError):
            return None

    async def ask_for(
        self, index: int, path: str, body: object, *, unheard: Callable[[bytes], None]
    ) -> Told:
        """`ask`. What is given to somebody who is gone meanwhile is told to `unheard`."""
        asking = self._in_background(self.ask(index, path, body))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            asking.add_done_callback(lambda done: _told_late(done, unheard))
            raise

    async def everyone(self, path: str, body: object = None) -> dict[int, bytes]:
        """The answers of those that are there and have one."""
        found = await asyncio.gather(*(self.ask(index, path, body) for index in self._ways))
        return {
            index: answer[1]
            for index, answer in zip(self._ways, found, strict=True)
            if answer is not None and answer[0] == 200
        }

    async def tell_everyone(self, path: str, body: object) -> int:
        """How many took it. All of them are told, also when nobody waits for it any more."""
        asking = [self._in_background(self.ask(index, path, body)) for index in self._ways]
        found = await asyncio.gather(*map(asyncio.shield, asking))
        return sum(one is not None and one[0] == 200 for one in found)

    @property
    def others(self) -> list[int]:
        """Whom to ask in turn, beginning behind this one, so that not all ask the same first."""
        count, own = self.place.count, self.place.index
        return [(own + step) % count for step in range(1, count)]

    async def stats(self, own: WorkerStats) -> list[tuple[str, WorkerStats]]:
        answers = await self.everyone(STATS)
        found = {
            index: msgspec.json.decode(body, type=WorkerStats) for index, body in answers.items()
        }
        found[self.place.index] = own
        return [(f'worker="{index}"', found[index]) for index in sorted(found)]

    # --- relaying

    async def relayed(self, visit: Visit, trajectory: str) -> web.StreamResponse | None:
        """What the owner of the trajectory tells; None when nobody has it now."""
        index = self._owners.get(trajectory)
        if index is None:
            index = await self._found(trajectory)
        if index is None:
            return None
        body = await visit.body()
        response = await self._told_by(index, visit, body)
        if response is None:
            self._owners.pop(trajectory, None)
        return response

    async def _found(self, trajectory: str) -> int | None:
        owners = await self.everyone(OWNS, trajectory)
        index = next((index for index, told in owners.items() if told == b"true"), None)
        if index is not None:
            self._owners[trajectory] = index
            if len(self._owners) > KNOWN_OWNERS:
                self._owners.popitem(last=False)
        return index

    async def _told_by(self, index: int, visit: Visit, body: bytes) -> web.StreamResponse | None:
        """None when it has not the trajectory any more, or is gone before it told anything."""
        request, ticket = visit.request, uuid.uuid4().hex
        # Not as it came: what is meant for a proxy has the whole address there.
        url = URL(f"http://worker{request.rel_url.raw_path_qs}", encoded=True)
        headers = headers_of(visit, ticket)
        way = self._ways[index].request(request.method, url, data=body, headers=headers)
        try:
            async with way as told:
                if ELSEWHERE_HEADER in told.headers:
                    return None
                return await relay(visit, told, self._limits)
        except (ClientError, OSError) as error:
            if visit.telling.is_begun:
                self.tell(index, UNHEARD, ticket)
                raise ConnectionResetError("the answer did not arrive") from error
            return None
        except asyncio.CancelledError:
            self.tell(index, UNHEARD, ticket)
            raise

    def tell(self, index: int, path: str, body: object) -> None:
        """In a task of its own: whoever waited for the answer is gone, and with it this one."""
        self._in_background(self.ask(index, path, body))

    def _in_background(self, asking: Coroutine[Any, Any, Told]) -> "asyncio.Task[Told]":
        task = asyncio.create_task(asking, name="ask a worker")
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
        return task


def _told_late(done: "asyncio.Task[Told]", unheard: Callable[[bytes], None]) -> None:
    answer = None if done.cancelled() else done.result()
    if answer is not None and answer[0] == 200:
        unheard(answer[1])


async def answer(visit: Visit, told: object) -> web.StreamResponse:
    """An answer between workers."""
    return await visit.telling.whole(msgspec.json.encode(told))


async def asked(visit: Visit, kind: type[Asked]) -> Asked:
    return msgspec.json.decode(await visit.body(), type=kind)
