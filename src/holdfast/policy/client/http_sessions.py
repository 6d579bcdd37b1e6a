"""HttpSessions: the HTTP client of an endpoint, one for each event loop that uses it.

A session belongs to the loop that made it. It is closed by `aclose`, and at the latest when its
loop shuts down its asynchronous generators, as `asyncio.run` does at its end: one policy serves one
`asyncio.run` after another, and leaves no socket open.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable

import aiohttp
from msgspec import Struct


class _Open(Struct, frozen=True):
    session: aiohttp.ClientSession
    lifetime: "AsyncGenerator[aiohttp.ClientSession, None]"
    """Closed by the loop, or by us; kept here, or it would end at once."""


class HttpSessions:
    """Each is made when it is first needed, by `make`."""

    def __init__(self, make: Callable[[], aiohttp.ClientSession]):
        self._make = make
        self._by_loop: dict[asyncio.AbstractEventLoop, _Open] = {}

    async def get(self) -> aiohttp.ClientSession:
        """That of the running loop. Nothing is awaited on the way: two callers get the same one."""
        loop = asyncio.get_running_loop()
        found = self._by_loop.get(loop)
        if found is None or found.session.closed:
            self._forget_closed()
            lifetime = self._lifetime()
            found = self._by_loop[loop] = _Open(await anext(lifetime), lifetime)
        return found.session

    def _forget_closed(self) -> None:
        """Those of loops that are over: a session knows its loop, which would live on with it."""
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
        """Closes that of the running loop. Another loop's could only be closed over there."""
        found = self._by_loop.pop(asyncio.get_running_loop(), None)
        if found is not None:
            await found.lifetime.aclose()
