"""HttpSessions: the HTTP client of an endpoint, one for each event loop that uses it.

A session belongs to the loop that made it. It is closed by `aclose`, and at the latest when its
loop shuts down its asynchronous generators, as `asyncio.run` does at its end: one policy serves one
`asyncio.run` after another, and leaves no socket open.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from weakref import WeakKeyDictionary

import aiohttp
from msgspec import Struct


class _Open(Struct, frozen=True, weakref=True):
    session: aiohttp.ClientSession
    lifetime: "AsyncGenerator[aiohttp.ClientSession, None]"
    """Closed by the loop, or by us; kept here, or it would end at once."""


class HttpSessions:
    """Each is made when it is first needed, by `make`."""

    def __init__(self, make: Callable[[], aiohttp.ClientSession]):
        self._make = make
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _Open] = WeakKeyDictionary()

    async def get(self) -> aiohttp.ClientSession:
        """That of the running loop. Nothing is awaited on the way: two callers get the same one."""
        loop = asyncio.get_running_loop()
        found = self._by_loop.get(loop)
        if found is None or found.session.closed:
            lifetime = self._lifetime()
            found = self._by_loop[loop] = _Open(await anext(lifetime), lifetime)
        return found.session

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
