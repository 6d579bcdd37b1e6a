"""A server that says what it is told to, and remembers what it was asked.

Real HTTP on 127.0.0.1, in the loop of the test. What it plays back is bytes: bodies, events of a
stream, pauses and broken connections. It knows nothing of any engine.
"""

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Self

from aiohttp import web
from msgspec import Struct

Pause = Callable[[], Awaitable[object]]
"""Something to wait for in the middle of an answer."""


class ReceivedRequest(Struct):
    """One request."""

    method: str
    path: str
    body: Any
    headers: dict[str, str]


class Answer(Struct):
    """One answer: in one piece, or as a stream of `chunks`."""

    status: int = 200
    body: object = b""
    """Bytes as they are, anything else as JSON."""
    headers: dict[str, str] = {}
    before: Pause | None = None
    """Awaited before the first byte."""
    chunks: Sequence[bytes | Pause] | None = None
    cut: bool = False
    """The connection breaks where the answer would end."""


Reply = Answer | Callable[[ReceivedRequest], Answer]


class Canned:
    """An `async with` of it runs it. `stop` and `start` are an outage: the address stays."""

    def __init__(self) -> None:
        self.requests: list[ReceivedRequest] = []
        self._queues: dict[str, deque[Reply]] = {}
        self._always: dict[str, Reply] = {}
        self._runner: web.AppRunner | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def says(self, path: str, *replies: Reply) -> Self:
        """Once each, in this order."""
        self._queues.setdefault(path, deque()).extend(replies)
        return self

    def always(self, path: str, reply: Reply) -> Self:
        """Whenever nothing else is left to say."""
        self._always[path] = reply
        return self

    def bodies(self, path: str) -> list[Any]:
        """What was sent to `path`, in order."""
        return [item.body for item in self.requests if item.path == path]

    async def start(self) -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        # Who hangs is hanged up on: an outage does not wait for anyone.
        self._runner = web.AppRunner(app, shutdown_timeout=0.01, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = ReceivedRequest(
            request.method, request.path, json.loads(raw) if raw else None, dict(request.headers)
        )
        self.requests.append(body)
        reply = self._next(request.path)
        answer = reply if isinstance(reply, Answer) else reply(body)
        if answer.before is not None:
            await answer.before()
        if answer.chunks is None:
            return await _say(request, answer)
        return await _stream(request, answer, answer.chunks)

    def _next(self, path: str) -> Reply:
        if queue := self._queues.get(path):
            return queue.popleft()
        missing = Answer(404, {"error": {"message": f"nothing is said at {path}", "code": 404}})
        return self._always.get(path, missing)


async def _say(request: web.Request, answer: Answer) -> web.StreamResponse:
    body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
    if answer.cut:
        response = web.StreamResponse(headers={"Content-Length": str(len(body) + 1)})
        await response.prepare(request)
        await response.write(body)
        _break(request)
        return response
    return web.Response(status=answer.status, body=body, headers=answer.headers)


async def _stream(
    request: web.Request, answer: Answer, chunks: Sequence[bytes | Pause]
) -> web.StreamResponse:
    response = web.StreamResponse(
        status=answer.status, headers={"Content-Type": "text/event-stream", **answer.headers}
    )
    await response.prepare(request)
    for chunk in chunks:
        if isinstance(chunk, bytes):
            await response.write(chunk)
        else:
            await chunk()
    if answer.cut:
        await asyncio.sleep(0.01)  # What was written leaves before the connection breaks.
        _break(request)
    return response


def _break(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.close()


async def forever() -> None:
    """Until the connection is gone."""
    await asyncio.Event().wait()


def sse(*events: object, end: bytes = b"\n\n") -> list[bytes]:
    """Each as one event of a stream: bytes as they are, anything else as JSON."""
    return [
        b"data: " + (event if isinstance(event, bytes) else json.dumps(event).encode()) + end
        for event in events
    ]


DONE = b"[DONE]"
