"""The journal on PostgreSQL: any number of processes on any number of machines.

One connection writes (`committer`), another one reads, a third one listens. Each is made when it is
first needed, and again after it was lost: a server that restarts is an outage, in which everything
waits, and no failure. Waiters are woken by LISTEN/NOTIFY; as nothing depends on a notification,
they look again after a while in any case.
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

from holdfast.journal.changes import POLL_SECONDS, Changes
from holdfast.journal.postgres import schema
from holdfast.journal.postgres.address import ServerAddress, address_of, explain
from holdfast.journal.postgres.committer import PostgresCommitter
from holdfast.journal.postgres.connection import (
    STATEMENT_SECONDS,
    Connect,
    Link,
    Outage,
    ServerConnection,
    plain_connect,
)
from holdfast.journal.postgres.store import CHANNEL, PostgresStore
from holdfast.journal.sql import deletion, leases
from holdfast.journal.sql.sql_journal import SqlJournal
from holdfast.journal.sql.store import Store
from holdfast.journal.sql.writer import Writer
from holdfast.records.run import Run

COMPACT_SECONDS = 3600.0
_COMPACTED = ("records", "blobs", "cuts", "tasks", "trajectories", "task_groups", "deliveries")
_SIZE = """SELECT coalesce(sum(pg_total_relation_size(('holdfast.' || name)::regclass)), 0)::bigint
    FROM unnest(%s::text[]) AS t(name)"""
Result = TypeVar("Result")


class PostgresJournal(SqlJournal):
    """See `Journal` for what it promises. Use `open_journal`, or close it yourself."""

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
        """What a lost connection did not answer is asked again."""
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
        """How many bytes smaller the tables are. Each is locked while it is written anew."""
        await self._writable()
        await self._writer.drain()
        return await self.query(_give_space_back)

    async def close(self) -> None:
        """Finishes what is queued. It may be repeated."""
        if os.getpid() != self._process:
            return  # The connections are those of the process that forked this one.
        self._closed = True
        self._listener.stop()
        self._reader.give_up()
        await self._writer.close()
        with suppress(RuntimeError):  # It was closed before.
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
    """Hears what other processes say of runs that somebody here waits for, in the event loop that
    was last seen: a notification is a few bytes on a socket. Where the connection is lost, or a
    pooler is in between, nobody listens, and whoever waits looks again after a while."""

    def __init__(self, address: ServerAddress, threads: ThreadPoolExecutor, changes: Changes):
        self.interests: set[str] = set()
        """What is listened for: a run's number and "work" or "ready"."""
        self._address = address
        self._threads = threads
        self._changes = changes
        self._connection: ServerConnection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tried = 0.0
        self._stopped = False

    async def start(self, *, pooled: bool) -> None:
        """Also again, where the connection was lost."""
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
            return  # Whoever waits looks again after a while.
        if self._stopped:
            connection.close()
            return
        self._connection = connection
        loop.add_reader(connection.driver.fileno(), self._hear)
        # What was said before the loop heard it.
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
            with suppress(ValueError, OSError):  # Its socket is closed already.
                self._loop.remove_reader(connection.driver.fileno())
        connection.close()

    def stop(self) -> None:
        self._stopped = True
        self._forget()


def load_or_make_secret(where: str, name: str, *, size: int) -> bytes:
    """A secret that belongs to the journal: whoever may use that may use it, and machines that
    share a server share no folder. The first one to ask makes it. Blocks, also within an event
    loop."""
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
