"""One connection to the server, made again after it was lost.

What our transactions need, each connection sets itself: a role or a database may have other
defaults, for good reasons of its own.

A pooler between us and the server is recognized: the server's process is another one than the one
that greeted us. Its connections may change with every transaction, so then everything is a
transaction that sets what it needs, nothing is prepared, and nobody listens: waiting falls back to
polling.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import asyncpg

from holdfast.journal.postgres.address import ServerAddress
from holdfast.journal.postgres.errors import explain, gone, is_final, is_outage, unreachable
from holdfast.records.errors import HoldfastError

ATTEMPT_SECONDS = 10.0
STATEMENT_SECONDS = 60.0
"""After which a statement counts as lost: the network may have swallowed it."""
IDLE_SECONDS = 10
"""How long a process that is frozen within a transaction keeps its locks."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_log = logging.getLogger("holdfast.journal")
WEAK_COMMITS = ("off", "local", "remote_write")
"""Values of `synchronous_commit` that confirm what a power cut or a failover takes away."""
Row = Any
"""A record of the driver: by name and by position."""


class ServerConnection(Protocol):
    """What is used of the driver's."""

    async def execute(self, query: str, *args: object, timeout: float | None = None) -> str: ...
    async def fetch(self, query: str, *args: object) -> list[Row]: ...
    async def fetchrow(self, query: str, *args: object) -> Row | None: ...
    async def fetchval(self, query: str, *args: object) -> Any: ...
    async def close(self, *, timeout: float | None = None) -> None: ...
    def terminate(self) -> None: ...
    def is_closed(self) -> bool: ...


Connect = Callable[[ServerAddress, bool], Awaitable[ServerConnection]]
"""Makes one attempt; the second argument: whether a pooler is known to be in between."""
Ready = Callable[[ServerConnection], Awaitable[None]]


async def plain_connect(address: ServerAddress, pooled: bool) -> ServerConnection:
    connection: ServerConnection = await asyncpg.connect(
        address.url,
        password=address.password,
        timeout=ATTEMPT_SECONDS,
        command_timeout=STATEMENT_SECONDS,
        statement_cache_size=0 if pooled else 100,
    )
    return connection


class Outage:
    """Since when the server has not been reached; connections to one server share it."""

    since: float | None = None


class Link:
    """Opened when it is first needed, and again after it was dropped."""

    def __init__(
        self,
        address: ServerAddress,
        connect: Connect,
        ready: Ready,
        outage: Outage | None = None,
        *,
        read_only: bool = False,
    ):
        """`ready`: what has to hold before a new connection is used. `read_only`: it may also be
        one to a standby, where no transaction can write."""
        self._address = address
        self._connect = connect
        self._ready = ready
        self._connection: ServerConnection | None = None
        self._was_open = False
        self._outage = outage or Outage()
        self._read_only = read_only
        self.pooled = False

    async def get(self) -> ServerConnection:
        """Tries until a deadline: a short one before anything has worked, and else a long one.

        An outage that has lasted until its deadline gets one more attempt, and no second wait.
        """
        if self._connection is not None and not self._connection.is_closed():
            return self._connection
        self._connection = await self._open()
        self._was_open, self._outage.since = True, None
        return self._connection

    async def _open(self) -> ServerConnection:
        address, loop = self._address, asyncio.get_running_loop()
        if self._outage.since is None:
            self._outage.since = loop.time()
        seconds = address.outage_seconds if self._was_open else address.connect_seconds
        deadline, pause, warned = self._outage.since + seconds, _FIRST_PAUSE, False
        while True:
            try:
                async with asyncio.timeout(max(1.0, deadline - loop.time())):
                    return await self._attempt()
            except Exception as error:
                if isinstance(error, HoldfastError):
                    raise
                if is_final(error) or not is_outage(error):
                    raise explain(error, self._address) from None
                if loop.time() + pause > deadline:
                    raise (gone if self._was_open else unreachable)(error, address) from None
                if not warned and pause >= _LONGEST_PAUSE:
                    warned = True
                    _log.warning("%s; trying again", explain(error, self._address))
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _attempt(self) -> ServerConnection:
        connection = await self._connect(self._address, self.pooled)
        try:
            if not self.pooled and await _has_pooler(connection):
                self.pooled = True
                connection.terminate()
                connection = await self._connect(self._address, True)
            if self.pooled:
                connection = Pinned(connection, self._pooled_begin())
            else:
                await connection.execute(self._session())
            await self._ready(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection

    def _session(self) -> str:
        return (
            f"SET idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'; "
            "SET default_transaction_isolation = 'read committed'; "
            f"SET default_transaction_read_only = off; {self._commit_setting('false')}"
        )

    def _pooled_begin(self) -> str:
        """Begins a transaction that ends by itself if this process is frozen in it."""
        mode = "" if self._read_only else " READ WRITE"
        return (
            f"BEGIN ISOLATION LEVEL READ COMMITTED{mode}; SET LOCAL "
            f"idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'; "
            f"{self._commit_setting('true')}"
        )

    def _commit_setting(self, local: str) -> str:
        """What is stronger than `on` stays."""
        if self._address.allow_synchronous_commit_off:
            return ""
        return (
            f"SELECT set_config('synchronous_commit', 'on', {local}) "
            f"WHERE current_setting('synchronous_commit') IN {WEAK_COMMITS}"
        )

    def drop(self) -> None:
        """At once, and without a word to the server."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(RuntimeError):  # Its event loop may have ended, and the socket with it.
                connection.terminate()

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None or connection.is_closed():
            return
        try:
            await connection.close(timeout=ATTEMPT_SECONDS)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            connection.terminate()  # It is gone anyway.


async def _has_pooler(connection: ServerConnection) -> bool:
    """Its pid is not the one that the server has."""
    greeted = getattr(connection, "get_server_pid", None)
    if greeted is None:
        return False
    # Not by a parameter, nor prepared: a pooler may lose that between two messages.
    status = await connection.execute(f"SELECT 1 WHERE pg_backend_pid() = {int(greeted())}")
    return status != "SELECT 1"


class Pinned:
    """A connection through a pooler: each statement in a transaction, so that its parts stay on
    one connection of the server."""

    def __init__(self, connection: ServerConnection, begin: str):
        self._connection = connection
        self._begin = begin
        self._inside = False

    async def execute(self, query: str, *args: object, timeout: float | None = None) -> str:
        word = query.split(maxsplit=1)[0].rstrip(";").upper()
        if word in ("BEGIN", "COMMIT", "ROLLBACK"):
            self._inside = word == "BEGIN"
        if query == "BEGIN":
            query = self._begin
        if not args:  # One message: it cannot be torn apart.
            return await self._connection.execute(query, timeout=timeout)
        status: str = await self._run(lambda: self._connection.execute(query, *args))
        return status

    async def fetch(self, query: str, *args: object) -> list[Row]:
        rows: list[Row] = await self._run(lambda: self._connection.fetch(query, *args))
        return rows

    async def fetchrow(self, query: str, *args: object) -> Row | None:
        return await self._run(lambda: self._connection.fetchrow(query, *args))

    async def fetchval(self, query: str, *args: object) -> Any:
        return await self._run(lambda: self._connection.fetchval(query, *args))

    async def _run(self, do: Callable[[], Awaitable[Any]]) -> Any:
        if self._inside:
            return await do()
        await self._connection.execute(self._begin)
        try:
            result = await do()
            await self._connection.execute("COMMIT")
        except BaseException:
            if not self._connection.is_closed():
                await self._connection.execute("ROLLBACK")
            raise
        return result

    async def close(self, *, timeout: float | None = None) -> None:
        await self._connection.close(timeout=timeout)

    def terminate(self) -> None:
        self._connection.terminate()

    def is_closed(self) -> bool:
        return self._connection.is_closed()


def column(rows: Sequence[Row], at: int = 0) -> list[Any]:
    return [row[at] for row in rows]
