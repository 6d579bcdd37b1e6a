"""The HTTP client of an endpoint, one for each event loop that uses it; bodies and headers.

A session belongs to the loop that made it. `aclose` closes it, or else its loop does when the loop
shuts down its asynchronous generators, as `asyncio.run` does at its end. So one policy can serve
one `asyncio.run` after another and leaves no socket open.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from urllib.parse import quote

import aiohttp
from msgspec import Struct

from holdfast.records.errors import BadAnswer

_MAX_ID_CHARS = 512


class _Open(Struct, frozen=True):
    session: aiohttp.ClientSession
    lifetime: "AsyncGenerator[aiohttp.ClientSession, None]"
    """The generator that closes the session. It is kept here because it would end at once
    otherwise."""


class HttpSessions:
    """The sessions of all event loops. `make` creates a session when a loop first needs it."""

    def __init__(self, make: Callable[[], aiohttp.ClientSession]):
        self._make = make
        self._by_loop: dict[asyncio.AbstractEventLoop, _Open] = {}

    async def get(self) -> aiohttp.ClientSession:
        """Returns the session of the running loop. Two concurrent callers get the same session."""
        loop = asyncio.get_running_loop()
        session = self._by_loop.get(loop)
        if session is None or session.session.closed:
            self._forget_closed()
            lifetime = self._lifetime()
            session = self._by_loop[loop] = _Open(await anext(lifetime), lifetime)
        return session.session

    def _forget_closed(self) -> None:
        """Forgets the sessions of closed loops, because a session would keep its loop in memory."""
        for loop in [loop for loop in self._by_loop if loop.is_closed()]:
            del self._by_loop[loop]

    async def _lifetime(self) -> "AsyncGenerator[aiohttp.ClientSession, None]":
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


async def read_body(response: aiohttp.ClientResponse, most: int) -> bytes:
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
