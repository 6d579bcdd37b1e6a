"""The other workers of one gateway.

All workers are equal. The worker that accepts a connection answers it, or passes the request on to
the worker that has the trajectory. Workers find each other by sockets in a folder that only their
user can enter. A worker that does not answer counts as down until the supervisor has restarted it.
"""

import asyncio
import uuid
from collections import OrderedDict, defaultdict
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import (
    ClientError,
    ClientPayloadError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    UnixConnector,
    web,
)
from msgspec import Struct, structs
from multidict import CIMultiDict
from yarl import URL

from holdfast.gateway.http.request import ELSEWHERE_HEADER, TICKET, RequestContext
from holdfast.gateway.http.tickets import RelayReport
from holdfast.prometheus import Family

MAX_KNOWN_OWNERS = 65_536
ANSWER_SECONDS = 10.0
RECONNECT_SECONDS = 0.5
"""Seconds between two requests to a worker that is down."""
OWNS, AVAILABLE, TAKE = "/-/owns", "/-/available", "/-/take"
STATS, RELAYED = "/-/stats", "/-/relayed"
ORDER, ORDERED = "/-/order", "/-/ordered"
_OF_ONE_HOP = {
    *("connection", "content-encoding", "content-length", "expect", "host", "keep-alive"),
    *("proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade"),
    *(ELSEWHERE_HEADER, TICKET),
}
"""Headers that are not relayed."""
PeerResponse = tuple[int, bytes] | None
"""The status and the body of a worker's response, or None if the worker is down."""


class WaitForTrajectory(Struct):
    """Asks whether a worker has the trajectory, now or within `wait` seconds."""

    trajectory: str
    wait: float = 0.0


class WorkerStats(Struct, frozen=True):
    """The counts of one process."""

    trajectories: int
    families: tuple[Family, ...]


class WorkerPlace(Struct, frozen=True):
    """A worker's number among the workers of one gateway, how many they are, and the folder of
    their sockets."""

    folder: str
    index: int
    count: int

    def inside(self, index: int) -> Path:
        return Path(self.folder) / f"{index}.sock"

    @property
    def own(self) -> Path:
        return self.inside(self.index)


class Peers:
    """Sends requests to the other workers. Open between `start` and `aclose`."""

    def __init__(self, place: WorkerPlace):
        self.place = place
        self._sessions: dict[int, ClientSession] = {}
        self._owners: OrderedDict[str, int] = OrderedDict()
        """The last known worker of each trajectory."""
        self._requests: set[asyncio.Task[PeerResponse]] = set()
        """Requests that continue even if their caller is cancelled."""
        self._reports: defaultdict[int, list[RelayReport]] = defaultdict(list)
        """Reports by the worker that gets them. While some are being sent, further reports wait
        here and are then sent together."""
        self._reporting: set[int] = set()

    async def start(self) -> None:
        for index in self.others:
            connector = UnixConnector(path=str(self.place.inside(index)), limit=0)
            # Sampling or holding a call may take any time, so there is no total limit.
            timeout = ClientTimeout(total=None, sock_connect=ANSWER_SECONDS)
            self._sessions[index] = ClientSession(
                connector=connector, timeout=timeout, auto_decompress=False
            )

    async def aclose(self) -> None:
        while self._requests:
            await asyncio.wait(self._requests, timeout=ANSWER_SECONDS)
        for session in self._sessions.values():
            await session.close()

    @property
    def others(self) -> list[int]:
        """Returns the numbers of the other workers. The list begins after this worker, so that
        workers do not all ask the same worker first."""
        count, own = self.place.count, self.place.index
        return [(own + step) % count for step in range(1, count)]

    # --- requests

    async def request(
        self,
        index: int,
        path: str,
        body: object = None,
        *,
        seconds: float = ANSWER_SECONDS,
        ticket: str = "",
    ) -> PeerResponse:
        data = msgspec.json.encode(body)
        headers = {TICKET: ticket} if ticket else None
        try:
            async with (
                asyncio.timeout(seconds),
                self._sessions[index].post(
                    f"http://worker{path}", data=data, headers=headers
                ) as response,
            ):
                return response.status, await response.read()
        except (ClientError, OSError, TimeoutError):
            return None

    async def request_ticketed(
        self, index: int, path: str, body: object, ticket: str
    ) -> PeerResponse:
        """Sends a request with a ticket, by which the caller later reports whether the response was
        delivered. If the caller is cancelled before the response comes, the response is reported as
        not delivered."""
        task = self._in_background(self.request(index, path, body, ticket=ticket))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            undelivered = RelayReport(ticket, delivered=False)
            task.add_done_callback(lambda _: self.report(index, undelivered))
            raise

    async def request_all(self, path: str, body: object = None) -> dict[int, bytes]:
        """Sends a request to all other workers. Returns the bodies of the responses with status
        200, by worker."""
        results = await asyncio.gather(
            *(self.request(index, path, body) for index in self._sessions)
        )
        return {
            index: response[1]
            for index, response in zip(self._sessions, results, strict=True)
            if response is not None and response[0] == 200
        }

    async def notify_all(self, path: str, body: object) -> int:
        """Notifies all other workers, even if the caller is cancelled. Returns how many
        accepted."""
        tasks = [self._in_background(self.request(index, path, body)) for index in self._sessions]
        results = await asyncio.gather(*map(asyncio.shield, tasks))
        return sum(response is not None and response[0] == 200 for response in results)

    async def first_event(
        self,
        here: Coroutine[Any, Any, bool],
        path: str,
        event: "WaitForTrajectory | Struct",
        deadline: float,
    ) -> None:
        """Returns when `here` returns, when another worker answers that the event has happened
        there, or at the deadline of the event loop's clock. Passes on the errors of `here`.

        `event` has the member `wait`, the number of seconds for which a worker may wait for the
        event.
        """
        tasks = [
            asyncio.create_task(here, name=f"wait for {path} here"),
            *(
                asyncio.create_task(
                    self._event_at(index, path, event, deadline), name=f"wait for {path}"
                )
                for index in self._sessions
            ),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _event_at(self, index: int, path: str, event: Struct, deadline: float) -> bool:
        loop = asyncio.get_running_loop()
        while (left := deadline - loop.time()) > 0:
            body = structs.replace(event, wait=left)
            response = await self.request(index, path, body, seconds=left + ANSWER_SECONDS)
            if response == (200, b"true"):
                return True
            # The worker is down, or is closing.
            await asyncio.sleep(min(RECONNECT_SECONDS, max(0.0, deadline - loop.time())))
        return False

    async def stats(self, own: WorkerStats) -> list[tuple[str, WorkerStats]]:
        bodies = await self.request_all(STATS)
        stats_by_worker = {
            index: msgspec.json.decode(body, type=WorkerStats) for index, body in bodies.items()
        }
        stats_by_worker[self.place.index] = own
        return [(f'worker="{index}"', stats_by_worker[index]) for index in sorted(stats_by_worker)]

    def _in_background(
        self, request: Coroutine[Any, Any, PeerResponse]
    ) -> "asyncio.Task[PeerResponse]":
        task = asyncio.create_task(request, name="request to a worker")
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)
        return task

    # --- relaying

    async def relay(self, context: RequestContext, trajectory: str) -> web.StreamResponse | None:
        """Relays a request to the trajectory's owner. Returns its response, or None if no worker
        has the trajectory now."""
        index = self._owners.get(trajectory)
        if index is None:
            index = await self._find_owner(trajectory)
        if index is None:
            return None
        body = await context.body()
        response = await self._relay_to(index, context, body)
        if response is None:
            self._owners.pop(trajectory, None)
        return response

    async def _find_owner(self, trajectory: str) -> int | None:
        bodies = await self.request_all(OWNS, WaitForTrajectory(trajectory))
        index = next((index for index, body in bodies.items() if body == b"true"), None)
        if index is not None:
            self._owners[trajectory] = index
            if len(self._owners) > MAX_KNOWN_OWNERS:
                self._owners.popitem(last=False)
        return index

    async def _relay_to(
        self, index: int, context: RequestContext, body: bytes
    ) -> web.StreamResponse | None:
        """Relays a request to a worker. Returns None if the worker no longer has the trajectory, or
        died before it responded."""
        request, ticket = context.request, uuid.uuid4().hex
        # Rebuilt, because a request to a proxy contains the whole address.
        url = URL(f"http://worker{request.rel_url.raw_path_qs}", encoded=True)
        headers = _headers_to_relay(context, ticket)
        sent = self._sessions[index].request(request.method, url, data=body, headers=headers)
        try:
            async with sent as response:
                if ELSEWHERE_HEADER in response.headers:
                    return None
                outcome = await _relay(context, response)
        except (ClientError, OSError) as error:
            if context.has_begun:
                self.report(index, RelayReport(ticket, delivered=False))
                raise ConnectionResetError("the response did not arrive") from error
            return None
        except asyncio.CancelledError:
            self.report(index, RelayReport(ticket, delivered=False))
            raise
        self.report(index, RelayReport(ticket, delivered=True))
        return outcome

    def report(self, index: int, report: RelayReport) -> None:
        """Reports on a worker's response, in a separate task."""
        self._reports[index].append(report)
        if index not in self._reporting:
            self._reporting.add(index)
            self._in_background(self._send_reports(index))

    async def _send_reports(self, index: int) -> PeerResponse:
        response: PeerResponse = None
        try:
            while reports := self._reports.pop(index, []):
                response = await self.request(index, RELAYED, reports)
        finally:
            self._reporting.discard(index)
        return response


def _headers_to_relay(context: RequestContext, ticket: str) -> CIMultiDict[str]:
    """Returns the headers for the owner. The body has been decompressed already."""
    headers = CIMultiDict(
        (name, value)
        for name, value in context.request.headers.items()
        if name.lower() not in _OF_ONE_HOP
    )
    headers[TICKET] = ticket
    return headers


async def _relay(context: RequestContext, owner: ClientResponse) -> web.StreamResponse:
    """Sends the owner's response to the client. The bytes stay unchanged, and a stream is sent
    piece by piece. When the client disconnects, the relay disconnects from the owner. Raises
    `ConnectionError` when either connection is lost."""
    response = web.StreamResponse(status=owner.status)
    for name, value in owner.headers.items():
        if name.lower() not in (_OF_ONE_HOP - {"content-encoding"}):
            response.headers.add(name, value)
    response.content_length = owner.content_length
    context.has_begun, context.status, context.route = True, owner.status, "relayed"
    await response.prepare(context.request)
    try:
        async for piece in owner.content.iter_any():
            await context.write(response.write(piece))
    except ClientPayloadError as error:
        raise ConnectionResetError("the owner disconnected within its response") from error
    await context.write(response.write_eof())
    return response
