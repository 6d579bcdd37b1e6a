"""The writer is one thread with one connection and group commit.

Operations queue up. The event loop hands all operations of one turn of the loop over together. The
thread takes the queued operations without a timer, lets the store commit them as one transaction,
and wakes all waiters with one call into the event loop. A single appender therefore waits for one
commit, and 256 appenders share one commit.

Under load, the event loop and the thread compete for the interpreter lock. The loop needs the lock
to continue the callers of durable records. The thread needs the lock except during work inside the
database, most of which is COMMIT. The callers of a batch therefore wake right before the COMMIT of
the next batch, so that the loop works while the disk does. If no operation waits, or the next
operation may take long, the callers wake at once. If the disk is slower than the loop, all
operations share one commit.

A refused operation fails only its own caller. The store handles errors at COMMIT: see `Committer`.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Protocol

from holdfast.journal.entries import AppendEntry
from holdfast.journal.sql.groups import settle
from holdfast.journal.sql.store import Store
from holdfast.records.errors import JournalError

MAX_ROWS = 512
MAX_BYTES = 8 * 1024 * 1024
QUEUE_ROWS = 4 * MAX_ROWS
QUEUE_BYTES = 8 * MAX_BYTES
# A batch with more rows than this is split into two commits. This is faster as long as a COMMIT
# takes less time than the event loop needs for the rows (measured).
SPLIT_ROWS = 64
LOOP_SECONDS = 10e-6
CLOSE_TIMEOUT = 60.0


_forks = 0
"""The number of forks between the first process and this process."""


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class Operation:
    """A function that runs inside a transaction, its waiting caller, and its outcome. The function
    may run again after a failed commit."""

    __slots__ = ("error", "future", "loop", "result", "rows", "size")

    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[object]"

    def __init__(self, rows: int, size: int):
        self.rows = rows
        self.size = size
        self.result: object = None
        self.error: BaseException | None = None


class Append(Operation):
    """One or more entries that are written together or not at all."""

    __slots__ = ("entries",)

    def __init__(self, entries: list[AppendEntry]):
        # Not with `super()`, because nothing runs more often.
        self.rows = self.size = 0
        for entry in entries:
            self.rows += len(entry.rows)
            self.size += entry.size
        self.result = self.error = None
        self.entries = entries


class WriteCall(Operation):
    """A call of any function that takes the store."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[[Store], object], *, size: int = 0):
        super().__init__(1, size)
        self.function = function


def write_appends(store: Store, appends: Sequence[Append]) -> None:
    """Writes the appends that are not refused. Sets the error of each refused append."""

    def refuse(number: int, error: JournalError) -> None:
        appends[number].error = error

    store.append([append.entries for append in appends], refuse)
    settled: dict[int, bytes | None] = {}
    restated: list[int] = []
    for append in appends:
        if append.error is not None:
            continue
        for entry in append.entries:
            if entry.settled:
                settled[entry.lease.id] = entry.summary
            elif entry.status is not None and entry.lease.settled:
                restated.append(entry.lease.id)
    if settled or restated:
        settle(store, settled, restated=restated)


class Committer(Protocol):
    """A store's side of the writer. Only the writer's thread calls it.

    After an error at COMMIT, the outcome is unknown. The committer first finds out whether the
    journal has the batch, and only then decides. When `commit` returns, each operation has its
    result or its error. The journal has a batch exactly once, or not at all; in the second case,
    all operations of the batch have an error.
    """

    mixes_calls: bool
    """Whether calls may share a transaction with appends and with each other."""
    seconds: float
    """The duration of a COMMIT in seconds."""

    def commit(self, batch: list[Operation], wake: Callable[[], None]) -> None:
        """Commits a batch. Calls `wake` right before COMMIT, and before anything that may take
        long."""
        ...

    def tidy(self, wake: Callable[[], None]) -> None:
        """Does maintenance between two batches."""
        ...

    def give_up(self) -> None:
        """Stops trying to write what cannot be written now, because no caller waits any more.
        Another thread may call it."""
        ...

    def close(self) -> None: ...


class Writer:
    """The owner of the connection for writing. The first operation starts its thread, and `close`
    stops it."""

    def __init__(self, name: str, committer: Committer):
        self._name = name
        self._committer = committer
        self._queue: SimpleQueue[Operation | None] = SimpleQueue()
        self._new: list[Operation] = []
        """The operations of the present turn of the loop, which are not in the queue yet."""
        self._hands_over: asyncio.AbstractEventLoop | None = None
        """The event loop that queued the newest operations in `_new`, and that will put them into
        the queue."""
        self._next: Operation | None = None
        self._thread: threading.Thread | None = None
        self._rows = 0
        self._bytes = 0
        self._counting = threading.Lock()
        self._queued = 0
        self._done = 0
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._closed = False
        self._forks = _forks
        self._unnotified: list[Operation] = []
        self.batches = 0

    # --- the event loop's side

    @property
    def has_room(self) -> bool:
        return self._rows < QUEUE_ROWS and self._bytes < QUEUE_BYTES

    async def room(self) -> None:
        """Waits until the queue has room (back-pressure)."""
        while (waiter := self._waiter(lambda: self.has_room, until=0)) is not None:
            await waiter

    async def drain(self) -> None:
        """Waits until every operation queued so far is durable or refused."""
        # Does not wait for an empty queue, because under load it is never empty.
        queued = self._queued
        if (waiter := self._waiter(lambda: self._done >= queued, until=queued)) is not None:
            await waiter

    def _waiter(self, is_over: Callable[[], bool], *, until: int) -> "asyncio.Future[None] | None":
        """Returns a future that is done after the next batch with which at least `until` operations
        are finished. Returns None if `is_over` returns True."""
        with self._counting:
            if is_over():
                return None
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append((until, waiter))
            return waiter

    def enqueue(self, operation: Operation) -> "asyncio.Future[object]":
        """Queues the operation at once, in the order of the calls. The returned future ends when
        the operation is durable or has failed."""
        if self._closed:
            raise JournalError(f"journal {self._name} is closed")
        if self._thread is None or self._forks != _forks:
            self._start()
        loop = operation.loop = asyncio.get_running_loop()
        operation.future = loop.create_future()
        with self._counting:
            self._queued += 1
            self._rows += operation.rows
            self._bytes += operation.size
            self._new.append(operation)
            if self._hands_over is not loop:
                # Also if another loop will do it, because that loop may end before it does.
                self._hands_over = loop
                loop.call_soon(self._hand_over)
        return operation.future

    def _hand_over(self) -> None:
        with self._counting:
            new, self._new, self._hands_over = self._new, [], None
            for operation in new:
                self._queue.put(operation)

    def check_process(self) -> None:
        if self._forks != _forks:
            raise JournalError(
                f"journal {self._name} was opened before this process was forked; open it anew"
            )

    def _start(self) -> None:
        with self._counting:
            self.check_process()
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="holdfast-journal", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    raise JournalError(
                        f"journal {self._name} cannot be written: {error}"
                    ) from error
                self._thread = thread

    async def close(self) -> None:
        """Finishes the queued operations, then ends the thread. The call may be repeated."""
        if not self._closed:
            self._closed = True
            self._hand_over()
            self._queue.put(None)
        if self._thread is not None and self._forks == _forks:
            await asyncio.to_thread(self._thread.join, CLOSE_TIMEOUT)
            # If everything is written, the thread only moves a long log into the file, which may be
            # interrupted.
            if self._thread.is_alive() and self._done < self._queued:
                self._committer.give_up()
                raise JournalError(f"journal {self._name} did not finish its writes in time")

    def _settle(self, batch: list[Operation], woken: "list[asyncio.Future[None]]") -> None:
        for operation in batch:
            future, error = operation.future, operation.error
            # The waiter was cancelled, but its write is durable.
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
        while not closing and (first := self._take()) is not None:
            batch, closing = self._gather(first)
            if not all(isinstance(operation, Append) for operation in batch):
                self._notify_waiters()
            try:
                self._commit(batch)
            finally:
                self._notify_waiters()
            self.batches += 1
            self._unnotified = batch
            if self._is_idle() or not self._is_quick(self._queue.qsize() + len(batch)):
                self._notify_waiters()
            self._committer.tidy(self._notify_waiters)
        self._notify_waiters()
        self._committer.close()

    def _commit(self, batch: list[Operation]) -> None:
        try:
            self._committer.commit(batch, self._notify_waiters)
        except Exception as error:
            # A bug in Holdfast must fail the callers instead of leaving them waiting.
            for operation in batch:
                operation.error = operation.error or error

    def _take(self) -> Operation | None:
        operation, self._next = self._next, None
        return operation or self._queue.get()

    def _is_idle(self) -> bool:
        return self._next is None and self._queue.empty()

    def _notify_waiters(self) -> None:
        """Notifies the waiters of the previous batch, unless they were already notified."""
        batch, self._unnotified = self._unnotified, []
        if batch:
            self._report(batch)

    def _report(self, batch: list[Operation]) -> None:
        """Reports a batch with one call into each event loop that waits. There is almost always one
        loop.

        A loop may have ended while its appends were queued. The appends of other loops are still
        reported.
        """
        woken = self._count_done(batch)
        loops = {operation.loop for operation in batch}
        loops |= {waiter.get_loop() for waiter in woken}
        for loop in loops:
            here = batch
            if len(loops) > 1:
                here = [operation for operation in batch if operation.loop is loop]
            waiting = [waiter for waiter in woken if waiter.get_loop() is loop]
            with suppress(RuntimeError):  # The loop has ended, and nobody waits there any more.
                loop.call_soon_threadsafe(self._settle, here, waiting)

    def _count_done(self, batch: list[Operation]) -> "list[asyncio.Future[None]]":
        """Subtracts the batch from the queue's counts. Returns the waiters whose wait is over."""
        with self._counting:
            self._done += len(batch)
            self._rows -= sum([operation.rows for operation in batch])
            self._bytes -= sum([operation.size for operation in batch])
            waiters = self._waiters
            self._waiters = [each for each in waiters if each[0] > self._done]
            return [waiter for until, waiter in waiters if until <= self._done]

    def _gather(self, first: Operation) -> tuple[list[Operation], bool]:
        batch, rows, size = [first], first.rows, first.size
        most = self._share(1 + self._queue.qsize() + len(self._unnotified))
        while rows < most and size < MAX_BYTES and self._may_grow(batch[-1]):
            try:
                operation = self._queue.get_nowait()
            except Empty:
                break
            if operation is None:
                return batch, True
            if not self._may_grow(operation):
                self._next = operation
                break
            batch.append(operation)
            rows += operation.rows
            size += operation.size
        return batch, False

    def _may_grow(self, operation: Operation) -> bool:
        """Returns whether the operation may share a transaction with other operations."""
        return self._committer.mixes_calls or isinstance(operation, Append)

    def _share(self, waiting: int) -> int:
        """Returns the number of rows to put into the next transaction while this many operations
        wait."""
        if self._is_quick(waiting):
            return min(MAX_ROWS, max(SPLIT_ROWS, waiting // 2))
        return MAX_ROWS

    def _is_quick(self, waiting: int) -> bool:
        """Returns whether a COMMIT takes less time than the loop needs for this many operations."""
        return self._committer.seconds < LOOP_SECONDS * waiting


class InlineWriter:
    """A writer for a database in memory. It commits each operation at once and has no queue."""

    has_room = True

    def __init__(self, commit: Callable[[list[Operation]], None]):
        self._commit = commit
        self.batches = 0

    async def room(self) -> None: ...

    def enqueue(self, operation: Operation) -> "asyncio.Future[object]":
        operation.loop = asyncio.get_running_loop()
        operation.future = operation.loop.create_future()
        self._commit([operation])
        if operation.error is None:
            operation.future.set_result(operation.result)
        else:
            operation.future.set_exception(operation.error)
        return operation.future

    def check_process(self) -> None: ...
    async def drain(self) -> None: ...
    async def close(self) -> None: ...
