"""The journal on PostgreSQL serves any number of processes on any number of machines.

One connection writes, another reads, and a third listens. Each is opened at its first use and again
after a loss. If a server restarts, all operations wait; this is an outage, not a failure.

Every transaction moves this writer's row from batch n - 1 to n. After a lost connection, the row
therefore says whether the journal has batch n. Reading the row waits for the end of the old
transaction. If the network delays an old statement, the statement finds another number and does
nothing. A batch that the journal does not have is sent again, until a deadline. If the row is
behind the acknowledged number, the server has lost commits, and the writer stops writing.

All waiting appends are one statement, which is one transaction and one round trip, unless an append
settles its trajectory. Every other operation is its own transaction, in the order of the calls, so
that no operation holds a lock for another.

LISTEN/NOTIFY wakes waiters. They do not depend on it, because they also look again after a while.
"""

import asyncio
import os
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

import psycopg

from holdfast import crashpoint
from holdfast.journal.changes import POLL_SECONDS, Changes
from holdfast.journal.files.witness import Witness
from holdfast.journal.postgres import schema
from holdfast.journal.postgres.address import ServerAddress, address_of
from holdfast.journal.postgres.connection import (
    STATEMENT_SECONDS,
    Connect,
    Link,
    Outage,
    ServerConnection,
    explain,
    is_outage,
    plain_connect,
)
from holdfast.journal.postgres.store import CHANNEL, NOW, PostgresStore
from holdfast.journal.sql import deletion, leases
from holdfast.journal.sql.journal import Journal
from holdfast.journal.sql.store import Row, Store
from holdfast.journal.sql.writer import Append, Operation, WriteCall, Writer, write_appends
from holdfast.records.errors import HoldfastError, LostCommits
from holdfast.records.run import Run

COMPACT_SECONDS = 3600.0
_COMPACTED = ("records", "blobs", "cuts", "tasks", "trajectories", "task_groups", "deliveries")
_SIZE = """SELECT coalesce(sum(pg_total_relation_size(('holdfast.' || name)::regclass)), 0)::bigint
    FROM unnest(%s::text[]) AS t(name)"""
Result = TypeVar("Result")
_NEXT = f"""{{begin}}; UPDATE holdfast.writers SET batch = {{number}}, at = now()
    WHERE name = '{{name}}' AND batch = {{number}} - 1 RETURNING {NOW}"""  # noqa: S608 - ours
Wake = Callable[[], None]
Attempt = Callable[[PostgresStore], None]


class PostgresCommitter:
    """A committer for a server (see `Committer`). It commits one batch as one transaction, with an
    outcome that is known."""

    mixes_calls = False
    seconds = 1.0  # Long enough for all rows to share a commit.

    def __init__(self, address: ServerAddress, connect: Connect, outage: Outage):
        self._address = address
        self.link = Link(address, connect, self._ready, outage)
        self._witness: Witness | None = None
        self._lost: LostCommits | None = None
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Continues under another writer name, so that no late statement under the old name can be
        mistaken for a new one."""
        self._name = secrets.token_hex(8)
        self._acknowledged = 0
        """The number of the last batch that is known to be in the journal."""
        self._there = 0
        """The number of the last batch that was in the journal when the connection was opened."""
        self._registered = False
        self._close_witness()

    def _close_witness(self) -> None:
        witness, self._witness = self._witness, None
        if witness is not None:
            witness.close()

    def commit(self, batch: list[Operation], wake: Wake) -> None:
        wake()
        try:
            if isinstance(batch[0], WriteCall):
                self._call(batch[0])
            else:
                self._append([each for each in batch if isinstance(each, Append)])
        except HoldfastError as error:
            _fail(batch, error)
        except Exception as error:
            self.link.drop()
            if not isinstance(error, psycopg.Error | OSError):
                raise
            _fail(batch, explain(error, self._address))

    def tidy(self, wake: Wake) -> None: ...

    def give_up(self) -> None:
        self.link.give_up()

    def close(self) -> None:
        """Closes the connection. The writer's row stays, because later commands compare it with
        this machine's notes."""
        self._close_witness()
        self.link.drop()

    # --- one batch

    def _append(self, batch: list[Append]) -> None:
        rows = sum([append.rows for append in batch])
        settles = any(entry.settled for append in batch for entry in append.entries)

        def write(store: PostgresStore) -> None:
            for append in batch:
                append.error = None
            write_appends(store, batch)

        def write_alone(store: PostgresStore) -> None:
            crashpoint.reach("journal.before_commit", rows)
            store.batch = (self._name, self._acknowledged + 1)
            write(store)
            crashpoint.reach("journal.after_commit", rows)

        self._durably(self._transaction(write, rows) if settles else write_alone, rows)

    def _call(self, call: WriteCall) -> None:
        def run(store: PostgresStore) -> None:
            call.result = call.function(store)

        self._durably(self._transaction(run, 1), 1)

    def _transaction(self, run: Attempt, rows: int) -> Attempt:
        """Returns an attempt that runs `run` in a transaction. The round trip that begins the
        transaction also moves the writer's row, so that a reader of the outcome waits for the end
        of the transaction."""

        def attempt(store: PostgresStore) -> None:
            connection = store.connection
            try:
                store.moment = self._begin_next(connection)
                run(store)
                crashpoint.reach("journal.before_commit", rows)
                store.commit()
            except Exception as error:
                if not is_outage(error):
                    connection.roll_back()
                raise
            crashpoint.reach("journal.after_commit", rows)

        return attempt

    def _begin_next(self, connection: ServerConnection) -> Row:
        """Begins the next transaction, and returns its time."""
        query = _NEXT.format(begin=connection.begin, name=self._name, number=self._acknowledged + 1)
        *_, moments = connection.results(query)
        if not moments:
            raise psycopg.OperationalError("another connection has committed the batch")
        return moments[0]

    def _durably(self, attempt: Attempt, rows: int) -> None:
        """Repeats the attempt until the journal has the next batch, exactly once, and this machine
        has noted it."""
        if self._lost is not None:
            raise self._lost
        number = self._acknowledged + 1

        def unless_there(connection: ServerConnection) -> None:
            if self._there < number:
                attempt(PostgresStore(connection))

        try:
            self.link.insist(unless_there)
        except HoldfastError as error:
            if isinstance(error, LostCommits):
                self._lost = error
            elif not self.link.is_open:
                # The transaction under way may or may not be in the journal.
                self._begin_anew()
            raise
        self._acknowledged = number
        if self._witness is not None:
            self._witness.note(number)
        crashpoint.reach("journal.witnessed", rows)

    def _ready(self, connection: ServerConnection) -> None:
        """Checks that the journal has everything this writer has committed. If it does not, raises
        `LostCommits`, and nothing more is written."""
        schema.prepare(connection, self._address, known={self._name: self._acknowledged})
        if not self._registered:
            connection.execute(
                "INSERT INTO holdfast.writers VALUES (%s, 0, now()) ON CONFLICT DO NOTHING",
                (self._name,),
            )
            connection.execute(
                "DELETE FROM holdfast.writers WHERE at < now() - %s * interval '1 day'",
                (schema.KEPT_DAYS,),
            )
            self._registered = True
            self._witness = schema.open_witness(schema.identity_of(connection), self._name)
        # Waits for an own transaction that is still under way on a lost connection.
        row = connection.execute(
            "SELECT batch FROM holdfast.writers WHERE name = %s FOR UPDATE", (self._name,)
        ).fetchone()
        self._there = -1 if row is None else int(row[0])


def _fail(batch: list[Operation], error: BaseException) -> None:
    for operation in batch:
        if operation.error is None:
            operation.error = error


class PostgresJournal(Journal):
    """A journal on a server. `Journal` describes its guarantees. Use `opened_journal`, or close the
    journal yourself."""

    def __init__(
        self,
        where: str | ServerAddress,
        *,
        read_only: bool = False,
        connect: Connect = plain_connect,
    ):
        self.address = where if isinstance(where, ServerAddress) else address_of(where)
        super().__init__(self.address.name, read_only=read_only)
        self._process = os.getpid()
        outage = Outage()
        self._committer = PostgresCommitter(self.address, connect, outage)
        self._writer = Writer(self.name, self._committer)
        self._reads = ThreadPoolExecutor(1, thread_name_prefix="holdfast-reads")
        self._reader = Link(self.address, connect, self._ready_to_read, outage, read_only=read_only)
        self._listener = ChangeListener(self.address, self._reads, self.changes)

    # --- reading

    async def _read_with(self, function: Callable[[Store], Result]) -> Result:
        """Runs a query, and repeats it if a lost connection did not answer."""
        loop = asyncio.get_running_loop()
        result = await loop.run_in_executor(self._reads, self._read_now, function)
        await self._listener.start(pooled=self._reader.pooled)
        return result

    def _read_now(self, function: Callable[[Store], Result]) -> Result:
        try:
            return self._reader.insist(lambda connection: function(PostgresStore(connection)))
        except (psycopg.Error, OSError) as error:
            raise explain(error, self.address) from error

    def _ready_to_read(self, connection: ServerConnection) -> None:
        if self._read_only:
            schema.require(connection, self.address)
            schema.refuse_losses(connection, self.address)
        else:
            schema.prepare(connection, self.address)

    async def _shorten_leases(self, run: Run) -> None:
        await self.transact(leases.shorten, run.id)

    async def _wake_for(self, run: Run, what: str) -> None:
        self._listener.interests.add(f"{run.id} {what}")
        await self.query(lambda store: None)

    # --- space

    async def compact(self) -> int:
        """Compacts the tables, and returns by how many bytes they became smaller. Each table is
        locked while it is rewritten."""
        await self._writable()
        await self._writer.drain()
        return await self.query(_give_space_back)

    async def close(self) -> None:
        """Finishes the queued operations and closes the journal. The call may be repeated."""
        if os.getpid() != self._process:
            return  # The connections belong to the process that forked this one.
        self._closed = True
        self._listener.stop()
        self._reader.give_up()
        await self._writer.close()
        with suppress(RuntimeError):  # The executor was closed before.
            self._reads.submit(self._reader.drop)
        await asyncio.to_thread(self._reads.shutdown)


def _give_space_back(store: Store) -> int:
    assert isinstance(store, PostgresStore), "made by the journal"
    deletion.refuse_if_any_is_live(store)
    connection = store.connection
    before = _size(connection)
    connection.limit_statements(COMPACT_SECONDS)
    try:
        for table in _COMPACTED:
            connection.execute(f"VACUUM FULL holdfast.{table}")
    finally:
        connection.limit_statements(STATEMENT_SECONDS)
    return max(0, before - _size(connection))


def _size(connection: ServerConnection) -> int:
    row = connection.execute(_SIZE, (list(_COMPACTED),)).fetchone()
    return int(row[0]) if row else 0


class ChangeListener:
    """Listens to other processes' notifications about runs for which callers in this process wait.
    It uses the event loop that was last seen. After a lost connection, or behind a pooler, it does
    not listen, and waiters look again after a while."""

    def __init__(self, address: ServerAddress, threads: ThreadPoolExecutor, changes: Changes):
        self.interests: set[str] = set()
        """The messages that it listens for: a run's number and "work" or "ready"."""
        self._address = address
        self._threads = threads
        self._changes = changes
        self._connection: ServerConnection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tried = 0.0
        self._stopped = False

    async def start(self, *, pooled: bool) -> None:
        """Starts to listen, or starts again after the connection was lost."""
        loop = asyncio.get_running_loop()
        is_there = self._connection is not None and self._loop is loop
        if pooled or self._stopped or is_there or not self.interests:
            return
        if self._loop is loop and loop.time() < self._tried + POLL_SECONDS:
            return
        self._forget()
        self._loop, self._tried = loop, loop.time()
        try:
            connection = await loop.run_in_executor(self._threads, self._listen)
        except (psycopg.Error, OSError):
            return  # Waiting code looks again after a while.
        if self._stopped:
            connection.close()
            return
        self._connection = connection
        loop.add_reader(connection.driver.fileno(), self._hear)
        # Covers changes from before the loop listened.
        self._changes.notify()

    def _listen(self) -> ServerConnection:
        connection = plain_connect(self._address)
        try:
            connection.execute(f"LISTEN {CHANNEL}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _hear(self) -> None:
        assert self._connection is not None, "the loop hears nothing after it"
        driver = self._connection.driver.pgconn
        try:
            driver.consume_input()
        except psycopg.Error:
            self._forget()
            return
        while (notification := driver.notifies()) is not None:
            if notification.extra.decode() in self.interests:
                self._changes.notify()

    def _forget(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._loop is not None and not self._loop.is_closed():
            with suppress(ValueError, OSError):  # The socket is closed already.
                self._loop.remove_reader(connection.driver.fileno())
        connection.close()

    def stop(self) -> None:
        self._stopped = True
        self._forget()


def load_or_make_secret(where: str, name: str, *, size: int) -> bytes:
    """Returns a secret of the journal, and creates it at the first call. Everyone who may use the
    journal may use the secret. The server stores it, because machines that share a server share no
    folder. The call blocks, even within an event loop."""
    address = address_of(where)
    link = Link(address, plain_connect, partial(schema.prepare, address=address))
    try:
        connection = link.get()
        connection.execute(
            "INSERT INTO holdfast.meta VALUES (%s, %s) ON CONFLICT DO NOTHING",
            (name, secrets.token_hex(size)),
        )
        row = connection.execute(
            "SELECT value FROM holdfast.meta WHERE name = %s", (name,)
        ).fetchone()
        assert row is not None, "it was just written"
        return bytes.fromhex(row[0])
    finally:
        link.drop()
