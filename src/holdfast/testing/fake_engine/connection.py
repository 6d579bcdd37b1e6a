"""Sends JSON and events, and breaks connections."""

import socket
import struct
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from holdfast.engine_api.errors import EngineRequestRejected

DONE = b"[DONE]"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_encoder = msgspec.json.Encoder()


def encode(value: object) -> bytes:
    return _encoder.encode(value)


def json_bytes(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")


def json_response(value: object) -> web.Response:
    return json_bytes(encode(value))


def answer_with(value: Callable[[], object]) -> Handler:
    """Returns a handler that answers each request with the result of `value`."""

    async def handle(request: web.Request) -> web.StreamResponse:
        return json_response(value())

    return handle


@web.middleware
async def send_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Calls the handler. If it rejects the request with an error, sends the error as the answer."""
    try:
        return await handler(request)
    except EngineRequestRejected as error:
        return error_response(error)


def error_response(
    error: EngineRequestRejected, *, retry_after: float | None = None
) -> web.Response:
    response = json_bytes(error.encode(), error.status)
    if retry_after is not None:
        response.headers["Retry-After"] = f"{retry_after:g}"
    return response


def reset(request: web.Request) -> web.Response:
    """Ends the connection with a TCP reset instead of a regular close."""
    transport = request.transport
    if transport is not None:
        linger = struct.pack("ii", 1, 0)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        transport.abort()
    return web.Response()


def hang_up(request: web.Request) -> None:
    """Closes the connection regularly, but in the middle of an answer."""
    if request.transport is not None:
        request.transport.close()


async def send_truncated(request: web.Request, body: bytes) -> web.StreamResponse:
    response = web.StreamResponse()
    response.content_type = "application/json"
    response.content_length = len(body)
    await response.prepare(request)
    await response.write(body[: len(body) // 2])
    hang_up(request)
    return response


class FakeEventStream:
    """Server-sent events, as engines send them: `data: …` and an empty line."""

    def __init__(self, request: web.Request):
        self._request = request
        self.response = web.StreamResponse()
        self.response.content_type = "text/event-stream"
        self.response.charset = "utf-8"

    async def begin(self) -> None:
        await self.response.prepare(self._request)

    async def send(self, data: bytes) -> None:
        await self.response.write(b"data: %b\n\n" % data)

    async def break_off(self, data: bytes) -> None:
        """Sends half of an event, and closes the connection."""
        await self.response.write(b"data: %b" % data[: len(data) // 2])
        hang_up(self._request)

    def reset(self) -> None:
        reset(self._request)

    async def end(self) -> None:
        await self.response.write_eof()
