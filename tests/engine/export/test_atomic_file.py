"""Nothing that a command writes takes the place of a journal."""

import asyncio
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.engine.export.atomic_file import whole_file
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.records.errors import UsageError
from support.records import make_tasks, spec

PARTS = ("", "-wal", "-shm", ".gateway-secret")


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "other.db"

    async def make() -> None:
        journal = SqliteJournal(path)
        await journal.create_run(spec(), make_tasks("a"))
        await journal.close()

    asyncio.run(make())
    return path


def write(path: Path) -> None:
    with whole_file(path) as part:
        part.write_text("new")


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("part", PARTS)
def test_a_journal_and_what_belongs_to_it_is_never_written_over(
    journal: Path, part: str, is_there: bool
) -> None:
    target = journal.with_name(f"other.db{part}")
    if is_there and part:
        target.write_bytes(b"what SQLite or a gateway keeps there")
    before = files(journal.parent)
    with pytest.raises(UsageError, match=r"the Holdfast journal .*other\.db, which is never"):
        write(target)
    assert files(journal.parent) == before


def test_a_link_to_a_journal_is_no_way_around(journal: Path) -> None:
    link = journal.with_name("rows.jsonl")
    link.symlink_to(journal)
    with pytest.raises(UsageError, match="never written over"):
        write(link)
    assert link.is_symlink()


async def test_a_new_journal_whose_mark_is_only_in_its_log_is_known(tmp_path: Path) -> None:
    """As a driver leaves it that is killed right after it began."""
    journal = SqliteJournal(tmp_path / "live.db")
    with closing(sqlite3.connect(tmp_path / "killed.db")) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    await journal.create_run(spec(), make_tasks("a"))
    shutil.copy(tmp_path / "live.db-wal", tmp_path / "killed.db-wal")
    await journal.close()
    with pytest.raises(UsageError, match="never written over"):
        write(tmp_path / "killed.db")


@pytest.mark.parametrize("name", ["notes-wal", "notes", "-wal", "notes.gateway-secret"])
def test_any_other_file_is_replaced(tmp_path: Path, name: str) -> None:
    (tmp_path / "notes").write_text("no database")
    write(tmp_path / name)
    assert (tmp_path / name).read_text() == "new"


def test_the_database_of_another_application_is_a_file_like_any_other(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "theirs.db")) as connection, connection:
        connection.execute("CREATE TABLE bookmarks(url)")
    write(tmp_path / "theirs.db")
    assert (tmp_path / "theirs.db").read_text() == "new"


def test_a_dash_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="name a file instead of '-'"):
        write(Path("-"))
    assert files(tmp_path) == {}
