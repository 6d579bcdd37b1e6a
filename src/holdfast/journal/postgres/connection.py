"""A connection to the server, which is opened again after a loss.

Each connection sets what our transactions need, because a role or a database may have other
defaults.

A pooler between us and the server is recognized because the server's process is not the process
that greeted us. A pooler may change the server's connection with every transaction. In this case
each transaction sets what it needs, no connection listens, and no statement is prepared. Waiting
falls back to polling.

An outage is not a failure. The connection is opened again, the outcome of the last operation is
looked up, and only then is anything decided. Other errors of the server get a message with a
remedy.
"""

import logging
import os
import re
import shlex
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from getpass import getuser
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import psycopg
from psycopg import ClientCursor, Cursor

from holdfast.journal.postgres.address import ServerAddress, hide_password
from holdfast.records.errors import (
    HoldfastError,
    JournalError,
    JournalFull,
    JournalUnreachable,
    NotAJournal,
)

ATTEMPT_SECONDS = 10.0
STATEMENT_SECONDS = 60.0
"""The seconds after which a statement counts as lost, because the network may have swallowed it."""
IDLE_SECONDS = 10
"""The seconds after which the server ends the transaction of a frozen process, and so frees its
locks."""
_PAUSE, _FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.05, 1.0
_log = logging.getLogger("holdfast.journal")
_Cursor = Cursor[tuple[Any, ...]]
Result = TypeVar("Result")
WEAK_COMMITS = ("off", "local", "remote_write")
"""Values of `synchronous_commit` that confirm commits which a power cut or a failover may lose."""


class _Driver(psycopg.Connection[tuple[Any, ...]]):
    """The driver's connection, with a limit on the duration of a statement."""

    seconds: float | None = STATEMENT_SECONDS

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        return super().wait(gen, interval, timeout or self.seconds)


BEGIN = "BEGIN"


class ServerConnection:
    """The part of the driver that the journal uses. Each statement is its own transaction unless a
    transaction was begun."""

    def __init__(self, driver: _Driver):
        self.driver = driver
        self.begin = BEGIN
        """The statement that begins a transaction with the settings that it needs."""

    def execute(self, query: str, values: Any = None) -> _Cursor:
        """Runs a statement with its values written into the text. The server infers their types."""
        return self._run(ClientCursor(self.driver), query, values)

    def results(self, query: str, values: Any = None) -> list[list[tuple[Any, ...]]]:
        """Runs several statements in one message, and returns the rows of each."""
        cursors = self.execute(query, values).results()
        return [cursor.fetchall() if cursor.description else [] for cursor in cursors]

    def send(self, query: str, values: Any) -> _Cursor:
        """Runs a statement with its values sent separately and in binary, for bytes."""
        return self._run(self.driver.cursor(binary=True), query, values)

    def _run(self, cursor: _Cursor, query: str, values: Any) -> _Cursor:
        """Runs a statement. Through a pooler, a statement with values needs a transaction, so that
        it stays on one connection."""
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
        """Returns a cursor of the server, which fetches a few rows at a time within a
        transaction."""
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
        with suppress(psycopg.Error, OSError):  # The connection is broken anyway.
            self.driver.close()


Connect = Callable[[ServerAddress], ServerConnection]
"""A function that tries once to connect to a server."""
Ready = Callable[[ServerConnection], None]


def plain_connect(address: ServerAddress) -> ServerConnection:
    driver = _Driver.connect(
        address.url,
        autocommit=True,
        connect_timeout=int(ATTEMPT_SECONDS),
        password=address.password,
        # With a role's SQL_ASCII, psycopg would return bytes in place of texts.
        client_encoding="utf8",
    )
    return ServerConnection(driver)


class Outage:
    """An outage of a server, which all connections to this server share."""

    since: float | None = None


class Link:
    """A connection that opens at its first use, and again after it was dropped. Only one thread
    uses it."""

    def __init__(
        self,
        address: ServerAddress,
        connect: Connect,
        ready: Ready,
        outage: Outage | None = None,
        *,
        read_only: bool = False,
    ):
        """`ready` checks each new connection before it is used. With `read_only`, the server may be
        a standby, on which no transaction can write."""
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
        """Returns the open connection, or tries to connect until a deadline. The deadline is short
        if the server has never answered, and long if it has.

        If an outage has already lasted until its deadline, there is only one more attempt.
        """
        if self._connection is not None and self.is_open:
            return self._connection
        self._connection = self._open()
        self._was_open, self._outage.since = True, None
        return self._connection

    def insist(self, attempt: Callable[[ServerConnection], Result]) -> Result:
        """Calls `attempt` until it returns, with a new connection after each lost one. Repeats it
        after outages and conflicts of transactions. Raises `JournalUnreachable` when the time limit
        for outages is over, and other errors at once. On each new connection, `ready` finds out
        whether the last attempt was committed."""
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
        """Pauses between two attempts. Raises `JournalError` if the link was given up."""
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
            "SET default_transaction_isolation = 'read committed'; SET array_nulls = on; "
            f"SET default_transaction_read_only = off; {self._commit_setting('false')}"
        )

    def _pooled_begin(self) -> str:
        """Returns the statement that begins a transaction. The server ends this transaction if this
        process is frozen in it."""
        mode = "" if self._read_only else " READ WRITE"
        return (
            f"BEGIN ISOLATION LEVEL READ COMMITTED{mode}; SET LOCAL "
            f"idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'; "
            f"{self._commit_setting('true')}"
        )

    def _commit_setting(self, local: str) -> str:
        """Returns the statement that strengthens `synchronous_commit` to `on`. It keeps a setting
        that is stronger than `on`."""
        if self._address.allow_synchronous_commit_off:
            return ""
        return (
            f"SELECT set_config('synchronous_commit', 'on', {local}) "
            f"WHERE current_setting('synchronous_commit') IN {WEAK_COMMITS}"
        )

    def drop(self) -> None:
        """Closes the connection. The next use opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def give_up(self) -> None:
        """Ends the wait for the server. Another thread may call it."""
        self._given_up.set()


def _has_pooler(connection: ServerConnection) -> bool:
    """Returns whether there is a pooler. Behind a pooler, the server's pid differs from the pid
    that the driver got."""
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    return row is not None and row[0] != connection.driver.info.backend_pid


# --- what the server reports

_CONFLICTS = ("40001", "40P01", "55P03")
"""Serialization failure, deadlock, or lock not available. The server undid the transaction, so it
can be repeated."""
_OUTAGES = ("08", "57")
_OUTAGE_STATES = ("53300", "25006", "0A000", "25P03", "25P04", "HF001")
"""Too many connections; a standby that refuses a write; a transaction that was idle for too long;
and the error of our own function, which says that another connection of the writer has committed
the batch."""
_NO_ENTRY = ("28000", "28P01", "3D000", "42501")


_REFUSALS = (
    (re.compile(r'database ".*" does not exist'), "3D000"),
    (re.compile(r"permission denied for database"), "42501"),
    (re.compile(r"authentication failed|no password supplied|pg_hba\.conf|role .* does not exist"),
     "28000"),
)  # fmt: skip
"""The server's messages to clients that it refuses, for which the driver has no error code."""


def state_of(error: BaseException) -> str:
    if state := getattr(error, "sqlstate", None):
        return str(state)
    if isinstance(error, psycopg.OperationalError):
        text = str(error)
        return next((state for message, state in _REFUSALS if message.search(text)), "")
    return ""


def is_conflict(error: BaseException) -> bool:
    """Returns whether the server undid the transaction in favor of another."""
    return state_of(error) in _CONFLICTS


def is_outage(error: BaseException) -> bool:
    """Returns whether the connection is lost, or the server cannot work now."""
    if state := state_of(error):
        return state.startswith(_OUTAGES) or state in _OUTAGE_STATES
    # OperationalError includes statements that took too long.
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | OSError)


def is_final(error: BaseException) -> bool:
    """Returns whether another attempt to connect would fail in the same way."""
    return state_of(error) in _NO_ENTRY or isinstance(error, ValueError)


def explain(error: BaseException, address: ServerAddress) -> JournalError:
    """Returns a journal error of one line for an error of the driver."""
    if isinstance(error, JournalError):
        return error
    state, text = state_of(error), _text(error, address)
    if state in ("53100", "53400", "54000"):
        return JournalFull(
            f"the server of journal {address.name} is full ({text}); free some space there and run "
            "the same command again"
        )
    if state in ("28000", "28P01"):
        return JournalError(
            f"journal {address.name}: the server does not let this user in ({text}); check the "
            "name and the password (PGPASSWORD, or ~/.pgpass)"
        )
    if state == "3D000":
        return JournalError(
            f"journal {address.name}: the server has no such database ({text}); create it with "
            f"`createdb {_database(text)}`, as a user of the server who may"
        )
    if state == "42501":
        return JournalError(f"journal {address.name}: {text}; {_grant(address)}")
    if state in ("42P01", "42883", "42703"):
        return NotAJournal(
            f"journal {address.name}: schema holdfast is not one of ours ({text}); it was not "
            "touched"
        )
    return JournalError(f"journal {address.name}: {text}")


def quoted(name: str) -> str:
    """Returns a role, schema or database name quoted for SQL."""
    return '"' + name.replace('"', '""') + '"'


def role_of(address: ServerAddress) -> str:
    """Returns the user's name on the server, found in the same places and order as in the
    driver."""
    parts = urlsplit(address.url)
    named = unquote(parts.username or "") or dict(parse_qsl(parts.query)).get("user")
    return named or os.environ.get("PGUSER") or getuser()


def _grant(address: ServerAddress) -> str:
    role = quoted(role_of(address))
    return (
        f"let its owner run: GRANT USAGE ON SCHEMA holdfast TO {role}; GRANT SELECT, INSERT, "
        f"UPDATE, DELETE ON ALL TABLES IN SCHEMA holdfast TO {role} (docs/cluster.md has the whole "
        "role)"
    )


def unreachable(error: BaseException, address: ServerAddress) -> JournalUnreachable:
    """Returns the error for a server that has never answered in time."""
    return JournalUnreachable(
        f"{_tried(error, address, address.connect_seconds)}; check the address, and that the "
        "server runs; the same command goes on when it does"
    )


def gone(error: BaseException, address: ServerAddress) -> JournalUnreachable:
    """Returns the error for a server that answered before, but did not answer again in time."""
    return JournalUnreachable(
        f"{_tried(error, address, address.outage_seconds)}; what it had confirmed is safe, and the "
        "same command goes on when it is back"
    )


def _tried(error: BaseException, address: ServerAddress, seconds: float) -> str:
    text = _text(error, address)
    return f"journal {address.name} cannot be reached ({text}), tried for {seconds:.0f} s"


def _database(text: str) -> str:
    match = re.search(r'database "(.+?)"', text)
    return "NAME" if match is None else shlex.quote(match[1])


def _text(error: BaseException, address: ServerAddress) -> str:
    """Returns the error's text on one line, without the password."""
    text = " ".join(str(error).split()) or type(error).__name__
    return hide_password(text, address)[:300]
