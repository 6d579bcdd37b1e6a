"""The writer: one thread, one connection, group commit.

Operations queue up; the thread takes whatever is ready, with no timer, runs it as one transaction,
and wakes every waiter with one call into the event loop. So a single appender waits for one fsync,
and 256 of them share it.

Failure rules. An operation that is refused fails its own caller only. After an I/O error the
outcome of the transaction is unknown: the connection is closed and never used again, a new one
reads the writer's own batch number, and only then is it known whether the batch is in the journal.
If it is not, it is tried once more; if that fails too, its callers get the error.
"""

import asyncio
import secrets
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Protocol

from holdfast import crashpoint
from holdfast.journal.schema import explain
from holdfast.records.errors import JournalError, JournalFull

MAX_ROWS = 512
MAX_BYTES = 8 * 1024 * 1024
QUEUE_ROWS = 4 * MAX_ROWS
QUEUE_BYTES = 8 * MAX_BYTES
CLOSE_TIMEOUT = 60.0


class Operation(Protocol):
    """Something to do inside a transaction. It may be run again after a failed commit."""

    rows: int
    size: int

    def run(self, connection: sqlite3.Connection) -> object: ...


class Call:
    """Any function of the connection, isolated by a savepoint."""

    rows = 1
    size = 0

    def __init__(self, function: Callable[[sqlite3.Connection], object]):
        self.function = function

    def run(self, connection: sqlite3.Connection) -> object:
        connection.execute("SAVEPOINT call")
        try:
            result = self.function(connection)
        except sqlite3.OperationalError:
            raise
        except BaseException:
            connection.execute("ROLLBACK TO call")
            connection.execute("RELEASE call")
            raise
        connection.execute("RELEASE call")
        return result


class Ticket:
    """An operation, the future that waits for it, and what came of it."""

    __slots__ = ("error", "future", "operation", "result")

    def __init__(self, operation: Operation, future: "asyncio.Future[object]"):
        self.operation = operation
        self.future = future
        self.result: object = None
        self.error: BaseException | None = None


class Writer:
    """Owns the write connection. Started by the first operation, stopped by `close`."""

    def __init__(
        self,
        path: Path,
        connect: Callable[[], sqlite3.Connection],
        run_batch: Callable[[sqlite3.Connection, list[Ticket]], None],
        after_commit: Callable[[sqlite3.Connection, int], None],
    ):
        self._path = path
        self._connect = connect
        self._run_batch = run_batch
        self._after_commit = after_commit
        self._name = secrets.token_hex(8)
        self._batch = 0
        self._queue: SimpleQueue[Ticket | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._connection: sqlite3.Connection | None = None
        self._rows = 0
        self._bytes = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._closed = False
        self.batches = 0

    # --- the event loop's side

    async def room(self) -> None:
        """Back-pressure: returns when the queue has room."""
        while self._rows >= QUEUE_ROWS or self._bytes >= QUEUE_BYTES:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def enqueue(self, operation: Operation) -> "asyncio.Future[object]":
        """Queues at once, in the order of the calls; the future ends when it is durable."""
        if self._closed:
            raise JournalError(f"journal {self._path} is closed")
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="holdfast-journal", daemon=True)
            self._thread.start()
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._rows += operation.rows
        self._bytes += operation.size
        self._queue.put(Ticket(operation, future))
        return future

    async def drain(self) -> None:
        """Returns when everything queued so far is durable or refused."""
        if self._rows == 0:
            return
        idle: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle.append(idle)
        await idle

    async def close(self) -> None:
        """Finishes what is queued, then ends the thread."""
        if self._closed:
            return
        self._closed = True
        if self._thread is not None:
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join, CLOSE_TIMEOUT)
            if self._thread.is_alive():
                raise JournalError(f"journal {self._path} did not finish its writes in time")

    def _settle(self, batch: list[Ticket]) -> None:
        for ticket in batch:
            self._rows -= ticket.operation.rows
            self._bytes -= ticket.operation.size
            # A cancelled waiter has gone; its write is durable all the same.
            if ticket.future.done():
                continue
            if ticket.error is None:
                ticket.future.set_result(ticket.result)
            else:
                ticket.future.set_exception(ticket.error)
        _wake(self._waiters)
        if self._rows == 0:
            _wake(self._idle)

    # --- the thread's side

    def _work(self) -> None:
        while (first := self._queue.get()) is not None:
            batch, closing = self._gather(first)
            self._commit(batch)
            loop = batch[0].future.get_loop()
            try:
                loop.call_soon_threadsafe(self._settle, batch)
            except RuntimeError:  # The loop ended without closing us: nobody waits any more.
                break
            if closing:
                break
        if self._connection is not None:
            self._connection.close()

    def _gather(self, first: Ticket) -> tuple[list[Ticket], bool]:
        batch, rows, size = [first], first.operation.rows, first.operation.size
        while rows < MAX_ROWS and size < MAX_BYTES:
            try:
                ticket = self._queue.get_nowait()
            except Empty:
                break
            if ticket is None:
                return batch, True
            batch.append(ticket)
            rows += ticket.operation.rows
            size += ticket.operation.size
        return batch, False

    def _commit(self, batch: list[Ticket]) -> None:
        self._batch += 1
        for last_try in (False, True):
            try:
                self._transaction(batch)
            except (sqlite3.Error, JournalError) as error:
                self._give_up_connection()
                if self._is_durable():
                    return None
                if last_try:
                    _fail(batch, _journal_error(error, self._path))
            except Exception as error:  # A bug of ours must fail its callers, not hang them.
                self._give_up_connection()
                return _fail(batch, error)
            else:
                return None
        return None

    def _transaction(self, batch: list[Ticket]) -> None:
        connection = self._connection
        if connection is None:
            connection = self._connection = self._connect()
        for ticket in batch:
            ticket.result = ticket.error = None
        connection.execute("BEGIN IMMEDIATE")
        self._run_batch(connection, batch)
        connection.execute(
            "INSERT INTO writers VALUES (?, ?) ON CONFLICT DO UPDATE SET batch = excluded.batch",
            (self._name, self._batch),
        )
        rows = sum(ticket.operation.rows for ticket in batch)
        crashpoint.reach("journal.before_commit", rows)
        connection.execute("COMMIT")
        crashpoint.reach("journal.after_commit", rows)
        self.batches += 1
        self._after_commit(connection, sum(ticket.operation.size for ticket in batch))

    def _give_up_connection(self) -> None:
        """Never fsync the same handle again: pages that failed to reach the disk look clean."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except sqlite3.Error:
                connection = None  # Whatever it held is rolled back when the file is reopened.

    def _is_durable(self) -> bool:
        """Whether the batch that just failed is in the journal after all."""
        try:
            self._connection = self._connect()
            row = self._connection.execute(
                "SELECT batch FROM writers WHERE name = ?", (self._name,)
            ).fetchone()
        except (sqlite3.Error, JournalError):
            self._give_up_connection()
            return False
        return row is not None and row[0] == self._batch


def _wake(waiters: "deque[asyncio.Future[None]] | list[asyncio.Future[None]]") -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
    waiters.clear()


def _fail(batch: list[Ticket], error: Exception) -> None:
    for ticket in batch:
        ticket.error = error


def _journal_error(error: Exception, path: Path) -> JournalError:
    if isinstance(error, JournalError):
        return error
    assert isinstance(error, sqlite3.Error), "only these two are caught"
    if "full" in str(error):
        return JournalFull(
            f"the disk that holds {path} is full; free some space and run the same command again"
        )
    return explain(error, path)
