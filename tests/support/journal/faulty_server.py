"""Connections to PostgreSQL that break on purpose, before or after a statement ran."""

from collections.abc import Callable
from typing import Any

from holdfast.journal.postgres.address import ServerAddress
from holdfast.journal.postgres.connection import ServerConnection, plain_connect
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

    def __call__(self, address: ServerAddress) -> "FaultyServerConnection":
        connection = plain_connect(address)
        self.connections += 1
        return FaultyServerConnection(self, connection)

    def run(self, connection: ServerConnection, query: str, do: Callable[[], Any]) -> Any:
        self.statements.append(query)
        fails = self.k > 0 and 0 <= len(self.statements) - self.k < self.times
        if fails and self.when is When.BEFORE:
            connection.close()
            raise ConnectionResetError("cut on purpose, before the statement")
        result = do()
        if fails:
            connection.close()
            raise ConnectionResetError("cut on purpose, after the statement")
        return result


class FaultyServerConnection(ServerConnection):
    def __init__(self, faults: FaultyServer, connection: ServerConnection):
        super().__init__(connection.driver)
        self._faults = faults

    def execute(self, query: str, values: Any = None) -> Any:
        run = super().execute
        return self._faults.run(self, query, lambda: run(query, values))

    def send(self, query: str, values: Any) -> Any:
        run = super().send
        return self._faults.run(self, query, lambda: run(query, values))

    def send_many(self, query: str, values: Any) -> None:
        run = super().send_many
        self._faults.run(self, query, lambda: run(query, values))
