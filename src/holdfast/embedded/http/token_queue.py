"""From the engine's thread to the requests that wait for its tokens.

What a stream has not sent yet is bounded: a client that does not read loses its connection, by the
number of tokens that wait for it or by the time that it lets pass, whichever is first. It can ask
again, with what it has.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import web

from holdfast.embedded.scheduler.generation import Generation, TokenDelta

MAX_UNREAD = 4096
"""Tokens of one request that wait while its client does not read."""
UNREAD_SECONDS = 120.0
"""How long a client may not read at all."""
_encode = msgspec.json.encode


class Letters:
    """What has come for one request and was not yet taken, in order. Used in the event loop."""

    def __init__(self, request: web.Request):
        self._request = request
        self._waiting: asyncio.Queue[tuple[int, TokenDelta]] = asyncio.Queue()
        self._writing = False

    def put(self, choice: int, delta: TokenDelta) -> None:
        self._waiting.put_nowait((choice, delta))
        # Only while a write waits for the client: otherwise it is this loop that is behind.
        if self._writing and self._waiting.qsize() > MAX_UNREAD:
            self._cut_off()

    async def get(self) -> tuple[int, TokenDelta]:
        return await self._waiting.get()

    async def send(self, response: web.StreamResponse, chunks: list[dict[str, Any]]) -> None:
        """As events. Raises `ConnectionResetError` when nobody reads them."""
        async with self._being_read():
            for chunk in chunks:
                await response.write(b"data: " + _encode(chunk) + b"\n\n")

    async def close(self, response: web.StreamResponse) -> None:
        """The last event, and the end of the response."""
        async with self._being_read():
            await response.write(b"data: [DONE]\n\n")
            await response.write_eof()

    @asynccontextmanager
    async def _being_read(self) -> AsyncIterator[None]:
        self._writing = True
        try:
            async with asyncio.timeout(UNREAD_SECONDS):
                yield
        except TimeoutError as error:
            self._cut_off()
            raise ConnectionResetError("the client does not read") from error
        finally:
            self._writing = False

    def _cut_off(self) -> None:
        """Ends the connection, and with it the handler, which cancels what is in flight."""
        if self._request.transport is not None:
            self._request.transport.abort()


class Mail:
    """All requests' letters, with one wake-up for all that a step gave."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self._loop = loop
        self._post: deque[tuple[Letters, int, TokenDelta]] = deque()
        self._called = False

    def sink(self, letters: Letters, choice: int) -> Callable[[Generation, TokenDelta], None]:
        def send(_: Generation, delta: TokenDelta) -> None:
            self._post.append((letters, choice, delta))
            if not self._called:
                self._called = True
                self._loop.call_soon_threadsafe(self._deliver)

        return send

    def _deliver(self) -> None:
        # First the flag, then the post: what comes in between may call in vain, but is not lost.
        self._called = False
        while self._post:
            letters, choice, delta = self._post.popleft()
            letters.put(choice, delta)
