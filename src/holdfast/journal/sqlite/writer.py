"""The writer: one thread, one connection, group commit.

Operations queue up; the thread takes what is ready, with no timer, runs it as one transaction, and
wakes every waiter with one call into the event loop. So a single appender waits for one fsync, and
256 of them share it.

Under load two halves take turns, because there is one interpreter lock: the loop needs it to go on
with the callers of durable records, the thread needs it for everything but the work inside
SQLite, and the longest piece of that is COMMIT. So the callers of a batch wake right before the
COMMIT of the next one, and the loop is busy while the disk is. When nothing else waits, or what
waits may take long, they wake at once; and where the disk takes longer than the loop, all share its
fsync.

Failure rules. An operation that is refused fails its own caller only. After an I/O error the
outcome of the transaction is unknown: the connection is closed and never used again, a new one
reads the number of the writer's last commit, under the write lock, and only then is it known
whether the batch is in the journal. If it is not, it is tried once more; if that fails too, its
callers get the error, and an outcome that could not be read remains unknown to them.
"""

import asyncio
import os
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

from holdfast import crashpoint
from holdfast.journal.sqlite.checkpoint import Checkpointer
from holdfast.journal.sqlite.commits import Commits
from holdfast.journal.sqlite.handle import Handle
from holdfast.journal.sqlite.schema import explain
from holdfast.records.errors import JournalError

MAX_ROWS = 512
MAX_BYTES = 8 * 1024 * 1024
QUEUE_ROWS = 4 * MAX_ROWS
QUEUE_BYTES = 8 * MAX_BYTES
# Two halves take two fsyncs: worth it for more rows than this, as long as a COMMIT takes less time
# than the event loop, which has about this much to do for each of them (measured).
SPLIT_ROWS = 64
LOOP_SECONDS = 10e-6
BUSY_SECONDS = 30.0
CLOSE_TIMEOUT = 60.0


_forks = 0
"""How often the process was forked on the way to this one."""


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class Operation(ABC):
    """Something to do inside a transaction, who waits for it, and what came of it.

    It may be run again after a failed commit.
    """

    __slots__ = ("error", "future", "loop", "result", "rows", "size")

    brief = False
    """Takes no longer than its rows take, so that others may wait for it."""

    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[object]"

    def __init__(self, rows: int, size: int):
        self.rows = rows
        self.size = size
        self.result: object = None
        self.error: BaseException | None = None

    @abstractmethod
    def run(self, connection: sqlite3.Connection) -> object: ...


class WriteCall(Operation):
    """Any function of the connection, isolated by a savepoint."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[[sqlite3.Connection], object], size: int = 0):
        super().__init__(1, size)
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


class Writer:
    """Owns the write connection. Started by the first operation, stopped by `close`."""

    def __init__(
        self,
        path: Path,
        handle: Handle,
        run_batch: Callable[[sqlite3.Connection, list[Operation]], None],
        checkpointer: Checkpointer,
        commits: Commits,
    ):
        self._path = path
        self._handle = handle
        self._run_batch = run_batch
        self._checkpointer = checkpointer
        self._commits = commits
        self._number = 0
        """Of the commit that is being tried; 0 before it has one."""
        self._queue: SimpleQueue[Operation | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._rows = 0
        self._bytes = 0
        self._counting = threading.Lock()
        self._queued = 0
        self._done = 0
        self._waiters: list[asyncio.Future[None]] = []
        self._drains: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._closed = False
        self._forks = _forks
        self._unnotified: list[Operation] = []
        self._untidied: int | None = None
        self._commit_seconds = 0.0
        self.batches = 0

    # --- the event loop's side

    @property
    def has_room(self) -> bool:
        return self._rows < QUEUE_ROWS and self._bytes < QUEUE_BYTES

    async def room(self) -> None:
        """Back-pressure: returns when the queue has room."""
        while (waiter := self._wait_for_room()) is not None:
            await waiter

    def _wait_for_room(self) -> "asyncio.Future[None] | None":
        with self._counting:
            if self.has_room:
                return None
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            return waiter

    def enqueue(self, operation: Operation) -> "asyncio.Future[object]":
        """Queues at once, in the order of the calls; the future ends when it is durable."""
        if self._closed:
            raise JournalError(f"journal {self._path} is closed")
        if self._thread is None or self._forks != _forks:
            self._start()
        operation.loop = asyncio.get_running_loop()
        operation.future = operation.loop.create_future()
        with self._counting:
            self._queued += 1
            self._rows += operation.rows
            self._bytes += operation.size
        self._queue.put(operation)
        return operation.future

    def _start(self) -> None:
        with self._counting:
            if self._forks != _forks:
                raise JournalError(
                    f"journal {self._path} was opened before this process was forked; open it anew"
                )
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="holdfast-journal", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    raise JournalError(
                        f"journal {self._path} cannot be written: {error}"
                    ) from error
                self._thread = thread

    async def drain(self) -> None:
        """Returns when everything queued so far is durable or refused."""
        with self._counting:
            if self._done == self._queued:
                return
            drained: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            # Not until the queue is empty: under load it never is.
            self._drains.append((self._queued, drained))
        await drained

    async def close(self) -> None:
        """Finishes what is queued, then ends the thread. It may be repeated."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
        if self._thread is not None and self._forks == _forks:
            await asyncio.to_thread(self._thread.join, CLOSE_TIMEOUT)
            # Where all is written, it only moves a long log into the file: that can be left undone.
            if self._thread.is_alive() and self._done < self._queued:
                raise JournalError(f"journal {self._path} did not finish its writes in time")

    def _settle(self, batch: list[Operation], woken: "list[asyncio.Future[None]]") -> None:
        for operation in batch:
            future, error = operation.future, operation.error
            # A cancelled waiter has gone; its write is durable all the same.
            if future.done():
                continue
            if error is None:
                future.set_result(operation.result)
            else:
                future.set_exception(error)
        for waiter in woken:
            if not waiter.done():
                waiter.set_result(None)

    # --- the thread's side

    def _work(self) -> None:
        closing = False
        while not closing and (first := self._queue.get()) is not None:
            batch, closing = self._gather(first)
            if not all(operation.brief for operation in batch):
                self._notify_waiters()
            try:
                self._commit(batch)
            finally:
                self._notify_waiters()
            self._unnotified = batch
            if self._queue.empty() or not self._is_quick(self._queue.qsize() + len(batch)):
                self._notify_waiters()
            self._tidy()
        self._notify_waiters()
        self._handle.close()
        self._commits.close()

    def _notify_waiters(self) -> None:
        """Those of the batch before, unless they know."""
        batch, self._unnotified = self._unnotified, []
        if batch:
            self._report(batch)

    def _report(self, batch: list[Operation]) -> None:
        """One call into each event loop that waits: almost always there is one.

        A loop may have ended while its appends were queued; those of the next one go on.
        """
        woken = self._count_done(batch)
        loops = {operation.loop for operation in batch}
        loops |= {waiter.get_loop() for waiter in woken}
        for loop in loops:
            here = batch
            if len(loops) > 1:
                here = [operation for operation in batch if operation.loop is loop]
            waiting = [waiter for waiter in woken if waiter.get_loop() is loop]
            with suppress(RuntimeError):  # It has ended: nobody waits there any more.
                loop.call_soon_threadsafe(self._settle, here, waiting)

    def _count_done(self, batch: list[Operation]) -> "list[asyncio.Future[None]]":
        """Takes the batch off the books; returns those who waited for that."""
        with self._counting:
            self._done += len(batch)
            self._rows -= sum([operation.rows for operation in batch])
            self._bytes -= sum([operation.size for operation in batch])
            woken, self._waiters = self._waiters, []
            while self._drains and self._drains[0][0] <= self._done:
                woken.append(self._drains.popleft()[1])
            return woken

    def _gather(self, first: Operation) -> tuple[list[Operation], bool]:
        batch, rows, size = [first], first.rows, first.size
        most = self._share(1 + self._queue.qsize() + len(self._unnotified))
        while rows < most and size < MAX_BYTES:
            try:
                operation = self._queue.get_nowait()
            except Empty:
                break
            if operation is None:
                return batch, True
            batch.append(operation)
            rows += operation.rows
            size += operation.size
        return batch, False

    def _share(self, waiting: int) -> int:
        """How many rows to take when so many wait for this batch or the next."""
        if self._is_quick(waiting):
            return min(MAX_ROWS, max(SPLIT_ROWS, waiting // 2))
        return MAX_ROWS

    def _is_quick(self, waiting: int) -> bool:
        """Whether the disk takes less time than the loop will take for so many."""
        return self._commit_seconds < LOOP_SECONDS * waiting

    def _commit(self, batch: list[Operation]) -> None:
        self._number = 0
        failure: JournalError | None = None
        for again in (False, True):
            try:
                self._transaction(batch, again=again)
            except (sqlite3.Error, JournalError) as error:
                self._handle.give_up()
                failure = failure or _journal_error(error, self._path)
            except Exception as error:  # A bug of ours must fail its callers, not hang them.
                self._handle.give_up()
                return _fail(batch, error)
            else:
                return self._explain_refusals(batch)
        if failure is not None and not self._is_durable():
            return _fail(batch, failure)
        return self._explain_refusals(batch)

    def _transaction(self, batch: list[Operation], *, again: bool) -> None:
        connection = self._handle.connection
        self._begin(connection)
        if again and self._commits.last_number(connection) == self._number:
            connection.execute("ROLLBACK")
            return
        if again:
            for operation in batch:
                operation.result = operation.error = None
        self._run_batch(connection, batch)
        self._number = self._commits.next_number(connection)
        rows = sum([operation.rows for operation in batch])
        self._handle.check_place()
        self._notify_waiters()
        crashpoint.reach("journal.before_commit", rows)
        began = time.monotonic()
        connection.execute("COMMIT")
        self._commit_seconds += (time.monotonic() - began - self._commit_seconds) / 4
        crashpoint.reach("journal.after_commit", rows)
        self._commits.note(self._number)
        crashpoint.reach("journal.witnessed", rows)
        self.batches += 1
        self._untidied = sum([operation.size for operation in batch])

    def _begin(self, connection: sqlite3.Connection) -> None:
        """Waits for the write lock, but lets no caller wait for that who is only to be woken."""
        if self._unnotified:
            connection.execute("PRAGMA busy_timeout=0")
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if "locked" not in str(error):
                    raise
                self._notify_waiters()
            connection.execute(f"PRAGMA busy_timeout={int(BUSY_SECONDS * 1000)}")
        if not connection.in_transaction:
            connection.execute("BEGIN IMMEDIATE")

    def _tidy(self) -> None:
        """Looks after the log, if something was written to it. No caller waits for that."""
        size, self._untidied = self._untidied, None
        if size is None or not self._checkpointer.after_commit(size):
            return
        self._notify_waiters()
        try:
            self._checkpointer.copy_rest(self._handle.connection)
        except (sqlite3.Error, JournalError):  # The batch is durable; the handle is not trusted.
            self._handle.give_up()

    def _is_durable(self) -> bool:
        """Whether the batch that just failed is in the journal after all."""
        try:
            return self._commits.last_number(self._handle.connection) == self._number
        except (sqlite3.Error, JournalError):
            self._handle.give_up()
            return False

    def _explain_refusals(self, batch: list[Operation]) -> None:
        for operation in batch:
            if isinstance(operation.error, sqlite3.Error):
                operation.error = explain(operation.error, self._path)


def _fail(batch: list[Operation], error: Exception) -> None:
    for operation in batch:
        operation.error = error


def _journal_error(error: sqlite3.Error | JournalError, path: Path) -> JournalError:
    return error if isinstance(error, JournalError) else explain(error, path)
