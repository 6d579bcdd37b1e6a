"""Deleting from a SQLite journal leaves it whole, and gives its space back."""

import asyncio
import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest

from holdfast.journal.damage.check import check
from holdfast.journal.sql.journal import Journal
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.records.errors import JournalError, JournalFull
from holdfast.records.run import Run
from holdfast.records.step import Snapshotted, ValueRecorded
from holdfast.records.trajectory import Status
from support.exhaustive import points
from support.journal.faulty_journal import DISK_FULL, FaultyConnections, When
from support.records import finished, joined, make_tasks, spec, sql, started


def in_journal(path: Path, body: Callable[[Journal], Awaitable[None]]) -> None:
    async def opened() -> None:
        journal = SqliteJournal(path)
        try:
            await body(journal)
        finally:
            await journal.close()

    asyncio.run(opened())


async def run_of(journal: Journal, name: str, *, size: int = 100, blob: bytes = b"") -> Run:
    run = await journal.create_run(spec(name), make_tasks("a", "b"))
    worker = await joined(journal, run)
    random = Random(name)
    for claim in await journal.claim(worker, groups=2):
        for lease in claim.open:
            await journal.append(lease, [started()], status=Status.RUNNING)
            for number in range(10):
                text = random.randbytes(size)
                await journal.append(lease, [ValueRecorded(str(number), b"", "v", text)])
            if blob:
                digest = await journal.put_blob(blob)
                await journal.append(lease, [Snapshotted("1", 1, digest)])
            await journal.append(lease, [finished()], status=Status.COMPLETED, settled=True)
    await journal.leave(worker)
    return run


def test_the_check_is_clean_after_each_deletion(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"

    async def body(journal: Journal) -> None:
        made = [await run_of(journal, name, blob=name[:1].encode()) for name in ("a1", "a2", "b1")]
        for left, run in zip((2, 1, 0), made, strict=True):
            await journal.delete_run(run)
            report = check(path)
            assert report.findings == []
            assert (report.runs, report.trajectories) == (left, 4 * left)
        assert (report.records, report.blobs, report.tasks) == (0, 0, 0)
        await run_of(journal, "c")
        assert check(path).findings == []

    in_journal(path, body)
    assert check(path).findings == []


def test_compacting_gives_the_space_back(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"

    async def body(journal: Journal) -> None:
        kept = await run_of(journal, "kept")
        gone = await run_of(journal, "gone", size=50_000)
        rows = [await journal.history(row.id) for row in await journal.trajectories(kept)]
        await journal.compact()  # What is in the log is in the file from now on.
        before = path.stat().st_size
        await journal.delete_run(gone)
        freed = await journal.compact()
        assert freed > 4 * 10 * 50_000 / 2
        assert path.stat().st_size < before / 3
        assert [await journal.history(row.id) for row in await journal.trajectories(kept)] == rows
        assert await journal.compact() == 0
        assert check(path).findings == []
        await run_of(journal, "more")

    in_journal(path, body)
    assert check(path).findings == []


def test_records_that_no_link_leads_to_are_deleted_too(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"

    async def body(journal: Journal) -> None:
        await run_of(journal, "kept")
        await run_of(journal, "gone")

    in_journal(path, body)
    (trajectory,) = sql(path, "SELECT max(id) FROM trajectories")[0]
    (middle,) = sql(path, "SELECT min(position) + 5 FROM records WHERE trajectory = ?", trajectory)[
        0
    ]
    sql(path, "UPDATE records SET previous = 0 WHERE position = ?", middle)
    sql(path, "UPDATE trajectories SET length = 0, last = 0 WHERE id = ?", trajectory - 1)
    assert check(path).findings

    async def delete(journal: Journal) -> None:
        gone = await journal.find_run("gone")
        assert gone is not None
        assert (await journal.delete_run(gone)).records == 4 * 12

    in_journal(path, delete)
    report = check(path)
    assert (report.findings, report.records) == ([], 4 * 12)


class FullForVacuum(FaultyConnections):
    def run(self, sql: str, statement: Callable[[], sqlite3.Cursor]) -> sqlite3.Cursor:
        if sql == "VACUUM":
            raise sqlite3.OperationalError(DISK_FULL)
        return super().run(sql, statement)


async def test_a_disk_that_is_too_full_to_compact_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    faults = FullForVacuum()
    journal = SqliteJournal(path, connect=faults)
    try:
        await run_of(journal, "kept")
        await journal.delete_run(await run_of(journal, "gone", size=1_000))
        with pytest.raises(JournalFull, match="full"):
            await journal.compact()
        await run_of(journal, "more")
    finally:
        await journal.close()
    assert check(path).findings == []


@pytest.mark.parametrize("when", list(When))
def test_a_fault_at_any_statement_deletes_all_or_nothing(tmp_path: Path, when: When) -> None:
    whole = tmp_path / "whole.db"

    async def prepare(journal: Journal) -> None:
        await run_of(journal, "kept", blob=b"shared")
        await run_of(journal, "gone", blob=b"own")

    in_journal(whole, prepare)
    length, number = 1, 0
    while number < length:
        path = tmp_path / f"{number}.db"
        shutil.copy(whole, path)
        length = asyncio.run(delete_with_fault(path, number, when))
        report = check(path)
        assert report.findings == []
        assert report.runs in (1, 2)
        assert (report.records, report.blobs) == (13 * 4 * report.runs, report.runs)
        number += max(1, length // points(6, length))


async def delete_with_fault(path: Path, number: int, when: When) -> int:
    """How many statements the deletion takes."""
    faults = FaultyConnections(when=when)
    journal = SqliteJournal(path, connect=faults)
    try:
        run = await journal.find_run("gone")
        assert run is not None
        before = len(faults.statements)
        faults.k = before + number + 1
        try:
            await journal.delete_run(run)
        except JournalError:
            await journal.delete_run(run)
        taken, faults.k = len(faults.statements) - before, 0
        assert await journal.find_run("gone") is None
        return taken
    finally:
        await journal.close()
