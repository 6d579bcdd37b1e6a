"""The HTTP client of an endpoint, with one session for each event loop that uses it.

A session belongs to the loop that made it. `aclose` closes it, or else its loop does when the loop
shuts down its asynchronous generators, as `asyncio.run` does at its end. So one policy can serve
one `asyncio.run` after another and leaves no socket open.

Requests for samples differ only in their bodies and ids. So their headers are written once, and a
request is one write to one of aiohttp's connections and one response from aiohttp's parser.
`ClientSession.post` does more for each request (cookies, redirects, proxies, tracing, a task that
writes), which takes twice as long in all.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Protocol
from urllib.parse import quote

import aiohttp
from aiohttp.http import HttpProcessingError
from aiohttp.tracing import Trace
from msgspec import Struct
from yarl import URL

from holdfast.records.errors import BadAnswer

READ_BYTES = 1 << 20
_MAX_ID_CHARS = 512
_JSON = {"Content-Type": "application/json"}
_OF_THE_BODY = frozenset({"Content-Length", "Transfer-Encoding"})


class Response(Protocol):
    """The part of aiohttp's response that endpoints use."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def content(self) -> aiohttp.StreamReader: ...


class _Response(Struct, frozen=True):
    status: int
    headers: Mapping[str, str]
    content: aiohttp.StreamReader


class HttpSession:
    """Sends POST requests with JSON bodies, over connections that stay open between requests."""

    def __init__(self, headers: Mapping[str, str], *, on_connection: Callable[[], None]):
        """`on_connection` is called for each new connection."""

        async def note(*_: object) -> None:
            on_connection()

        trace = aiohttp.TraceConfig()
        trace.on_connection_create_end.append(note)
        trace.freeze()
        # Connections have no limit here, because each try holds one of `Connections`.
        self._connector = aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(connector=self._connector, headers=headers)
        self._traces = [Trace(self._session, trace, trace.trace_config_ctx())]
        self._prepared: dict[str, tuple[aiohttp.ClientRequest, bytes]] = {}

    @asynccontextmanager
    async def post(
        self, url: str, body: bytes, *, request_id: str, timeout: aiohttp.ClientTimeout
    ) -> AsyncIterator[Response]:
        """Yields the response. A redirect is not followed, because it would send the prompt to an
        address that the user did not name. Raises aiohttp's errors, and `TimeoutError` after
        `timeout.total` seconds."""
        request, head = self._prepared.get(url) or self._prepare(url)
        async with asyncio.timeout(timeout.total):
            try:
                connection = await self._connector.connect(request, self._traces, timeout)
            except TimeoutError as error:
                raise aiohttp.ConnectionTimeoutError(f"no connection to {request.url}") from error
            try:
                protocol, transport = connection.protocol, connection.transport
                assert protocol is not None, "the connection is new, or was open a moment ago"
                if transport is None:
                    raise aiohttp.ServerDisconnectedError
                protocol.set_response_params(
                    read_until_eof=True, read_timeout=timeout.sock_read, read_bufsize=READ_BYTES
                )
                end = f"X-Request-Id: {request_id}\r\nContent-Length: {len(body)}\r\n\r\n"
                transport.write(b"".join((head, end.encode(), body)))
                protocol.start_timeout()
                response = await _first_response(protocol, request)
                yield response
                is_over = response.content.is_eof() and not transport.get_write_buffer_size()
            except BaseException:
                connection.close()
                raise
            connection.release() if is_over else connection.close()

    def _prepare(self, url: str) -> tuple[aiohttp.ClientRequest, bytes]:
        """Returns a request for aiohttp's connector, and the headers of all requests to `url`."""
        request = aiohttp.ClientRequest(
            "POST",
            URL(url),
            headers={**self._session.headers, **_JSON},
            loop=asyncio.get_running_loop(),
            session=self._session,
        )
        lines = [f"POST {request.url.raw_path_qs} HTTP/1.1"]
        for name, value in request.headers.items():
            if name not in _OF_THE_BODY:
                lines.append(f"{name}: {value}")
        prepared = request, "".join(f"{line}\r\n" for line in lines).encode()
        self._prepared[url] = prepared
        return prepared

    @property
    def closed(self) -> bool:
        return self._session.closed

    async def close(self) -> None:
        await self._session.close()


async def _first_response(
    protocol: "aiohttp.client_proto.ResponseHandler", request: aiohttp.ClientRequest
) -> _Response:
    """Returns the final response. Skips responses with a status from 100 to 199, which only say
    that the request arrived."""
    while True:
        try:
            message, content = await protocol.read()
        except HttpProcessingError as error:
            raise aiohttp.ClientResponseError(
                request.request_info, (), status=error.code, message=error.message
            ) from error
        if not 100 <= message.code < 200:
            return _Response(message.code, message.headers, content)


class _Open(Struct, frozen=True):
    session: HttpSession
    lifetime: "AsyncGenerator[HttpSession, None]"
    """The generator that closes the session. It is kept here because it would end at once
    otherwise."""


class HttpSessions:
    """The sessions of all event loops. `make` creates a session when a loop first needs it."""

    def __init__(self, make: Callable[[], HttpSession]):
        self._make = make
        self._by_loop: dict[asyncio.AbstractEventLoop, _Open] = {}

    async def get(self) -> HttpSession:
        """Returns the session of the running loop, and makes it first if needed. Two concurrent
        callers get the same session."""
        loop = asyncio.get_running_loop()
        session = self._by_loop.get(loop)
        if session is None or session.session.closed:
            self._forget_closed()
            lifetime = self._lifetime()
            session = self._by_loop[loop] = _Open(await anext(lifetime), lifetime)
        return session.session

    def _forget_closed(self) -> None:
        """Forgets the sessions of closed loops, because a session keeps its loop in memory."""
        for loop in [loop for loop in self._by_loop if loop.is_closed()]:
            del self._by_loop[loop]

    async def _lifetime(self) -> "AsyncGenerator[HttpSession, None]":
        session = self._make()
        try:
            yield session
        finally:
            await session.close()
            # aiohttp closes its transports in the next turn of the loop.
            await asyncio.sleep(0)

    async def aclose(self) -> None:
        """Closes the session of the running loop. The session of another loop can only be closed
        there."""
        session = self._by_loop.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.lifetime.aclose()


async def read_body(response: Response, most: int) -> bytes:
    """Returns the whole body. Raises `BadAnswer` if it is longer than `most` bytes."""
    parts, size = [], 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > most:
            raise BadAnswer(f"the engine's answer is larger than {most:,} bytes")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def header_text(text: str) -> str:
    """Returns a request id that is safe as a header. Task ids are user data with any characters."""
    if not (text.isascii() and text.isprintable()):
        text = quote(text, safe="/:", errors="backslashreplace")
    return text[:_MAX_ID_CHARS]
