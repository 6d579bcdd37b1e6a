"""The write-ahead log is used again from its start, however much is written."""

import asyncio
import sqlite3
import time
from pathlib import Path

import pytest

from holdfast.journal.damage.check import check
from holdfast.journal.sqlite import checkpoint
from holdfast.journal.sqlite.journal import SqliteJournal
from support.records import ready, value

RECORD = 50_000


async def _write(journal: SqliteJournal, records: int) -> None:
    _, _, claims = await ready(journal, "a", samples=1)
    (lease,) = claims[0].open
    for number in range(records):
        await journal.append(lease, [value(number, size=RECORD)])
        await _until_nothing_is_copied(journal)


async def _until_nothing_is_copied(journal: SqliteJournal) -> None:
    """Waits for the thread, if it was asked to copy."""
    copies, deadline = journal._committer.checkpointer, time.monotonic() + 60
    while copies._requested_at and not copies._is_copied:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)


def _written(tmp_path: Path, records: int) -> int:
    """The size of the log before the journal is closed."""
    path = tmp_path / "journal.db"

    async def main() -> int:
        journal = SqliteJournal(path)
        await _write(journal, records)
        size = path.with_name("journal.db-wal").stat().st_size
        await journal.close()
        return size

    size = asyncio.run(main())
    assert check(path).findings == []
    return size


def test_what_the_thread_has_copied_is_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "START_BYTES", 500_000)
    monkeypatch.setattr(checkpoint, "RESTART_BYTES", 1_000_000)
    monkeypatch.setattr(checkpoint, "REST_BYTES", 250_000)
    assert _written(tmp_path, 100) < 2_500_000


def test_what_the_thread_cannot_catch_up_with_is_copied_by_the_writer_at_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "START_BYTES", 500_000)
    monkeypatch.setattr(checkpoint, "RESTART_BYTES", 1_000_000)
    monkeypatch.setattr(checkpoint, "REST_BYTES", -1)
    monkeypatch.setattr(checkpoint, "MOST_BYTES", 1_500_000)
    assert _written(tmp_path, 100) < 3_000_000


def test_a_log_that_nobody_copies_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "START_BYTES", 10**12)
    assert _written(tmp_path, 100) > 100 * RECORD


def test_what_was_not_copied_is_not_forgotten(tmp_path: Path) -> None:
    """While someone reads, the log grows and the writer goes on; afterwards it begins again."""
    path = tmp_path / "journal.db"

    async def main() -> tuple[int, int]:
        journal = SqliteJournal(path)
        _, _, claims = await ready(journal, "a", samples=1)
        (lease,) = claims[0].open
        reader = sqlite3.connect(path, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM runs").fetchone()
        sizes = []
        for half in (0, 1):
            for number in range(60):
                await journal.append(lease, [value(60 * half + number, size=RECORD)])
            sizes.append(path.with_name("journal.db-wal").stat().st_size)
            if half == 0:
                reader.close()
        await journal.close()
        return sizes[0], sizes[1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "START_BYTES", 200_000)
        patch.setattr(checkpoint, "RESTART_BYTES", 400_000)
        patch.setattr(checkpoint, "REST_BYTES", 100_000)
        patch.setattr(checkpoint, "MOST_BYTES", 800_000)
        while_read, afterwards = asyncio.run(main())
    assert while_read > 60 * RECORD
    assert afterwards < while_read + 20 * RECORD
    assert check(path).findings == []
