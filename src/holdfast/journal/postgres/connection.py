"""One connection to the server, made again after it was lost.

What our transactions need, each connection sets itself: a role or a database may have other
defaults, for good reasons of its own.

A pooler between us and the server is recognized: the server's process is another one than the one
that greeted us. Its connections may change with every transaction, so then each transaction sets
what it needs, nobody listens, and no statement is prepared: waiting falls back to polling.

An outage is no failure: the connection is made again, the outcome of what was under way is looked
up, and only then is anything decided. What else the server reports is named with what to do.
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
    """The part of the driver that we use. Each statement is a transaction, unless one was begun."""

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
        """`ready`: checks a new connection before it is used. `read_only`: the server may be a
        standby, where no transaction can write."""
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
        """The pause between two attempts; `JournalError` when nobody waits for them any more."""
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
        """A stronger setting than `on` stays."""
        if self._address.allow_synchronous_commit_off:
            return ""
        return (
            f"SELECT set_config('synchronous_commit', 'on', {local}) "
            f"WHERE current_setting('synchronous_commit') IN {WEAK_COMMITS}"
        )

    def drop(self) -> None:
        """Closes the connection; the next use makes another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def give_up(self) -> None:
        """From another thread: ends the waiting for the server here."""
        self._given_up.set()


def _has_pooler(connection: ServerConnection) -> bool:
    """Whether there is a pooler: then the server's pid differs from the one that the driver got."""
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    return row is not None and row[0] != connection.driver.info.backend_pid


# --- what the server reports

_CONFLICTS = ("40001", "40P01", "55P03")
"""Serialization failure, deadlock, lock not available: nothing was done, and it may be repeated."""
_OUTAGES = ("08", "57")
_OUTAGE_STATES = ("53300", "25006", "0A000", "25P03", "25P04", "HF001")
"""Too many connections, a standby that refuses a write or a transaction that might, a transaction
that was idle for too long, and our function's own: the writer's batch is not the next one, so that
another connection of the writer has committed it."""
_NO_ENTRY = ("28000", "28P01", "3D000", "42501")


_REFUSALS = (
    (re.compile(r'database ".*" does not exist'), "3D000"),
    (re.compile(r"permission denied for database"), "42501"),
    (re.compile(r"authentication failed|no password supplied|pg_hba\.conf|role .* does not exist"),
     "28000"),
)  # fmt: skip
"""The server's messages to clients that it does not let in: the driver has no error code for
them."""


def state_of(error: BaseException) -> str:
    if state := getattr(error, "sqlstate", None):
        return str(state)
    if isinstance(error, psycopg.OperationalError):
        text = str(error)
        return next((state for message, state in _REFUSALS if message.search(text)), "")
    return ""


def is_conflict(error: BaseException) -> bool:
    """Whether the transaction was undone for the sake of another one."""
    return state_of(error) in _CONFLICTS


def is_outage(error: BaseException) -> bool:
    """Whether the connection is gone, or the server cannot do anything now."""
    if state := state_of(error):
        return state.startswith(_OUTAGES) or state in _OUTAGE_STATES
    # The first: also a statement that took too long.
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | OSError)


def is_final(error: BaseException) -> bool:
    """Whether another attempt to connect would fail in the same way."""
    return state_of(error) in _NO_ENTRY or isinstance(error, ValueError)


def explain(error: BaseException, address: ServerAddress) -> JournalError:
    """Any error of the driver, as one line."""
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
    """A role, schema or database as SQL takes it, whatever its name is."""
    return '"' + name.replace('"', '""') + '"'


def role_of(address: ServerAddress) -> str:
    """Who the driver is on the server: it looks in the same places, in the same order."""
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
    """A server that has not answered yet could not be reached within its time."""
    return JournalUnreachable(
        f"{_tried(error, address, address.connect_seconds)}; check the address, and that the "
        "server runs; the same command goes on when it does"
    )


def gone(error: BaseException, address: ServerAddress) -> JournalUnreachable:
    """A server that was there did not come back within its time."""
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
    """One line, without the password."""
    text = " ".join(str(error).split()) or type(error).__name__
    return hide_password(text, address)[:300]
