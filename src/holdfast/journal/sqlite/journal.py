"""The journal on SQLite is one file for any number of processes on one machine.

The file uses WAL mode with `synchronous=FULL`, set explicitly because build defaults differ. One
thread writes with group commit. Reads use their own connection and never wait for the writer.
Another thread moves the WAL into the main file, off the writer's path.
"""

import asyncio
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from holdfast import crashpoint
from holdfast.journal.files.wal import log_of
from holdfast.journal.lease_clock import BootClock, JumpWatch, LeaseClock
from holdfast.journal.sql import deletion
from holdfast.journal.sql.journal import Journal
from holdfast.journal.sql.store import Store
from holdfast.journal.sql.writer import InlineWriter, Writer
from holdfast.journal.sqlite import schema
from holdfast.journal.sqlite.committer import BUSY_SECONDS, SqliteCommitter, commit_in_memory
from holdfast.journal.sqlite.losses import refuse_losses
from holdfast.journal.sqlite.store import SqliteStore
from holdfast.journal.types import MEMORY, Worker
from holdfast.records.errors import JournalError

CACHE_KIB = 8192
"""The size of the writer's cache, which is enough for a batch. A writer appends to logs and hardly
ever reads them, and each page of a cache that is not full costs a fault at its first use."""
Result = TypeVar("Result")
Connect = Callable[[str], sqlite3.Connection]


def plain_connect(uri: str) -> sqlite3.Connection:
    return sqlite3.connect(
        uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )


def connect_to_read(
    path: Path, connect: Connect = plain_connect, *, without_log: bool = False
) -> sqlite3.Connection:
    """Returns a connection for reading only, to a journal of this version."""
    mode = schema.WITHOUT_LOG if without_log else schema.mode_to_read(path)
    with schema.explained(path, reading=True):
        connection = connect(f"{path.absolute().as_uri()}?{mode}")
    try:
        schema.require(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def remove_empty_log(path: Path, connect: Connect = plain_connect) -> None:
    """Removes the empty log that reading made. Only SQLite can tell that no other process has it
    open, and removes it with the last connection that may write."""
    if log_of(path).exists() and not schema.log_size(path) and os.access(path, os.W_OK):
        uri = f"{path.absolute().as_uri()}?mode=rw"
        with suppress(sqlite3.Error), closing(connect(uri)) as connection:
            # In case a writer begins and dies in the meantime.
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()


class SqliteJournal(Journal):
    """A journal in a file. `Journal` describes its guarantees. Use `opened_journal`, or close the
    journal yourself."""

    def __init__(
        self,
        path: Path,
        *,
        read_only: bool = False,
        connect: Connect = plain_connect,
        lease_clock: LeaseClock | None = None,
    ):
        super().__init__(str(path), read_only=read_only)
        self.path = path
        self._lease_clock = lease_clock or BootClock()
        self._jumps = JumpWatch()
        # Absolute, so that a changed working folder does not mean another journal.
        self._file = path.absolute()
        self._raw_connect = connect
        self._reads = ThreadPoolExecutor(1, thread_name_prefix="holdfast-reads")
        self._reader: SqliteStore | None = None
        if not read_only:
            self._open_to_write()
        elif not path.exists():
            raise JournalError(f"there is no journal at {path}")
        self._committer = SqliteCommitter(
            path, connect=self._connect, keep=self._keep, wrap=self._wrap
        )
        self._writer = Writer(self.name, self._committer)

    def _open_to_write(self) -> None:
        """Opens the file for writing. Refuses a bad file here, before anything is written to it."""
        try:
            schema.create_if_missing(self._file, self._raw_connect)
        except (OSError, sqlite3.Error) as error:
            raise schema.not_creatable(error, self.path) from error
        schema.refuse_second_name(self.path)
        refuse_losses(self.path)
        self._connect().close()

    def _wrap(self, connection: sqlite3.Connection) -> SqliteStore:
        return SqliteStore(connection, self._lease_clock.read)

    def _connect(self) -> sqlite3.Connection:
        with schema.explained(self.path):
            connection = self._raw_connect(f"{self._file.as_uri()}?mode=rw")
        try:
            schema.prepare(connection, self.path)
            with schema.explained(self.path):
                connection.execute("PRAGMA synchronous=FULL")
                self._require_log(connection)
                connection.execute("PRAGMA wal_autocheckpoint=0")
                connection.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _keep(self) -> sqlite3.Connection:
        """Opens the connection that stays open and does nothing (see `committer`)."""
        connection = self._raw_connect(f"{self._file.as_uri()}?mode=rw")
        try:
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        except BaseException:
            connection.close()
            raise
        return connection

    def _require_log(self, connection: sqlite3.Connection) -> None:
        """Turns the write-ahead log on. A copy that SQLite's own tools made of a journal has
        none."""
        (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
        if mode != "wal":
            raise JournalError(f"journal {self.path} cannot have a write-ahead log where it is")

    async def _read_with(self, function: Callable[[Store], Result]) -> Result:
        def with_connection() -> Result:
            if self._reader is None:
                if self._read_only:
                    schema.refuse_second_name(self.path)
                    refuse_losses(self.path)
                self._reader = self._wrap(connect_to_read(self._file, self._raw_connect))
            try:
                return function(self._reader)
            except sqlite3.Error as error:
                self._close_reader()
                raise schema.explain(error, self.path) from error

        return await asyncio.get_running_loop().run_in_executor(self._reads, with_connection)

    async def heartbeat(self, worker: Worker) -> None:
        self._jumps.look(self._lease_clock.read())
        await super().heartbeat(worker)

    async def compact(self) -> int:
        await self._writable()
        await self._writer.drain()
        with schema.explained(self.path):
            return await asyncio.to_thread(self._give_space_back)

    def _give_space_back(self) -> int:
        """Compacts the file. Returns by how many bytes the file and its log became shorter.

        SQLite rewrites the file through its log, so this needs as much room again. A kill at any
        moment leaves the content unchanged.
        """
        store = self._wrap(self._connect())
        with closing(store.connection) as connection:
            deletion.refuse_if_any_is_live(store)
            before = self._size()
            if connection.execute("PRAGMA freelist_count").fetchone()[0]:
                crashpoint.reach("journal.compacting")
                connection.execute("VACUUM")
                crashpoint.reach("journal.compacting")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            crashpoint.reach("journal.compacting")
            self._committer.sync()
            return max(0, before - self._size())

    def _size(self) -> int:
        return self._file.stat().st_size + schema.log_size(self._file)

    async def close(self) -> None:
        """Finishes the queued operations and closes the journal. The writer closes last, because it
        moves the log into the file."""
        # Repeats all steps if an earlier call was cancelled, which is harmless.
        await self._writer.drain()
        if not self._closed:
            self._closed = True
            self._reads.submit(self._close_reader)
        await asyncio.to_thread(self._reads.shutdown)
        await asyncio.to_thread(self._committer.checkpointer.stop)
        await self._writer.close()

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.connection.close()
            if self._read_only:
                remove_empty_log(self._file, self._raw_connect)


class MemoryJournal(Journal):
    """A journal in memory, for tests, notebooks and runs that may be lost. The content stays after
    `close`, and is lost with the object."""

    def __init__(self) -> None:
        super().__init__(MEMORY, read_only=False)
        connection = plain_connect("file::memory:")
        schema.make(connection, MEMORY)
        self._store = SqliteStore(connection, BootClock().read)
        self._writer = InlineWriter(partial(commit_in_memory, self._store))

    async def _read_with(self, function: Callable[[Store], Result]) -> Result:
        return function(self._store)

    async def compact(self) -> int:
        deletion.refuse_if_any_is_live(self._store)
        return 0

    async def close(self) -> None: ...
