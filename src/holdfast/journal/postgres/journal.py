"""The journal on PostgreSQL: any number of processes on any number of machines.

One connection writes (`committer`), another one reads, a third one listens. Each is made when it is
first needed, and again after it was lost: a server that restarts is an outage, in which everything
waits, and no failure. Waiters are woken by LISTEN/NOTIFY; as nothing depends on a notification,
they look again after a while in any case.
"""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

import psycopg

from holdfast.journal.postgres import schema
from holdfast.journal.postgres.address import ServerAddress, address_of
from holdfast.journal.postgres.committer import PostgresCommitter
from holdfast.journal.postgres.connection import (
    STATEMENT_SECONDS,
    Connect,
    Link,
    Outage,
    ServerConnection,
    plain_connect,
)
from holdfast.journal.postgres.errors import explain
from holdfast.journal.postgres.listener import ChangeListener
from holdfast.journal.postgres.store import PostgresStore
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
