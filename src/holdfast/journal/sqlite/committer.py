"""Commits one batch as one transaction of SQLite, with an outcome that is known.

After an I/O error, the outcome of the transaction is unknown. The connection is closed and never
used again, because pages that failed to reach the disk look clean to it. A new connection reads the
number of the writer's last commit under the write lock. Only this number says whether the journal
has the batch. If it does not, the batch is tried once more. If the second try fails too, the
callers get the error. If the outcome could not be read, it stays unknown to them.

A commit whose fsync failed is not in the journal, but it is in the log's file. If no other
connection is open, the next connection reads the log from there: it would find the commit and treat
it as durable, although only memory has it. A second connection therefore stays open beside the
first. Its only purpose is to keep the end of the log in the memory that all connections to a file
share.
"""

import secrets
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from holdfast import crashpoint
from holdfast.journal.files.witness import Witness, witness_of
from holdfast.journal.sql.writer import Append, Operation, WriteCall, write_appends
from holdfast.journal.sqlite.checkpoint import Checkpointer
from holdfast.journal.sqlite.schema import explain, identity_of
from holdfast.journal.sqlite.store import SqliteStore
from holdfast.records.errors import JournalError

BUSY_SECONDS = 30.0
# The table keeps the last numbers of this many writers. A writer needs its own only right after an
# error.
KEPT = 64
_NUMBERED = """INSERT INTO batches SELECT ?, coalesce(max(batch), 0) + 1 FROM batches WHERE true
    ON CONFLICT DO UPDATE SET batch = excluded.batch RETURNING batch"""
_OLD = """DELETE FROM batches WHERE name NOT IN
    (SELECT name FROM batches ORDER BY batch DESC LIMIT ?)"""
Wake = Callable[[], None]
Connect = Callable[[], sqlite3.Connection]


class SqliteCommitter:
    """A committer for SQLite (see `Committer`). Its connections are opened on first use. The
    connection for writing is opened again after an error."""

    mixes_calls = True

    def __init__(
        self, path: Path, *, connect: Connect, keep: Connect, wrap: Callable[..., SqliteStore]
    ):
        """`keep` opens the connection that stays open. `wrap` returns the store of a connection."""
        self._path = path
        self._file = path.absolute()
        self._connect = connect
        self._keep = keep
        self._wrap = wrap
        self._store: SqliteStore | None = None
        self._keeper: sqlite3.Connection | None = None
        self._inode: tuple[int, int] | None = None
        self._name = ""
        self._witness: Witness | None = None
        self._number = 0
        """The number of the commit that is being tried; 0 before it has a number."""
        self._untidied: int | None = None
        self.checkpointer = Checkpointer(self._file.parent, connect, self.sync)
        self.seconds = 0.0

    def commit(self, batch: list[Operation], wake: Wake) -> None:
        self._number = 0
        failure: JournalError | None = None
        for again in (False, True):
            try:
                self._transaction(batch, wake, again=again)
            except (sqlite3.Error, JournalError) as error:
                self.drop()
                failure = failure or _journal_error(error, self._path)
            except Exception:
                self.drop()
                raise
            else:
                return self._explain_refusals(batch)
        if failure is not None and not self._is_durable():
            for operation in batch:
                operation.error = failure
            return None
        return self._explain_refusals(batch)

    def _transaction(self, batch: list[Operation], wake: Wake, *, again: bool) -> None:
        store = self._open()
        connection = store.connection
        self._begin(connection, wake)
        if again and self._last_number(connection) == self._number:
            connection.execute("ROLLBACK")
            return
        if again:
            for operation in batch:
                operation.result = operation.error = None
        run_batch(store, batch)
        self._number = self._next_number(connection)
        rows = sum([operation.rows for operation in batch])
        self._check_place()
        wake()
        crashpoint.reach("journal.before_commit", rows)
        began = time.monotonic()
        connection.execute("COMMIT")
        self.seconds += (time.monotonic() - began - self.seconds) / 4
        crashpoint.reach("journal.after_commit", rows)
        if self._witness is not None:  # Noted before the callers wake.
            self._witness.note(self._number)
        crashpoint.reach("journal.witnessed", rows)
        self._untidied = sum([operation.size for operation in batch])

    def _begin(self, connection: sqlite3.Connection, wake: Wake) -> None:
        """Begins a transaction and waits for the write lock. Before it waits, it wakes the callers
        of the previous batch."""
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
            wake()
            connection.execute(f"PRAGMA busy_timeout={int(BUSY_SECONDS * 1000)}")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("PRAGMA busy_timeout=0")

    def tidy(self, wake: Wake) -> None:
        """Maintains the log after a commit. Wakes waiting callers first."""
        size, self._untidied = self._untidied, None
        if size is None or not self.checkpointer.after_commit(size):
            return
        wake()
        try:
            self.checkpointer.copy_rest(self._open().connection)
        except (
            sqlite3.Error,
            JournalError,
        ):  # The batch is durable. Nothing else is known.
            self.drop()

    def give_up(self) -> None: ...

    def sync(self) -> None:
        """Flushes the witness's notes to disk."""
        if self._witness is not None:
            self._witness.sync()

    def close(self) -> None:
        """Closes the connections. The last connection to close moves the log into the file."""
        self.drop()
        if self._keeper is not None:
            with suppress(sqlite3.Error):  # What cannot be moved stays in the log.
                self._keeper.close()
            self._keeper = None
        if self._witness is not None:
            self._witness.close()
            self._witness = None

    def _is_durable(self) -> bool:
        """Returns whether the journal has the batch that just failed. Returns False if the journal
        cannot be read."""
        try:
            return self._last_number(self._open().connection) == self._number
        except (sqlite3.Error, JournalError):
            self.drop()
            return False

    def _explain_refusals(self, batch: list[Operation]) -> None:
        for operation in batch:
            if isinstance(operation.error, sqlite3.Error):
                operation.error = explain(operation.error, self._path)

    # --- the connection

    def _open(self) -> SqliteStore:
        if self._store is None:
            self._check_place()
            store = self._wrap(self._connect())
            try:
                # The code above waits for the lock in its own way.
                store.connection.execute("PRAGMA busy_timeout=0")
            except BaseException:
                store.connection.close()
                raise
            self._store, self._inode = store, _inode_of(self._file)
        if self._keeper is None:
            self._keeper = self._keep()
        return self._store

    def _check_place(self) -> None:
        """Raises `JournalError` if the file no longer has its name, because SQLite would go on
        writing to a deleted file."""
        if self._inode is not None and _inode_of(self._file) != self._inode:
            raise JournalError(
                f"journal {self._file} was deleted, moved or replaced while it was in use; put it "
                "back and run the same command again, or begin another journal"
            )

    def drop(self) -> None:
        """Closes the connection for writing. The next use opens another."""
        store, self._store = self._store, None
        if store is not None:
            with suppress(sqlite3.Error):  # The next connection rolls back an open transaction.
                store.connection.close()

    # --- the numbers of this writer's commits

    def _next_number(self, connection: sqlite3.Connection) -> int:
        """Writes and returns a number for the open transaction, which is higher than all numbers
        before."""
        if self._witness is None:
            self._introduce(connection)
        (number,) = connection.execute(_NUMBERED, (self._name,)).fetchone()
        return int(number)

    def _introduce(self, connection: sqlite3.Connection) -> None:
        identity = identity_of(connection) or 0
        self._name = f"{identity:016x}-{secrets.token_hex(8)}"
        try:
            self._witness = Witness(witness_of(self._file), identity, like=self._file)
        except OSError as error:
            raise JournalError(
                f"journal {self._file} cannot be written: no witness of its commits can be kept "
                f"beside it ({error.strerror}); {_remedy(error, self._file)}"
            ) from error
        connection.execute(_OLD, (KEPT,))

    def _last_number(self, connection: sqlite3.Connection) -> int | None:
        """Returns the number of this writer's last commit in the journal; None if it has no commit
        there."""
        row = connection.execute(
            "SELECT batch FROM batches WHERE name = ?", (self._name,)
        ).fetchone()
        return None if row is None else int(row[0])


def _inode_of(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _remedy(error: OSError, journal: Path) -> str:
    witness = witness_of(journal)
    if isinstance(error, PermissionError) and witness.exists():
        return f"it belongs to somebody else: chown {witness} to the journal's owner, or remove it"
    return "check the folder"


def commit_in_memory(store: SqliteStore, batch: list[Operation]) -> None:
    """Commits a batch to a database in memory, which cannot fail and which no other process
    sees."""
    execute = store.connection.execute
    execute("BEGIN")
    try:
        run_batch(store, batch)
    except BaseException:
        execute("ROLLBACK")
        raise
    execute("COMMIT")


def run_batch(store: SqliteStore, batch: list[Operation]) -> None:
    """Runs operations in their order inside a transaction. Appends between other operations run in
    bulk."""
    appends: list[Append] = []
    for operation in batch:
        if isinstance(operation, Append):
            appends.append(operation)
            continue
        assert isinstance(operation, WriteCall), "there are no others"
        if appends:
            write_appends(store, appends)
        appends = []
        _run_alone(store, operation)
    if appends:
        write_appends(store, appends)


def _run_alone(store: SqliteStore, call: WriteCall) -> None:
    """Runs a call inside a savepoint, so that a refused call fails only itself."""
    execute = store.connection.execute
    execute("SAVEPOINT call")
    try:
        call.result = call.function(store)
    except sqlite3.OperationalError:
        raise
    except Exception as error:
        execute("ROLLBACK TO call")
        call.error = error
    execute("RELEASE call")


def _journal_error(error: sqlite3.Error | JournalError, path: Path) -> JournalError:
    return error if isinstance(error, JournalError) else explain(error, path)
