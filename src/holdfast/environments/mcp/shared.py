"""One session for many trajectories, replaced when it is lost."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from holdfast.environments.mcp.session import McpSession
from holdfast.records.errors import EnvironmentBroken

Result = TypeVar("Result")
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.1, 5.0


class Single:
    """Runs work once for concurrent callers: if it fails, it fails for all that wait."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._tries = 0
        self._error: Exception | None = None

    async def run(self, work: Callable[[], Awaitable[Result]]) -> Result:
        before = self._tries
        async with self._lock:
            if self._tries != before and self._error is not None:
                raise EnvironmentBroken(str(self._error)) from self._error
            self._error = None
            try:
                return await work()
            except Exception as error:
                self._error = error
                raise
            finally:
                self._tries += 1


class SharedSession:
    """Open while at least one environment holds it.

    The next call replaces a lost session, once for all that wait. If a session is lost before it
    answered any call, the next one begins after a growing pause, so that a broken server is not
    started in a loop.
    """

    def __init__(self, open_session: Callable[[], Awaitable[McpSession]]):
        self._open = open_session
        self._single = Single()
        self._session: McpSession | None = None
        self._holders = 0
        self._failures = 0

    async def hold(self) -> None:
        self._holders += 1
        try:
            await self.session()
        except BaseException:
            await self.release()
            raise

    async def release(self) -> None:
        self._holders -= 1
        if self._holders == 0 and self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def session(self) -> McpSession:
        if self._session is not None and self._session.is_alive:
            return self._session
        return await self._single.run(self._renew)

    async def _renew(self) -> McpSession:
        old = self._session
        if old is not None and old.is_alive:
            return old
        self._session = None
        if old is not None:
            self._failures = 0 if old.answered else self._failures + 1
            await old.close()
        if self._failures:
            pause = FIRST_PAUSE_SECONDS * 2 ** (self._failures - 1)
            await asyncio.sleep(min(pause, MAX_PAUSE_SECONDS))
        try:
            session = await self._open()
        except Exception:
            self._failures += 1
            raise
        if self._holders == 0:
            await session.close()
            raise EnvironmentBroken("the MCP session was closed while it was being opened")
        self._session = session
        return session
