"""One session for many trajectories, begun again when it is lost."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from holdfast.environments.mcp.session import McpSession
from holdfast.records.errors import EnvironmentBroken

Result = TypeVar("Result")
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0


class Single:
    """Of those who ask at once, one does the work; if it fails, it failed for all of them."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._tries = 0
        self._error: Exception | None = None

    async def run(self, work: Callable[[], Awaitable[Result]]) -> Result:
        before = self._tries
        async with self._turn:
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
    """Open while anybody holds it.

    A session that is lost is replaced by the next call, once for all who wait. One that is lost
    again before it answered anything is replaced after a pause that grows: a server that cannot
    work is not started in a loop.
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
        return await self._single.run(self._renewed)

    async def _renewed(self) -> McpSession:
        old = self._session
        if old is not None and old.is_alive:
            return old
        self._session = None
        if old is not None:
            self._failures = 0 if old.answered else self._failures + 1
            await old.close()
        if self._failures:
            await asyncio.sleep(min(FIRST_PAUSE * 2 ** (self._failures - 1), LONGEST_PAUSE))
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
