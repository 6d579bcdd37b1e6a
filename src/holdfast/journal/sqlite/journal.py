"""The journal on SQLite: one file, any number of processes on one machine.

WAL mode with `synchronous=FULL`, set explicitly because build defaults differ. One writer thread
with group commit; reads go through connections of their own and never wait for the writer. The
WAL is moved into the main file by a thread of its own, off the writer's path.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from holdfast.journal.changes import POLL_SECONDS, Changes, look_until
from holdfast.journal.journal import (
    Batch,
    Claim,
    ClosedByBlock,
    Consumer,
    Cut,
    Deletion,
    Entries,
    Lease,
    LedgerEntry,
    RunProgress,
    RunRow,
    TrajectoryRow,
    Worker,
    WorkerIdentity,
    digest_of,
)
from holdfast.journal.lease_clock import BootClock, Instant, JumpWatch, LeaseClock
from holdfast.journal.rules import (
    check_batch,
    check_consumer,
    check_reason,
    check_step,
    check_version,
)
from holdfast.journal.sqlite import deletion, delivery, leases, runs, schema, writer
from holdfast.journal.sqlite.appends import Appender, append_of, append_of_all
from holdfast.journal.sqlite.checkpoint import Checkpointer
from holdfast.journal.sqlite.commits import Commits
from holdfast.journal.sqlite.creation import create_if_missing
from holdfast.journal.sqlite.cut import cut_to_last_good, decode_rows, last_records, reopen_failed
from holdfast.journal.sqlite.handle import Handle
from holdfast.journal.sqlite.losses import refuse_losses
from holdfast.journal.sqlite.names import refuse_second_name
from holdfast.journal.sqlite.schema import explain, not_creatable, prepare, require
from holdfast.journal.sqlite.writer import WriteCall, Writer
from holdfast.records.errors import JournalCorrupt, JournalError
from holdfast.records.run import RecordedCommand, Run, RunSpec
from holdfast.records.samples.version import WeightVersion
from holdfast.records.step import Record
from holdfast.records.task import Task
from holdfast.records.trajectory import Status

BUSY_SECONDS = writer.BUSY_SECONDS
CACHE_KIB = 8192
"""Enough for a batch. Logs are written at their end and hardly ever read by a writer, and every
page of a cache that is not yet full costs a fault when it is first touched."""
READ_AHEAD = 16
"""Logs that are read at once: a hop to another thread costs as much as reading a short one."""
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Connect = Callable[[str], sqlite3.Connection]


def plain_connect(uri: str) -> sqlite3.Connection:
    return sqlite3.connect(
        uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )


def connect_to_read(
    path: Path, connect: Connect = plain_connect, *, without_log: bool = False
) -> sqlite3.Connection:
    """A connection that cannot write, to a journal of this version."""
    mode = schema.WITHOUT_LOG if without_log else schema.mode_to_read(path)
    try:
        connection = connect(f"{path.absolute().as_uri()}?{mode}")
    except sqlite3.Error as error:
        raise explain(error, path, reading=True) from error
    try:
        require(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


class SqliteJournal(ClosedByBlock):
    """See `Journal` for what it promises. Use `open_journal`, or close it yourself."""

    def __init__(
        self,
        path: Path,
        *,
        read_only: bool = False,
        connect: Connect = plain_connect,
        lease_clock: LeaseClock | None = None,
    ):
        self.path = path
        self.changes = Changes()
        self._lease_clock = lease_clock or BootClock()
        self._jumps = JumpWatch()
        # A later change of the working directory does not mean another journal.
        self._file = path.absolute()
        self._read_only = read_only
        self._closed = False
        self._raw_connect = connect
        self._cursors: dict[int, int] = {}
        self._reads = ThreadPoolExecutor(1, thread_name_prefix="holdfast-reads")
        self._reader: sqlite3.Connection | None = None
        if not read_only:
            self._open_to_write()
        elif not path.exists():
            raise JournalError(f"there is no journal at {path}")
        self._commits = Commits(self._file)
        self._checkpointer = Checkpointer(self._file.parent, self._connect, self._commits.sync)
        handle = Handle(self._file, self._connect, self._keep)
        self._writer = Writer(path, handle, Appender().run_batch, self._checkpointer, self._commits)

    def _open_to_write(self) -> None:
        """A bad file is refused here, not in some later append, and before anything is written."""
        try:
            create_if_missing(self._file, self._raw_connect)
        except (OSError, sqlite3.Error) as error:
            raise not_creatable(error, self.path) from error
        refuse_second_name(self.path)
        refuse_losses(self.path)
        self._connect().close()

    def _connect(self) -> sqlite3.Connection:
        try:
            connection = self._raw_connect(f"{self._file.as_uri()}?mode=rw")
        except sqlite3.Error as error:
            raise explain(error, self.path) from error
        try:
            prepare(connection, self.path)
            connection.execute("PRAGMA synchronous=FULL")
            self._require_log(connection)
            connection.execute("PRAGMA wal_autocheckpoint=0")
            connection.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
        except sqlite3.Error as error:
            connection.close()
            raise explain(error, self.path) from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _keep(self) -> sqlite3.Connection:
        """A connection that is there, and does nothing: see `handle`."""
        connection = self._raw_connect(f"{self._file.as_uri()}?mode=rw")
        try:
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        except BaseException:
            connection.close()
            raise
        return connection

    def _require_log(self, connection: sqlite3.Connection) -> None:
        """A copy that SQLite's own tools made of a journal has none."""
        (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
        if mode != "wal":
            raise JournalError(f"journal {self.path} cannot have a write-ahead log where it is")

    async def _write(
        self,
        function: Callable[Concatenate[sqlite3.Connection, Parameters], Result],
        *arguments: Parameters.args,
        **named: Parameters.kwargs,
    ) -> Result:
        return await self._call(lambda connection: function(connection, *arguments, **named))

    async def _write_now(
        self,
        function: Callable[Concatenate[sqlite3.Connection, Instant, Parameters], Result],
        *arguments: Parameters.args,
        **named: Parameters.kwargs,
    ) -> Result:
        """With the time at which the writer comes to it."""
        return await self._call(
            lambda connection: function(connection, self._lease_clock.read(), *arguments, **named)
        )

    async def _call(
        self, function: Callable[[sqlite3.Connection], Result], *, size: int = 0
    ) -> Result:
        await self._writable()
        result: Result = await self._writer.enqueue(WriteCall(function, size))  # type: ignore[assignment]
        return result

    async def _writable(self) -> None:
        if self._read_only:
            raise JournalError(f"journal {self.path} is open for reading only")
        if not self._writer.has_room:
            await self._writer.room()

    async def _read(
        self,
        function: Callable[Concatenate[sqlite3.Connection, Parameters], Result],
        *arguments: Parameters.args,
        **named: Parameters.kwargs,
    ) -> Result:
        def with_connection() -> Result:
            if self._reader is None:
                if self._read_only:
                    refuse_second_name(self.path)
                    refuse_losses(self.path)
                self._reader = connect_to_read(self._file, self._raw_connect)
            try:
                return function(self._reader, *arguments, **named)
            except sqlite3.Error as error:
                self._close_reader()
                raise explain(error, self.path) from error

        if self._closed:
            raise JournalError(f"journal {self.path} is closed")
        return await asyncio.get_running_loop().run_in_executor(self._reads, with_connection)

    # --- for what is no part of the interface, see `copying`

    async def transact(
        self,
        function: Callable[Concatenate[sqlite3.Connection, Parameters], Result],
        *arguments: Parameters.args,
        **named: Parameters.kwargs,
    ) -> Result:
        """Runs it in a transaction of the writer's."""
        return await self._write(function, *arguments, **named)

    async def query(
        self,
        function: Callable[Concatenate[sqlite3.Connection, Parameters], Result],
        *arguments: Parameters.args,
        **named: Parameters.kwargs,
    ) -> Result:
        """Runs it on a connection that reads."""
        return await self._read(function, *arguments, **named)

    # --- runs

    async def create_run(self, spec: RunSpec, tasks: Sequence[Task], *, sealed: bool = True) -> Run:
        return await self._write(runs.create, spec, tasks, sealed=sealed)

    async def find_run(self, name: str) -> Run | None:
        return await self._read(runs.find, name)

    async def amend_run(
        self, run: Run, spec: RunSpec, tasks: Sequence[Task], *, differences: Sequence[str]
    ) -> Run:
        return await self._write(runs.amend, run, spec, tasks, differences)

    async def annotate_run(
        self,
        run: Run,
        *,
        tags: Sequence[str] | None = None,
        command: RecordedCommand | None = None,
        training: str | None = None,
    ) -> Run:
        return await self._write(runs.annotate, run, tags, command, training)

    async def rename_run(self, run: Run, name: str) -> Run:
        def rename(connection: sqlite3.Connection, now: Instant) -> Run:
            deletion.refuse_if_held(connection, now, run)
            return runs.rename(connection, run, name)

        return await self._write_now(rename)

    async def delete_run(self, run: Run) -> Deletion:
        return await self._write_now(deletion.delete, run)

    async def compact(self) -> int:
        await self._writable()
        await self._writer.drain()
        try:
            return await asyncio.to_thread(
                deletion.give_space_back,
                self._connect,
                self._lease_clock.read(),
                self._file,
                copied=self._commits.sync,
            )
        except sqlite3.Error as error:
            raise explain(error, self.path) from error

    async def admit(self, run: Run, tasks: Sequence[Task]) -> int:
        admitted = await self._write(runs.admit, run, tasks)
        self.changes.notify()
        return admitted

    async def seal(self, run: Run) -> None:
        await self._write(runs.seal, run)
        self.changes.notify()

    async def unseal(self, run: Run) -> None:
        await self._write(runs.unseal, run)
        self.changes.notify()

    async def progress(self, run: Run) -> RunProgress:
        return await self._read(runs.progress, run)

    async def runs(self) -> list[RunRow]:
        return await self._read(runs.listing)

    async def tasks(self, run: Run, *, ordinals: Sequence[int] | None = None) -> list[Task]:
        if ordinals is None:
            return await self._read(runs.tasks, run)
        return await self._read(runs.some_tasks, run, ordinals)

    async def trajectories(
        self, run: Run, *, ordinals: Collection[int] | None = None
    ) -> list[TrajectoryRow]:
        if ordinals is None:
            return await self._read(runs.trajectories, run)
        return await self._read(runs.some_trajectories, run, list(ordinals))

    # --- workers and leases

    async def join(
        self, run: Run, identity: WorkerIdentity, *, lease_seconds: float, share: bool
    ) -> Worker:
        return await self._write_now(
            leases.join, run, identity, lease_seconds=lease_seconds, share=share
        )

    async def heartbeat(self, worker: Worker) -> None:
        self._jumps.look(self._lease_clock.read())
        await self._write_now(leases.heartbeat, worker)

    async def leave(self, worker: Worker) -> None:
        await self._write(leases.leave, worker)
        self.changes.notify()

    async def claim(self, worker: Worker, *, groups: int) -> list[Claim]:
        # Claims go through the tasks in order; only when the end is reached is the beginning
        # looked at again, for groups that others gave back. So a claim costs the same however
        # many groups are being worked on.
        after = self._cursors.get(worker.id, -1)
        claims = await self._write_now(leases.claim, worker, groups=groups, after=after)
        if not claims and after >= 0:
            claims = await self._write_now(leases.claim, worker, groups=groups, after=-1)
        if claims:
            self._cursors[worker.id] = claims[-1].ordinal
        return claims

    # --- the log

    async def append(
        self,
        lease: Lease,
        records: Sequence[Record],
        *,
        status: Status | None = None,
        settled: bool | None = None,
    ) -> None:
        # Not by `append_together`: one coroutine less on the hottest path that there is.
        if self._read_only or not self._writer.has_room:
            await self._writable()
        operation = append_of(lease, records, status, settled)
        try:
            await self._writer.enqueue(operation)
        except JournalError as error:
            lease.broken = error
            raise
        _note(lease, status, settled)
        if settled:
            self.changes.notify()

    async def append_together(self, entries: Entries, *, settled: bool | None = None) -> None:
        if self._read_only or not self._writer.has_room:
            await self._writable()
        operation = append_of_all(entries, settled)
        try:
            await self._writer.enqueue(operation)
        except JournalError as error:
            for lease, _, _ in entries:
                lease.broken = error
            raise
        for lease, _, status in entries:
            _note(lease, status, settled)
        if settled:
            self.changes.notify()

    async def history(self, trajectory: int) -> list[Record]:
        await self._writer.drain()
        return await self._read(decode_rows, trajectory)

    async def last_records(self, run: Run) -> dict[int, Record]:
        await self._writer.drain()
        return await self._read(last_records, run)

    async def histories(self, run: Run) -> AsyncIterator[tuple[TrajectoryRow, list[Record]]]:
        await self._writer.drain()
        rows = await self.trajectories(run)
        for at in range(0, len(rows), READ_AHEAD):
            some = rows[at : at + READ_AHEAD]
            for row, found in zip(some, await self._logs(some), strict=True):
                if isinstance(found, JournalCorrupt):
                    raise JournalCorrupt(f"{row.key} is corrupt: {found}") from found
                yield row, found

    async def _logs(self, rows: list[TrajectoryRow]) -> "list[list[Record] | JournalCorrupt]":
        def each(connection: sqlite3.Connection) -> "list[list[Record] | JournalCorrupt]":
            return [_log(connection, row.id) for row in rows]

        return await self._read(each)

    async def cut(self, lease: Lease) -> Cut | None:
        cut = await self._write(cut_to_last_good, lease)
        if cut is not None:
            lease.next_seq, lease.status = cut.seq, cut.status
        return cut

    async def reopen(self, run: Run, *, reason: str) -> int:
        return await self._write(reopen_failed, run, reason)

    async def rescore(self, run: Run, trajectories: Collection[int]) -> int:
        return await self._write(runs.rescore, run, trajectories)

    # --- blobs

    async def put_blob(self, body: bytes) -> bytes:
        digest = digest_of(body)
        await self._call(
            lambda connection: (
                connection.execute(
                    "INSERT OR IGNORE INTO blobs VALUES (?, ?)", (digest, body)
                ).rowcount
            ),
            size=len(body),
        )
        return digest

    async def get_blob(self, digest: bytes) -> bytes:
        row = await self._read(
            lambda connection: connection.execute(
                "SELECT body FROM blobs WHERE digest = ?", (digest,)
            ).fetchone()
        )
        if row is None:
            raise JournalCorrupt(f"there is no blob {digest.hex()[:12]}")
        body = bytes(row[0])
        if digest_of(body) != digest:
            raise JournalCorrupt(f"blob {digest.hex()[:12]} does not match its digest")
        return body

    # --- weight versions

    async def publish_version(
        self,
        run: Run,
        name: str,
        *,
        step: int,
        digest: str,
        consumer: Consumer | None = None,
    ) -> int:
        check_version(name, step, digest)

        def publish(connection: sqlite3.Connection) -> int:
            if consumer is not None:
                delivery.renew(connection, self._lease_clock.read(), consumer)
            return runs.publish_version(connection, run, name, step=step, digest=digest)

        return await self._write(publish)

    async def versions(self, run: Run, *, name: str | None = None) -> list[WeightVersion]:
        return await self._read(runs.versions, run, name)

    # --- delivery

    async def subscribe(
        self, run: Run, name: str, identity: WorkerIdentity, *, lease_seconds: float
    ) -> Consumer:
        check_consumer(name, lease_seconds)
        return await self._write_now(
            delivery.subscribe, run, name, identity, lease_seconds=lease_seconds
        )

    async def renew(self, consumer: Consumer) -> None:
        self._jumps.look(self._lease_clock.read())
        await self._write_now(delivery.renew, consumer)

    async def unsubscribe(self, consumer: Consumer) -> None:
        await self._write(delivery.unsubscribe, consumer)

    async def next_batch(
        self,
        consumer: Consumer,
        step: int,
        *,
        groups: int,
        wait: float = 0.0,
        before: int | None = None,
    ) -> Batch:
        check_batch(groups, step)
        return await self._deliver(consumer, step, groups, wait=wait, before=before)

    async def take(self, consumer: Consumer, *, groups: int, wait: float = 0.0) -> Batch:
        check_batch(groups)
        return await self._deliver(consumer, None, groups, wait=wait)

    async def _deliver(
        self,
        consumer: Consumer,
        step: int | None,
        groups: int,
        *,
        wait: float,
        before: int | None = None,
    ) -> Batch:
        """Waiting only reads, but for the renewal of the lease."""
        poll = min(POLL_SECONDS, consumer.lease_seconds / 3)
        early, renewed = None, 0.0

        async def look() -> Batch:
            nonlocal early, renewed
            now = asyncio.get_running_loop().time()
            if (
                early is not None
                and now < renewed + poll
                and not await self._read(delivery.may_take, consumer, step, groups, before)
            ):
                return early
            taken = await self._write_now(delivery.take, consumer, step, groups, before)
            early, renewed = taken, now
            return early

        return await look_until(
            look,
            lambda batch: bool(batch.groups) or batch.ended,
            changes=self.changes,
            wait=wait,
            poll=poll,
        )

    async def dismiss(self, consumer: Consumer, groups: Sequence[str], *, reason: str) -> None:
        check_reason(reason)
        await self._write_now(delivery.dismiss, consumer, groups, reason=reason)

    async def commit(
        self, consumer: Consumer, step: int, *, groups: Sequence[str] | None = None
    ) -> None:
        check_step(step)
        await self._write_now(delivery.commit, consumer, step, groups or ())

    async def rewind(
        self, consumer: Consumer, step: int, *, trained: Mapping[str, int] | None = None
    ) -> int:
        check_step(step)
        return await self._write_now(delivery.rewind, consumer, step, trained or {})

    async def consumers(self, run: Run) -> list[str]:
        return await self._read(delivery.consumers, run)

    async def held_groups(self, run: Run) -> dict[str, list[str]]:
        return await self._read(runs.held_groups, run)

    async def ledger(self, run: Run, consumer: str, *, since: int = 0) -> list[LedgerEntry]:
        return await self._read(delivery.ledger, run, consumer, since)

    async def close(self) -> None:
        """Finishes what is queued. The writer leaves last: it moves the log into the file."""
        # Again, if it was cancelled: each step may be repeated.
        await self._writer.drain()
        if not self._closed:
            self._closed = True
            self._reads.submit(self._close_reader)
        await asyncio.to_thread(self._reads.shutdown)
        await asyncio.to_thread(self._checkpointer.stop)
        await self._writer.close()

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()


def _note(lease: Lease, status: Status | None, settled: bool | None) -> None:
    if status is not None:
        lease.status = status
    if settled is not None:
        lease.settled = settled


def _log(connection: sqlite3.Connection, trajectory: int) -> "list[Record] | JournalCorrupt":
    try:
        return decode_rows(connection, trajectory)
    except JournalCorrupt as error:
        return error
