"""One batch, one transaction of SQLite, and an outcome that is known.

After an I/O error the outcome of the transaction is unknown: the connection is closed and never
used again, a new one reads the number of the writer's last commit, under the write lock, and only
then is it known whether the batch is in the journal. If it is not, it is tried once more; if that
fails too, its callers get the error, and an outcome that could not be read remains unknown to them.
"""

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from holdfast import crashpoint
from holdfast.journal.sql.writer import Append, Operation, WriteCall, write_appends
from holdfast.journal.sqlite.checkpoint import Checkpointer
from holdfast.journal.sqlite.commits import Commits
from holdfast.journal.sqlite.handle import Handle
from holdfast.journal.sqlite.schema import explain
from holdfast.journal.sqlite.store import SqliteStore
from holdfast.records.errors import JournalError

BUSY_SECONDS = 30.0
Wake = Callable[[], None]


class SqliteCommitter:
    """See `Committer`."""

    mixes_calls = True

    def __init__(self, path: Path, handle: Handle, checkpointer: Checkpointer, commits: Commits):
        self._path = path
        self._handle = handle
        self._checkpointer = checkpointer
        self._commits = commits
        self._number = 0
        """Of the commit that is being tried; 0 before it has one."""
        self._untidied: int | None = None
        self.seconds = 0.0

    def commit(self, batch: list[Operation], wake: Wake) -> None:
        self._number = 0
        failure: JournalError | None = None
        for again in (False, True):
            try:
                self._transaction(batch, wake, again=again)
            except (sqlite3.Error, JournalError) as error:
                self._handle.give_up()
                failure = failure or _journal_error(error, self._path)
            except Exception:
                self._handle.give_up()
                raise
            else:
                return self._explain_refusals(batch)
        if failure is not None and not self._is_durable():
            for operation in batch:
                operation.error = failure
            return None
        return self._explain_refusals(batch)

    def _transaction(self, batch: list[Operation], wake: Wake, *, again: bool) -> None:
        store = self._handle.store
        connection = store.connection
        self._begin(connection, wake)
        if again and self._commits.last_number(connection) == self._number:
            connection.execute("ROLLBACK")
            return
        if again:
            for operation in batch:
                operation.result = operation.error = None
        run_batch(store, batch)
        self._number = self._commits.next_number(connection)
        rows = sum([operation.rows for operation in batch])
        self._handle.check_place()
        wake()
        crashpoint.reach("journal.before_commit", rows)
        began = time.monotonic()
        connection.execute("COMMIT")
        self.seconds += (time.monotonic() - began - self.seconds) / 4
        crashpoint.reach("journal.after_commit", rows)
        self._commits.note(self._number)
        crashpoint.reach("journal.witnessed", rows)
        self._untidied = sum([operation.size for operation in batch])

    def _begin(self, connection: sqlite3.Connection, wake: Wake) -> None:
        """Waits for the write lock, but lets no caller wait for that who is only to be woken."""
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
        """Looks after the log, if something was written to it. No caller waits for that."""
        size, self._untidied = self._untidied, None
        if size is None or not self._checkpointer.after_commit(size):
            return
        wake()
        try:
            self._checkpointer.copy_rest(self._handle.store.connection)
        except (sqlite3.Error, JournalError):  # The batch is durable; the handle is not trusted.
            self._handle.give_up()

    def give_up(self) -> None: ...

    def close(self) -> None:
        self._handle.close()
        self._commits.close()

    def _is_durable(self) -> bool:
        """Whether the batch that just failed is in the journal after all."""
        try:
            return self._commits.last_number(self._handle.store.connection) == self._number
        except (sqlite3.Error, JournalError):
            self._handle.give_up()
            return False

    def _explain_refusals(self, batch: list[Operation]) -> None:
        for operation in batch:
            if isinstance(operation.error, sqlite3.Error):
                operation.error = explain(operation.error, self._path)


class MemoryCommitter:
    """The same for a database in memory, which nothing can fail and nobody else sees."""

    mixes_calls = True
    seconds = 0.0

    def __init__(self, store: SqliteStore):
        self._store = store

    def commit(self, batch: list[Operation], wake: Wake) -> None:
        execute = self._store.connection.execute
        execute("BEGIN")
        try:
            run_batch(self._store, batch)
        except BaseException:
            self._store.log_ends.forget()
            execute("ROLLBACK")
            raise
        execute("COMMIT")

    def tidy(self, wake: Wake) -> None: ...
    def give_up(self) -> None: ...
    def close(self) -> None: ...


def run_batch(store: SqliteStore, batch: list[Operation]) -> None:
    """Runs operations in their order: appends in bulk, everything else one by one in between.

    Within a transaction. One that does not become durable ends its connection, and what is
    remembered of the logs ends with that.
    """
    store.log_ends.look()
    appends: list[Append] = []
    for operation in batch:
        if isinstance(operation, Append):
            appends.append(operation)
            continue
        assert isinstance(operation, WriteCall), "there are no others"
        if appends:
            write_appends(store, appends)
        appends = []
        store.log_ends.forget()  # It may change whatever it likes.
        _run_alone(store, operation)
        store.log_ends.forget()
    if appends:
        write_appends(store, appends)


def _run_alone(store: SqliteStore, call: WriteCall) -> None:
    """Isolated by a savepoint: a call that is refused fails itself only."""
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
