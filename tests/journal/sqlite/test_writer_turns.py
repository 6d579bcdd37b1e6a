"""Under load two batches take turns: one is told while the next is on its way to the disk."""

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.journal.sql import writer
from holdfast.journal.sqlite.journal import BUSY_SECONDS, SqliteJournal
from holdfast.journal.types import Lease
from holdfast.records.errors import JournalError
from support.records import ready, values

PATIENCE = 60.0


class Hold:
    """Stops the writer thread at the n-th statement that begins so, until it is let go."""

    def __init__(self) -> None:
        self.statement = ""
        self.after = 0
        self.failing = False
        self.reached = threading.Event()
        self.released = threading.Event()

    def arm(self, statement: str, *, after: int) -> None:
        self.statement, self.after = statement, after

    def pass_by(self, sql: str) -> None:
        if self.statement and sql.startswith(self.statement):
            self.after -= 1
            if self.after == -1:
                self.reached.set()
                assert self.released.wait(PATIENCE)
        if self.failing:
            raise sqlite3.OperationalError("disk I/O error")

    def connect(self, uri: str) -> sqlite3.Connection:
        hold = self

        class Connection(sqlite3.Connection):
            def execute(self, sql: str, *values: object) -> sqlite3.Cursor:  # type: ignore[override]
                hold.pass_by(sql)
                return super().execute(sql, *values)  # type: ignore[arg-type]

        return sqlite3.connect(
            uri,
            uri=True,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            factory=Connection,
        )


@pytest.fixture
def hold(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hold]:
    """Every append is a batch of its own, on a disk that counts as quick."""
    monkeypatch.setattr(writer, "MAX_ROWS", 1)
    monkeypatch.setattr(writer, "LOOP_SECONDS", 60.0)
    hold = Hold()
    yield hold
    hold.released.set()


async def two_leases(journal: SqliteJournal) -> tuple[Lease, Lease]:
    _, _, claims = await ready(journal, "a", samples=2)
    first, two = claims[0].open
    return first, two


async def reached(hold: Hold) -> None:
    assert await asyncio.to_thread(hold.reached.wait, PATIENCE)


async def test_a_batch_is_told_while_the_next_one_is_committed(tmp_path: Path, hold: Hold) -> None:
    journal = SqliteJournal(tmp_path / "journal.db", connect=hold.connect)
    lease, two = await two_leases(journal)
    hold.arm("COMMIT", after=1)
    first = asyncio.ensure_future(journal.append(lease, values(1)))
    second = asyncio.ensure_future(journal.append(two, values(2)))
    await reached(hold)
    async with asyncio.timeout(PATIENCE):
        await first
    assert not second.done()
    hold.released.set()
    await second
    await journal.close()


async def test_nobody_waits_for_what_may_take_long(tmp_path: Path, hold: Hold) -> None:
    journal = SqliteJournal(tmp_path / "journal.db", connect=hold.connect)
    lease, _ = await two_leases(journal)
    hold.arm("SAVEPOINT", after=0)
    first = asyncio.ensure_future(journal.append(lease, values(1)))
    second = asyncio.ensure_future(journal.put_blob(b"a snapshot"))
    await reached(hold)
    async with asyncio.timeout(PATIENCE):
        await first
    assert not second.done()
    hold.released.set()
    await second
    await journal.close()


async def test_nobody_waits_to_be_told_for_another_process_that_writes(
    tmp_path: Path, hold: Hold
) -> None:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path, connect=hold.connect)
    lease, two = await two_leases(journal)
    hold.arm("BEGIN IMMEDIATE", after=1)
    first = asyncio.ensure_future(journal.append(lease, values(1)))
    second = asyncio.ensure_future(journal.append(two, values(2)))
    await reached(hold)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    hold.released.set()
    async with asyncio.timeout(BUSY_SECONDS / 2):
        await first
    assert not second.done()
    other.execute("ROLLBACK")
    other.close()
    await second
    assert await journal.history(two.id) == values(2)
    await journal.close()


async def test_a_batch_is_told_although_the_next_one_fails(tmp_path: Path, hold: Hold) -> None:
    journal = SqliteJournal(tmp_path / "journal.db", connect=hold.connect)
    lease, two = await two_leases(journal)
    hold.arm("INSERT OR ABORT INTO records", after=1)
    first = asyncio.ensure_future(journal.append(lease, values(1)))
    second = asyncio.ensure_future(journal.append(two, values(2)))
    await reached(hold)
    hold.failing = True
    hold.released.set()
    async with asyncio.timeout(PATIENCE):
        await first
        with pytest.raises(JournalError, match="disk I/O error"):
            await second
    hold.failing = False
    assert await journal.history(lease.id) == values(1)
    assert await journal.history(two.id) == []
    await journal.close()


def test_halves_take_turns_only_where_the_disk_is_quicker_than_the_loop(tmp_path: Path) -> None:
    async def sizes(commit_seconds: float) -> int:
        journal = SqliteJournal(tmp_path / f"{commit_seconds}.db")
        item = journal._writer
        item._committer.seconds = commit_seconds
        share = item._share(400)
        await journal.close()
        return share

    assert asyncio.run(sizes(0.0)) == 200
    assert asyncio.run(sizes(1.0)) == writer.MAX_ROWS
