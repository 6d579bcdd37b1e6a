"""Journals that fail on purpose, at a place that a test chooses.

`FaultyConnections` fails the k-th SQL statement of a SQLite journal, `FaultyJournal` the k-th
operation of any journal. Both fail either before the work is done or after it: the second is what
a lost answer looks like, and the one that careless code handles wrongly.
"""

import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Any, TypeVar

from holdfast.journal.changes import Changes
from holdfast.journal.journal import (
    Batch,
    Claim,
    Consumer,
    Cut,
    Journal,
    Lease,
    LedgerEntry,
    RunProgress,
    RunRow,
    TrajectoryRow,
    Worker,
    WorkerIdentity,
)
from holdfast.journal.sqlite.journal import BUSY_SECONDS
from holdfast.records.errors import JournalError
from holdfast.records.run import Run, RunSpec
from holdfast.records.samples.version import WeightVersion
from holdfast.records.step import Record
from holdfast.records.task import Task
from holdfast.records.trajectory import Status

IO_ERROR = "disk I/O error"
DISK_FULL = "database or disk is full"
Result = TypeVar("Result")


class When(StrEnum):
    BEFORE = "before"
    """Nothing is done."""
    AFTER = "after"
    """It is done, and the caller does not learn it."""


class FaultyConnections:
    """A connection factory for `SqliteJournal(path, connect=…)`.

    Counts the statements of all its connections, in the order in which they start, and fails
    number `k` (from 1; 0: none) and the `times - 1` after it.
    """

    def __init__(
        self, k: int = 0, *, when: When = When.BEFORE, times: int = 1, message: str = IO_ERROR
    ):
        self.k = k
        self.when = when
        self.times = times
        self.message = message
        self.statements: list[str] = []
        self._lock = threading.Lock()

    def __call__(self, uri: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            uri,
            uri=True,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            factory=_FaultyConnection,
        )
        connection.faults = self
        return connection

    def fail_from_now(self) -> None:
        """Every statement from the next on fails, until `heal`."""
        self.k, self.times = len(self.statements) + 1, 1_000_000_000

    def heal(self) -> None:
        self.k = 0

    def run(self, sql: str, statement: Callable[[], sqlite3.Cursor]) -> sqlite3.Cursor:
        with self._lock:
            self.statements.append(sql)
            fails = self.k > 0 and 0 <= len(self.statements) - self.k < self.times
        if fails and self.when is When.BEFORE:
            raise sqlite3.OperationalError(self.message)
        cursor = statement()
        if fails:
            cursor.close()  # The traceback would keep it, and with it the connection.
            raise sqlite3.OperationalError(self.message)
        return cursor


class _FaultyConnection(sqlite3.Connection):
    faults: FaultyConnections

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        return self.faults.run(sql, lambda: super(_FaultyConnection, self).execute(sql, parameters))

    def executemany(self, sql: str, parameters: Any, /) -> sqlite3.Cursor:
        return self.faults.run(
            sql, lambda: super(_FaultyConnection, self).executemany(sql, parameters)
        )


class FaultyJournal:
    """A `Journal` around another one, with a k-th operation that fails (from 1; 0: none).

    Operations are counted as they start. Iterating over `histories` is one operation.
    """

    def __init__(
        self,
        journal: Journal,
        k: int = 0,
        *,
        when: When = When.BEFORE,
        error: Callable[[], Exception] = lambda: JournalError("a fault on purpose"),
    ):
        self.journal = journal
        self.k = k
        self.when = when
        self.operations: list[str] = []
        self._error = error

    def _is_hit(self, name: str) -> bool:
        self.operations.append(name)
        return len(self.operations) == self.k

    async def _do(self, name: str, operation: Callable[[], Awaitable[Result]]) -> Result:
        hit = self._is_hit(name)
        if hit and self.when is When.BEFORE:
            raise self._error()
        result = await operation()
        if hit:
            raise self._error()
        return result

    @property
    def changes(self) -> Changes:
        return self.journal.changes

    async def create_run(self, spec: RunSpec, tasks: Sequence[Task], *, sealed: bool = True) -> Run:
        return await self._do(
            "create_run", lambda: self.journal.create_run(spec, tasks, sealed=sealed)
        )

    async def admit(self, run: Run, tasks: Sequence[Task]) -> int:
        return await self._do("admit", lambda: self.journal.admit(run, tasks))

    async def seal(self, run: Run) -> None:
        await self._do("seal", lambda: self.journal.seal(run))

    async def progress(self, run: Run) -> RunProgress:
        return await self._do("progress", lambda: self.journal.progress(run))

    async def find_run(self, name: str) -> Run | None:
        return await self._do("find_run", lambda: self.journal.find_run(name))

    async def amend_run(
        self, run: Run, spec: RunSpec, tasks: Sequence[Task], *, differences: Sequence[str]
    ) -> Run:
        return await self._do(
            "amend_run", lambda: self.journal.amend_run(run, spec, tasks, differences=differences)
        )

    async def runs(self) -> list[RunRow]:
        return await self._do("runs", self.journal.runs)

    async def tasks(self, run: Run, *, ordinals: Sequence[int] | None = None) -> list[Task]:
        return await self._do("tasks", lambda: self.journal.tasks(run, ordinals=ordinals))

    async def trajectories(self, run: Run) -> list[TrajectoryRow]:
        return await self._do("trajectories", lambda: self.journal.trajectories(run))

    async def join(
        self, run: Run, identity: WorkerIdentity, *, lease_seconds: float, share: bool
    ) -> Worker:
        return await self._do(
            "join",
            lambda: self.journal.join(run, identity, lease_seconds=lease_seconds, share=share),
        )

    async def heartbeat(self, worker: Worker) -> None:
        await self._do("heartbeat", lambda: self.journal.heartbeat(worker))

    async def leave(self, worker: Worker) -> None:
        await self._do("leave", lambda: self.journal.leave(worker))

    async def claim(self, worker: Worker, *, groups: int) -> list[Claim]:
        return await self._do("claim", lambda: self.journal.claim(worker, groups=groups))

    async def append(
        self,
        lease: Lease,
        records: Sequence[Record],
        *,
        status: Status | None = None,
        settled: bool | None = None,
    ) -> None:
        await self.append_together([(lease, records, status)], settled=settled)

    async def append_together(
        self,
        entries: Sequence[tuple[Lease, Sequence[Record], Status | None]],
        *,
        settled: bool | None = None,
    ) -> None:
        try:
            await self._do("append", lambda: self.journal.append_together(entries, settled=settled))
        except JournalError as error:
            # As every journal does: what follows a failed append has no place to go.
            for lease, _, _ in entries:
                lease.broken = lease.broken or error
            raise

    async def history(self, trajectory: int) -> list[Record]:
        return await self._do("history", lambda: self.journal.history(trajectory))

    async def histories(self, run: Run) -> AsyncIterator[tuple[TrajectoryRow, list[Record]]]:
        hit = self._is_hit("histories")
        if hit and self.when is When.BEFORE:
            raise self._error()
        async for row in self.journal.histories(run):
            yield row
        if hit:
            raise self._error()

    async def cut(self, lease: Lease) -> Cut | None:
        return await self._do("cut", lambda: self.journal.cut(lease))

    async def reopen(self, run: Run, *, reason: str) -> int:
        return await self._do("reopen", lambda: self.journal.reopen(run, reason=reason))

    async def put_blob(self, body: bytes) -> bytes:
        return await self._do("put_blob", lambda: self.journal.put_blob(body))

    async def get_blob(self, digest: bytes) -> bytes:
        return await self._do("get_blob", lambda: self.journal.get_blob(digest))

    async def publish_version(
        self,
        run: Run,
        name: str,
        *,
        step: int,
        digest: str,
        consumer: Consumer | None = None,
    ) -> int:
        return await self._do(
            "publish_version",
            lambda: self.journal.publish_version(
                run, name, step=step, digest=digest, consumer=consumer
            ),
        )

    async def versions(self, run: Run) -> list[WeightVersion]:
        return await self._do("versions", lambda: self.journal.versions(run))

    async def subscribe(
        self, run: Run, name: str, identity: WorkerIdentity, *, lease_seconds: float
    ) -> Consumer:
        return await self._do(
            "subscribe",
            lambda: self.journal.subscribe(run, name, identity, lease_seconds=lease_seconds),
        )

    async def renew(self, consumer: Consumer) -> None:
        await self._do("renew", lambda: self.journal.renew(consumer))

    async def unsubscribe(self, consumer: Consumer) -> None:
        await self._do("unsubscribe", lambda: self.journal.unsubscribe(consumer))

    async def next_batch(
        self, consumer: Consumer, step: int, *, groups: int, wait: float = 0.0
    ) -> Batch:
        return await self._do(
            "next_batch",
            lambda: self.journal.next_batch(consumer, step, groups=groups, wait=wait),
        )

    async def take(self, consumer: Consumer, *, groups: int, wait: float = 0.0) -> Batch:
        return await self._do("take", lambda: self.journal.take(consumer, groups=groups, wait=wait))

    async def dismiss(self, consumer: Consumer, groups: Sequence[str], *, reason: str) -> None:
        await self._do("dismiss", lambda: self.journal.dismiss(consumer, groups, reason=reason))

    async def commit(
        self, consumer: Consumer, step: int, *, groups: Sequence[str] | None = None
    ) -> None:
        await self._do("commit", lambda: self.journal.commit(consumer, step, groups=groups))

    async def rewind(self, consumer: Consumer, step: int) -> int:
        return await self._do("rewind", lambda: self.journal.rewind(consumer, step))

    async def consumers(self, run: Run) -> list[str]:
        return await self._do("consumers", lambda: self.journal.consumers(run))

    async def ledger(self, run: Run, consumer: str) -> list[LedgerEntry]:
        return await self._do("ledger", lambda: self.journal.ledger(run, consumer))

    async def close(self) -> None:
        """Never fails on purpose: a test has to be able to clean up."""
        await self.journal.close()
