"""Journals that fail on purpose, at a place that a test chooses.

`FaultyConnections` fails the k-th SQL statement of a SQLite journal, `FaultyJournal` the k-th
operation of any journal. Both fail either before the work is done or after it: the second is what
a lost answer looks like, and the one that careless code handles wrongly.
"""

import functools
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.journal.changes import Changes
from holdfast.journal.sql.journal import Journal
from holdfast.journal.sqlite.committer import BUSY_SECONDS
from holdfast.journal.types import Entries, Lease, TrajectoryRow
from holdfast.records.errors import JournalCorrupt, JournalError
from holdfast.records.run import Run
from holdfast.records.samples.summary import Summary
from holdfast.records.step import Record
from holdfast.records.trajectory import Status

if TYPE_CHECKING:
    from typing import Any as _Operations  # A `FaultyJournal` has whatever a journal has.
else:
    _Operations = object

Row = TypeVar("Row")
IO_ERROR = "disk I/O error"
DISK_FULL = "database or disk is full"


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


class FaultyJournal(_Operations):  # type: ignore[misc]
    """A `Journal` around another one, with a k-th operation that fails (from 1; 0: none).

    Operations are counted as they start. Iterating over `histories` or `summaries` is one
    operation.
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

    async def _do(self, name: str, operation: Callable[[], Awaitable[Any]]) -> Any:
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

    async def append(
        self,
        lease: Lease,
        records: Sequence[Record],
        *,
        status: Status | None = None,
        settled: bool | None = None,
    ) -> None:
        await self.append_together([(lease, records, status)], settled=settled)

    async def append_together(self, entries: Entries, *, settled: bool | None = None) -> None:
        try:
            await self._do("append", lambda: self.journal.append_together(entries, settled=settled))
        except JournalError as error:
            # As every journal does: what follows a failed append has no place to go.
            for lease, _, _ in entries:
                lease.broken = lease.broken or error
            raise

    async def histories(self, run: Run) -> AsyncIterator[tuple[TrajectoryRow, list[Record]]]:
        async for row in self._iterate("histories", self.journal.histories(run)):
            yield row

    async def summaries(
        self, run: Run, *, ordinals: Collection[int] | None = None
    ) -> AsyncIterator[tuple[TrajectoryRow, Summary | JournalCorrupt]]:
        rows = self.journal.summaries(run, ordinals=ordinals)
        async for row in self._iterate("summaries", rows):
            yield row

    async def _iterate(self, name: str, rows: AsyncIterator[Row]) -> AsyncIterator[Row]:
        hit = self._is_hit(name)
        if hit and self.when is When.BEFORE:
            raise self._error()
        async for row in rows:
            yield row
        if hit:
            raise self._error()

    async def close(self) -> None:
        """Never fails on purpose: a test has to be able to clean up."""
        await self.journal.close()


def _counted(name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
    @functools.wraps(getattr(Journal, name))
    async def operation(self: FaultyJournal, *arguments: Any, **named: Any) -> Any:
        return await self._do(name, lambda: getattr(self.journal, name)(*arguments, **named))

    return operation


for _name in set(dir(Journal)) - vars(FaultyJournal).keys():
    if not _name.startswith("_"):
        setattr(FaultyJournal, _name, _counted(_name))
