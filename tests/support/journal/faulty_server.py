"""Connections to PostgreSQL that break on purpose, before or after a statement ran."""

from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.journal.postgres.address import ServerAddress
from holdfast.journal.postgres.connection import plain_connect
from support.journal.faulty_journal import When


class FaultyServer:
    """A connection factory for `PostgresJournal(url, connect=…)`.

    Counts the statements of all its connections, in the order in which they start. At number `k`
    (from 1; 0: none) and the `times - 1` after it the connection is cut: before the server gets
    the statement, or when it has run, and the answer is lost.
    """

    def __init__(self, k: int = 0, *, when: str = When.BEFORE, times: int = 1):
        self.k = k
        self.when = When(when)
        self.times = times
        self.statements: list[str] = []
        self.connections = 0

    async def __call__(self, address: ServerAddress, pooled: bool) -> "FaultyServerConnection":
        connection = await plain_connect(address, pooled)
        self.connections += 1
        return FaultyServerConnection(self, connection)

    async def run(self, connection: Any, query: str, do: Callable[[], Awaitable[Any]]) -> Any:
        self.statements.append(query)
        fails = self.k > 0 and 0 <= len(self.statements) - self.k < self.times
        if fails and self.when is When.BEFORE:
            connection.terminate()
            raise ConnectionResetError("cut on purpose, before the statement")
        result = await do()
        if fails:
            connection.terminate()
            raise ConnectionResetError("cut on purpose, after the statement")
        return result


class FaultyServerConnection:
    def __init__(self, faults: FaultyServer, connection: Any):
        self._faults = faults
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def execute(self, query: str, *args: object, timeout: float | None = None) -> Any:
        return await self._run(
            query, lambda: self._connection.execute(query, *args, timeout=timeout)
        )

    async def fetch(self, query: str, *args: object) -> Any:
        return await self._run(query, lambda: self._connection.fetch(query, *args))

    async def fetchrow(self, query: str, *args: object) -> Any:
        return await self._run(query, lambda: self._connection.fetchrow(query, *args))

    async def fetchval(self, query: str, *args: object) -> Any:
        return await self._run(query, lambda: self._connection.fetchval(query, *args))

    async def _run(self, query: str, do: Callable[[], Awaitable[Any]]) -> Any:
        return await self._faults.run(self._connection, query, do)
