"""Hands tokens from the engine's thread to the requests that wait for them.

The unsent part of a stream is bounded. A client that does not read loses its connection when too
many tokens wait for it or when too much time passes. The client can send its request again, with
the tokens that it has.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import msgspec
from aiohttp import web

from holdfast.embedded.scheduler.generation import Generation, TokenDelta

MAX_UNREAD_TOKENS = 4096
"""The most tokens of one request that wait while its client does not read."""
UNREAD_SECONDS = 120.0
"""How long a client may stop reading."""


class TokenQueue:
    """The new tokens of one request, in order. Used in the event loop."""

    def __init__(self, request: web.Request):
        self._request = request
        self._waiting: asyncio.Queue[tuple[int, TokenDelta]] = asyncio.Queue()
        self._writing = False

    def put(self, choice: int, delta: TokenDelta) -> None:
        self._waiting.put_nowait((choice, delta))
        # Only while a write waits for the client. Otherwise this loop is the slow side.
        if self._writing and self._waiting.qsize() > MAX_UNREAD_TOKENS:
            self._disconnect()

    async def get(self) -> tuple[int, TokenDelta]:
        return await self._waiting.get()

    async def send(self, response: web.StreamResponse, events: Iterable[object]) -> None:
        """Sends the events. Raises `ConnectionResetError` if the client does not read them."""
        async with self._write_timeout():
            for event in events:
                await response.write(b"data: " + msgspec.json.encode(event) + b"\n\n")

    async def close(self, response: web.StreamResponse) -> None:
        """Sends the last event and ends the response."""
        async with self._write_timeout():
            await response.write(b"data: [DONE]\n\n")
            await response.write_eof()

    @asynccontextmanager
    async def _write_timeout(self) -> AsyncIterator[None]:
        self._writing = True
        try:
            async with asyncio.timeout(UNREAD_SECONDS):
                yield
        except TimeoutError as error:
            self._disconnect()
            raise ConnectionResetError("the client does not read") from error
        finally:
            self._writing = False

    def _disconnect(self) -> None:
        """Ends the connection and with it the handler, which cancels the generations in flight."""
        if self._request.transport is not None:
            self._request.transport.abort()


class TokenDispatcher:
    """Hands tokens to the queues of all requests, and wakes the loop once for each step."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self._loop = loop
        self._pending: deque[tuple[TokenQueue, int, TokenDelta]] = deque()
        self._scheduled = False

    def sink(self, queue: TokenQueue, choice: int) -> Callable[[Generation, TokenDelta], None]:
        def send(_: Generation, delta: TokenDelta) -> None:
            self._pending.append((queue, choice, delta))
            if not self._scheduled:
                self._scheduled = True
                self._loop.call_soon_threadsafe(self._deliver)

        return send

    def _deliver(self) -> None:
        # Clears the flag first: a token added in between may schedule in vain, but is not lost.
        self._scheduled = False
        while self._pending:
            queue, choice, delta = self._pending.popleft()
            queue.put(choice, delta)
