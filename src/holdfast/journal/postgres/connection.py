"""One connection to the server, made again after it was lost.

What our transactions need, each connection sets itself: a role or a database may have other
defaults, for good reasons of its own.

A pooler between us and the server is recognized: the server's process is another one than the one
that greeted us. Its connections may change with every transaction, so then each transaction sets
what it needs, nobody listens, and no statement is prepared: waiting falls back to polling.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import psycopg
from psycopg import ClientCursor, Cursor

from holdfast.journal.postgres.address import (
    ServerAddress,
    explain,
    gone,
    is_conflict,
    is_final,
    is_outage,
    unreachable,
)
from holdfast.records.errors import HoldfastError, JournalError

ATTEMPT_SECONDS = 10.0
STATEMENT_SECONDS = 60.0
"""After which a statement counts as lost: the network may have swallowed it."""
IDLE_SECONDS = 10
"""How long a process that is frozen within a transaction keeps its locks."""
_PAUSE, _FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.05, 1.0
_log = logging.getLogger("holdfast.journal")
_Cursor = Cursor[tuple[Any, ...]]
Result = TypeVar("Result")
WEAK_COMMITS = ("off", "local", "remote_write")
"""Values of `synchronous_commit` that confirm what a power cut or a failover takes away."""


class _Driver(psycopg.Connection[tuple[Any, ...]]):
    """The driver's, with a limit on how long a statement may take."""

    seconds: float | None = STATEMENT_SECONDS

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        return super().wait(gen, interval, timeout or self.seconds)


BEGIN = "BEGIN"


class ServerConnection:
    """What is used of the driver's. Each statement is a transaction, unless one was begun."""

    def __init__(self, driver: _Driver):
        self.driver = driver
        self.begin = BEGIN
        """Begins a transaction that has what it needs."""

    def execute(self, query: str, values: Any = None) -> _Cursor:
        """With its values written into it: the server finds out their types."""
        return self._run(ClientCursor(self.driver), query, values)

    def results(self, query: str, values: Any = None) -> list[list[tuple[Any, ...]]]:
        """Of several statements in one message: the rows of each."""
        cursors = self.execute(query, values).results()
        return [cursor.fetchall() if cursor.description else [] for cursor in cursors]

    def send(self, query: str, values: Any) -> _Cursor:
        """With its values beside it, in binary: for bytes."""
        return self._run(self.driver.cursor(binary=True), query, values)

    def _run(self, cursor: _Cursor, query: str, values: Any) -> _Cursor:
        """Through a pooler, what has values is in a transaction: that alone has what it needs."""
        if self.begin == BEGIN or values is None or self.is_in_transaction:
            return cursor.execute(query, values)
        self.execute(self.begin)
        try:
            cursor.execute(query, values)
            self.execute("COMMIT")
        except psycopg.Error:
            self.roll_back()
            raise
        return cursor

    def send_many(self, query: str, values: Any) -> None:
        self.driver.cursor().executemany(query, values)

    def stream(self, query: str, values: Any) -> Any:
        """A cursor of the server's: within a transaction, a few rows come at a time."""
        return self.driver.cursor(name="rows", binary=True).execute(query, values)

    @property
    def is_in_transaction(self) -> bool:
        return self.driver.info.transaction_status != psycopg.pq.TransactionStatus.IDLE

    def limit_statements(self, seconds: float | None) -> None:
        self.driver.seconds = seconds

    def roll_back(self) -> None:
        if not self.is_closed() and self.is_in_transaction:
            self.execute("ROLLBACK")

    def is_closed(self) -> bool:
        return bool(self.driver.closed)

    def close(self) -> None:
        with suppress(psycopg.Error, OSError):  # It is gone anyway.
            self.driver.close()


Connect = Callable[[ServerAddress], ServerConnection]
"""Makes one attempt."""
Ready = Callable[[ServerConnection], None]


def plain_connect(address: ServerAddress) -> ServerConnection:
    driver = _Driver.connect(
        address.url,
        autocommit=True,
        connect_timeout=int(ATTEMPT_SECONDS),
        password=address.password,
    )
    return ServerConnection(driver)


class Outage:
    """Since when the server has not been reached; connections to one server share it."""

    since: float | None = None


class Link:
    """Opened when it is first needed, and again after it was dropped. Used by one thread."""

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
        self._given_up = threading.Event()
        self.pooled = False

    @property
    def is_open(self) -> bool:
        return self._connection is not None and not self._connection.is_closed()

    def get(self) -> ServerConnection:
        """Tries until a deadline: a short one before anything has worked, and else a long one.

        An outage that has lasted until its deadline gets one more attempt, and no second wait.
        """
        if self._connection is not None and self.is_open:
            return self._connection
        self._connection = self._open()
        self._was_open, self._outage.since = True, None
        return self._connection

    def insist(self, attempt: Callable[[ServerConnection], Result]) -> Result:
        """Tries it on one connection after the other, until the deadline of an outage. A new
        connection finds out what became of the last attempt: see `ready`."""
        deadline: float | None = None
        while True:
            connection = self.get()
            try:
                return attempt(connection)
            except (psycopg.Error, OSError) as error:
                if is_outage(error):
                    self.drop()
                elif not is_conflict(error):
                    raise
                deadline = deadline or time.monotonic() + self._address.outage_seconds
                if time.monotonic() > deadline:
                    raise gone(error, self._address) from None
            self.pause(_PAUSE)

    def _open(self) -> ServerConnection:
        address = self._address
        if self._outage.since is None:
            self._outage.since = time.monotonic()
        seconds = address.outage_seconds if self._was_open else address.connect_seconds
        deadline, pause, warned = self._outage.since + seconds, _FIRST_PAUSE, False
        while True:
            try:
                return self._attempt()
            except Exception as error:
                if isinstance(error, HoldfastError):
                    raise
                if is_final(error) or not is_outage(error):
                    raise explain(error, address) from None
                if time.monotonic() + pause > deadline:
                    raise (gone if self._was_open else unreachable)(error, address) from None
                if not warned and pause >= _LONGEST_PAUSE:
                    warned = True
                    _log.warning("%s; trying again", explain(error, address))
            self.pause(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def pause(self, seconds: float) -> None:
        """Between two attempts; `JournalError` when nobody waits for them any more."""
        if self._given_up.wait(seconds):
            raise JournalError(f"journal {self._address.name} is closed")

    def _attempt(self) -> ServerConnection:
        connection = self._connect(self._address)
        try:
            self.pooled = self.pooled or _has_pooler(connection)
            if self.pooled:
                connection.begin = self._pooled_begin()
                connection.driver.prepare_threshold = None
            else:
                connection.execute(self._session())
            self._ready(connection)
        except BaseException:
            connection.close()
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
        """Closed; another one is made when it is needed."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def give_up(self) -> None:
        """From another thread: whoever waits for the server here waits no longer."""
        self._given_up.set()


def _has_pooler(connection: ServerConnection) -> bool:
    """Its pid is not the one that the server has."""
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    return row is not None and row[0] != connection.driver.info.backend_pid
