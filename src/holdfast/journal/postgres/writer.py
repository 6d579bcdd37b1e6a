"""The writer: one task, one connection, group commit, and outcomes that are known.

Operations queue up; the task takes what is ready, with no timer: all appends that wait are one
statement, which is one transaction and one round trip; everything else is a transaction of its own,
in the order of the calls. While the server commits, the event loop goes on, and what becomes ready
meanwhile is the next batch.

Failure rules. An operation that is refused fails its own caller only. Every transaction moves this
writer's row from batch n - 1 to n. So after a lost connection, the row says whether batch n is in
the journal, once the old transaction is over: reading it waits for that. And a statement that comes
too late, out of a network that had swallowed it, finds another number and does nothing. What is not
in the journal is sent again, until a deadline. A row behind what was acknowledged means that the
server has lost commits: then nothing more is written.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import Context

import asyncpg

from holdfast import crashpoint
from holdfast.journal.entries import AppendEntry
from holdfast.journal.files.witness import Witness
from holdfast.journal.journal import TASK_PREFIX
from holdfast.journal.postgres import schema
from holdfast.journal.postgres.address import ServerAddress
from holdfast.journal.postgres.appends import APPEND, AppendBatch
from holdfast.journal.postgres.connection import Connect, Link, Outage, ServerConnection
from holdfast.journal.postgres.errors import (
    NOT_NEXT,
    STALE,
    explain,
    gone,
    is_conflict,
    is_outage,
    state_of,
)
from holdfast.journal.postgres.witness import KEPT_DAYS, open_witness
from holdfast.records.errors import HoldfastError, JournalError, LostCommits

MAX_ROWS = 512
MAX_BYTES = 8 * 1024 * 1024
QUEUE_ROWS = 4 * MAX_ROWS
QUEUE_BYTES = 8 * MAX_BYTES
CLOSE_SECONDS = 60.0
_PAUSE = 0.02
_NEXT = "UPDATE holdfast.writers SET batch = $2, at = now() WHERE name = $1 AND batch = $2 - 1"
_log = logging.getLogger("holdfast.journal")

Function = Callable[[ServerConnection], Awaitable[object]]
Commit = Callable[[ServerConnection, int], Awaitable[None]]


class PendingWrite:
    """Something to commit, and who waits for it."""

    __slots__ = ("entries", "error", "function", "future", "repeatable", "result", "rows", "size")

    def __init__(
        self,
        *,
        entries: list[AppendEntry] | None = None,
        function: Function | None = None,
        repeatable: bool = False,
        size: int = 0,
    ):
        """`repeatable`: one statement that may run twice; it needs no transaction of ours."""
        self.entries = entries
        self.function = function
        self.repeatable = repeatable
        self.rows, self.size = 1, size
        if entries is not None:
            self.rows = sum([len(entry.rows) for entry in entries])
            self.size = sum([entry.size for entry in entries])
        self.future: asyncio.Future[object]
        self.result: object = None
        self.error: BaseException | None = None


class ServerWriter:
    """Owns the connection that writes. Started by the first use, stopped by `close`."""

    def __init__(self, address: ServerAddress, connect: Connect, outage: Outage):
        self._address = address
        self._link = Link(address, connect, self._ready, outage)
        self._witness: Witness | None = None
        self._begin_anew()
        self._lost: LostCommits | None = None
        self._queue: deque[PendingWrite] = deque()
        self._running: list[PendingWrite] = []
        self._rows = 0
        self._bytes = 0
        self._wake = asyncio.Event()
        self._waiters: list[asyncio.Future[None]] = []
        self._drains: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._queued = self._done = 0
        self._closing = False
        self._task: asyncio.Task[None] | None = None
        self.batches = 0

    def _begin_anew(self) -> None:
        """Under another name: what is still under way under the old one cannot be taken for what
        follows."""
        self._name = secrets.token_hex(8)
        self._acknowledged = 0
        """The number of the last batch that is known to be in the journal."""
        self._found = 0
        """What the journal had when the connection was made."""
        self._registered = False
        self._close_witness()

    def _close_witness(self) -> None:
        witness, self._witness = self._witness, None
        if witness is not None:
            witness.close()

    # --- the callers' side

    @property
    def has_room(self) -> bool:
        return self._rows < QUEUE_ROWS and self._bytes < QUEUE_BYTES

    async def room(self) -> None:
        """Back-pressure: returns when the queue has room."""
        while not self.has_room:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def enqueue(self, operation: PendingWrite) -> "asyncio.Future[object]":
        """Queues at once, in the order of the calls; the future ends when it is durable."""
        if self._closing:
            raise JournalError(f"journal {self._address.name} is closed")
        self.start()
        operation.future = asyncio.get_running_loop().create_future()
        self._queued += 1
        self._rows += operation.rows
        self._bytes += operation.size
        self._queue.append(operation)
        self._wake.set()
        return operation.future

    def start(self) -> None:
        """In the event loop that runs; one that ended has taken its task and connection along."""
        loop = asyncio.get_running_loop()
        if self._task is None or self._task.done() or self._task.get_loop() is not loop:
            self._link.drop()
            self._wake = asyncio.Event()
            self._forget_waiters()
            # In no context: who writes first is no owner of it.
            self._task = loop.create_task(self._work(), name=TASK_PREFIX, context=Context())

    def _forget_waiters(self) -> None:
        """Of a loop that has ended: nobody waits there any more."""
        self._queue.clear()
        self._waiters.clear()
        self._drains.clear()
        self._rows = self._bytes = 0
        if self._running:
            self._running = []
            self._begin_anew()
        self._done = self._queued

    async def drain(self) -> None:
        """Returns when everything queued so far is durable or refused."""
        if self._done == self._queued:
            return
        drained: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._drains.append((self._queued, drained))
        await drained

    async def close(self) -> None:
        """Finishes what is queued. It may be repeated."""
        self._closing = True
        self._wake.set()
        task = self._task
        if task is None or task.get_loop() is not asyncio.get_running_loop():
            return
        # Shielded: who is cancelled here cancels no write.
        done, _ = await asyncio.wait({task}, timeout=CLOSE_SECONDS)
        if not done and self._done < self._queued:
            raise JournalError(f"journal {self._address.name} did not finish its writes in time")
        task.cancel()

    # --- the task's side

    async def _work(self) -> None:
        try:
            while True:
                while not self._queue and not self._closing:
                    self._wake.clear()
                    await self._wake.wait()
                if not self._queue:
                    break
                self._running = self._gather()
                await self._commit(self._running)
                self._settle(self._running)
                self._running = []
            await self._retire()
        finally:
            self._link.drop()

    def _gather(self) -> list[PendingWrite]:
        """The next operation; of appends, all that are ready."""
        first = self._queue.popleft()
        batch, rows, size = [first], first.rows, first.size
        if first.entries is None:
            return batch
        while self._queue and rows < MAX_ROWS and size < MAX_BYTES:
            if self._queue[0].entries is None:
                break
            operation = self._queue.popleft()
            batch.append(operation)
            rows += operation.rows
            size += operation.size
        return batch

    def _settle(self, batch: list[PendingWrite]) -> None:
        for operation in batch:
            self._rows -= operation.rows
            self._bytes -= operation.size
            # A cancelled waiter has gone; its write is durable all the same.
            if operation.future.done():
                continue
            if operation.error is None:
                operation.future.set_result(operation.result)
            else:
                operation.future.set_exception(operation.error)
        self._done += len(batch)
        woken, self._waiters = self._waiters, []
        while self._drains and self._drains[0][0] <= self._done:
            woken.append(self._drains.popleft()[1])
        for waiter in woken:
            if not waiter.done():
                waiter.set_result(None)

    async def _commit(self, batch: list[PendingWrite]) -> None:
        try:
            if batch[0].function is not None:
                await self._call(batch[0], batch[0].function)
            else:
                await self._append(batch)
        except HoldfastError as error:
            _fail(batch, error)
        except Exception as error:  # A bug of ours must fail its callers, not hang them.
            self._link.drop()
            _fail(batch, explain(error, self._address) if _is_drivers(error) else error)

    async def _append(self, batch: list[PendingWrite]) -> None:
        left = batch
        while left:
            appends = AppendBatch([operation.entries or [] for operation in left])
            refused = appends.refused
            if not refused and not appends.is_empty:
                refused = await self._send(appends, sum([operation.rows for operation in left]))
            if not refused:
                return
            for number, error in refused.items():
                left[number].error = error
            left = [operation for operation in left if operation.error is None]

    async def _send(self, appends: AppendBatch, rows: int) -> dict[int, JournalError]:
        """Nothing, when it is durable; else those that were refused, and nothing was written."""
        arguments = appends.arguments()

        async def send(connection: ServerConnection, number: int) -> None:
            crashpoint.reach("journal.before_commit", rows)
            await connection.fetchval(APPEND, self._name, number, *arguments)
            crashpoint.reach("journal.after_commit", rows)

        try:
            await self._durably(send, rows)
        except asyncpg.PostgresError as error:
            if state_of(error) != STALE:
                raise
            return appends.fence(str(getattr(error, "detail", None) or ""))
        return {}

    async def _call(self, operation: PendingWrite, function: Function) -> None:
        if operation.repeatable:
            return await self._repeat(operation, function)

        async def call(connection: ServerConnection, number: int) -> None:
            await connection.execute("BEGIN")
            try:
                operation.result = await function(connection)
                if await connection.execute(_NEXT, self._name, number) != "UPDATE 1":
                    raise _NotNext
                crashpoint.reach("journal.before_commit")
            except BaseException as error:
                await _roll_back(connection, error)
                raise
            await connection.execute("COMMIT")
            crashpoint.reach("journal.after_commit")

        return await self._durably(call)

    async def _repeat(self, operation: PendingWrite, function: Function) -> None:
        async def run(connection: ServerConnection) -> None:
            operation.result = await function(connection)

        try:
            await self._insist(run)
        except _Unreachable as error:
            raise error.reason from None

    async def _durably(self, commit: Commit, rows: int = 1) -> None:
        """Returns when the next batch is in the journal, once, and this machine knows it."""
        number = self._acknowledged + 1

        async def attempt(connection: ServerConnection) -> None:
            if self._found < number:
                await commit(connection, number)

        try:
            await self._insist(attempt)
        except _Unreachable as error:
            self._begin_anew()
            raise error.reason from None
        self._acknowledged = number
        if self._witness is not None:
            self._witness.note(number)
        crashpoint.reach("journal.witnessed", rows)
        self.batches += 1

    async def _insist(self, attempt: Callable[[ServerConnection], Awaitable[object]]) -> None:
        """Tries it on one connection after the other, until the deadline of an outage."""
        loop = asyncio.get_running_loop()
        deadline: float | None = None
        while True:
            if self._lost is not None:
                raise self._lost
            try:
                await attempt(await self._connection())
                return
            except _DRIVERS as error:
                is_unknown = isinstance(error, _NotNext) or state_of(error) == NOT_NEXT
                if not is_unknown and not is_outage(error) and not is_conflict(error):
                    raise
                if not is_conflict(error):
                    # A new connection finds out what is in the journal.
                    self._link.drop()
                deadline = deadline or loop.time() + self._address.outage_seconds
                if loop.time() > deadline:
                    raise _Unreachable(gone(error, self._address)) from None
            await asyncio.sleep(_PAUSE)

    async def _connection(self) -> ServerConnection:
        try:
            return await self._link.get()
        except LostCommits as error:
            self._lost = error
            raise
        except JournalError as error:
            raise _Unreachable(error) from None

    async def _ready(self, connection: ServerConnection) -> None:
        """What this writer has committed is there; else nothing more is written."""
        await schema.prepare(connection, self._address, known={self._name: self._acknowledged})
        if not self._registered:
            await connection.execute(
                "INSERT INTO holdfast.writers VALUES ($1, 0, now()) ON CONFLICT DO NOTHING",
                self._name,
            )
            await connection.execute(
                "DELETE FROM holdfast.writers WHERE at < now() - $1 * interval '1 day'", KEPT_DAYS
            )
            self._witness = open_witness(await schema.identity_of(connection), self._name)
            self._registered = True
        # Waits for a transaction of ours that is still under way on a connection that was lost.
        found = await connection.fetchval(
            "SELECT batch FROM holdfast.writers WHERE name = $1 FOR UPDATE", self._name
        )
        self._found = -1 if found is None else int(found)

    async def _retire(self) -> None:
        """The writer's row stays: commands that come later hold it against this machine's notes."""
        self._close_witness()
        await self._link.close()


class _NotNext(Exception):
    """Another connection of this writer has committed the batch."""


class _Unreachable(Exception):
    """The server cannot be reached; what was under way may be in the journal or not."""

    def __init__(self, reason: JournalError):
        self.reason = reason


_DRIVERS = (
    _NotNext,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    EOFError,
)


async def _roll_back(connection: ServerConnection, error: BaseException) -> None:
    is_cancelled = not isinstance(error, Exception)
    if is_cancelled or is_outage(error) or connection.is_closed():
        return
    await connection.execute("ROLLBACK")


def _is_drivers(error: BaseException) -> bool:
    return isinstance(error, asyncpg.PostgresError | asyncpg.InterfaceError | OSError)


def _fail(batch: list[PendingWrite], error: BaseException) -> None:
    for operation in batch:
        if operation.error is None:
            operation.error = error
