"""What is refused at the door, and how a new journal comes to be."""

import asyncio
import multiprocessing
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.journal import open_journal
from holdfast.journal.sqlite import schema
from holdfast.journal.sqlite.journal import MemoryJournal, SqliteJournal, connect_to_read
from holdfast.records.errors import JournalError, JournalNewer, NotAJournal
from support.records import sql


def make(path: Path) -> None:
    """An empty journal, closed."""
    connection = sqlite3.connect(path, isolation_level=None)
    schema.prepare(connection, path)
    connection.close()


def test_a_file_that_is_no_database_is_refused_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are my notes\n" * 500)
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    with pytest.raises(NotAJournal, match=r"notes\.txt is not a Holdfast journal"):
        SqliteJournal(path)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_the_file_of_another_application_is_refused_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE bookmarks(url)")
    connection.close()
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    with pytest.raises(NotAJournal, match="no Holdfast journal"):
        SqliteJournal(path)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


def test_a_newer_journal_is_refused_with_both_versions(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    make(path)
    sql(path, f"PRAGMA user_version={schema.VERSION + 1}")
    before = path.read_bytes()
    for read_only in (False, True):
        with pytest.raises(JournalNewer, match=f"version {schema.VERSION + 1}.*Upgrade"):
            _read_something(SqliteJournal(path, read_only=read_only))
    assert path.read_bytes() == before


@pytest.mark.parametrize("version", [-1, 0])
def test_a_version_that_its_tables_are_not_of_is_damage(tmp_path: Path, version: int) -> None:
    path = tmp_path / "journal.db"
    make(path)
    sql(path, f"PRAGMA user_version={version}")
    before = path.read_bytes()
    for read_only in (False, True):
        with pytest.raises(schema.JournalDamaged, match=f"damaged .* version {version}"):
            _read_something(SqliteJournal(path, read_only=read_only))
    assert path.read_bytes() == before


def _read_something(journal: SqliteJournal) -> None:
    async def read() -> None:
        try:
            await journal.runs()
        finally:
            await journal.close()

    asyncio.run(read())


@pytest.mark.parametrize("where", ["file/journal.db", "/proc/holdfast/journal.db"])
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match=r"journal\.db cannot be written.*check the folder"):
        SqliteJournal(tmp_path / where)


def test_a_folder_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="cannot be written"):
        SqliteJournal(tmp_path)


def test_reading_a_journal_that_is_not_there_says_so_and_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="there is no journal at"):
        open_journal(tmp_path / "journal.db", read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_missing_folders_are_made_and_the_file_is_private(tmp_path: Path) -> None:
    path = tmp_path / "some" / "folder" / "journal.db"
    SqliteJournal(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_the_log_beside_the_file_is_private_too(tmp_path: Path) -> None:
    from support.records import make_tasks, spec

    journal = SqliteJournal(tmp_path / "journal.db")
    await journal.create_run(spec(), make_tasks("a"))
    modes = {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    assert len(list(tmp_path.iterdir())) == 4  # With log, index and witness.
    await journal.close()
    assert (modes) == {0o600}


def test_a_new_journal_has_its_marks_and_durability_set(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    assert sql(path, "PRAGMA application_id") == [(schema.APPLICATION_ID,)]
    assert sql(path, "PRAGMA user_version") == [(schema.VERSION,)]
    assert sql(path, "PRAGMA journal_mode") == [("wal",)]
    connection = journal._connect()
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert connection.execute("PRAGMA page_size").fetchone() == (schema.PAGE_SIZE,)
    connection.close()


def test_an_interrupted_creation_is_finished_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.close()
    SqliteJournal(path)
    assert sql(path, "SELECT count(*) FROM runs") == [(0,)]


def _create(paths: list[str], barrier: object, results: object) -> None:
    for path in paths:
        barrier.wait()  # type: ignore[attr-defined]
        try:
            SqliteJournal(Path(path))
            results.put("")  # type: ignore[attr-defined]
        except Exception as error:
            results.put(f"{type(error).__name__}: {error}")  # type: ignore[attr-defined]


def test_processes_that_create_a_file_at_once_all_get_it(tmp_path: Path) -> None:
    processes, paths = 4, [tmp_path / f"{attempt}.db" for attempt in range(4)]
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(processes), context.Queue()
    started = [
        context.Process(target=_create, args=([str(path) for path in paths], barrier, results))
        for _ in range(processes)
    ]
    for process in started:
        process.start()
    outcomes = [results.get(timeout=60) for _ in started for _ in paths]
    for process in started:
        process.join()
    assert outcomes == [""] * processes * len(paths)
    for path in paths:
        assert sql(path, "SELECT value FROM counters WHERE name = 'settled'") == [(0,)]
        assert sql(path, "SELECT count(*) FROM counters WHERE name = 'identity'") == [(1,)]


def test_a_log_that_goes_while_it_is_asked_for_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process that closes a journal as its last one removes the log, at any moment."""
    path = tmp_path / "j.db"
    make(path)
    assert not schema.log_of(path).exists()
    monkeypatch.setattr(Path, "is_file", lambda _: True)
    monkeypatch.setattr(Path, "exists", lambda _: True)
    assert schema.log_size(path) == 0


def test_the_address_chooses_the_journal(tmp_path: Path) -> None:
    assert isinstance(open_journal("memory:"), MemoryJournal)
    assert isinstance(open_journal(tmp_path / "journal.db"), SqliteJournal)


def test_opening_a_journal_imports_no_heavy_module(tmp_path: Path) -> None:
    code = (
        "import sys, holdfast.journal as j; j.open_journal(sys.argv[1]); "
        "print([m for m in ('aiohttp', 'rich', 'torch', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "journal.db")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_reading_an_empty_file_says_that_nothing_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    path.touch()
    with pytest.raises(JournalError, match="is empty"):
        connect_to_read(path)


# --- older versions


@pytest.fixture
def next_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on this is the version after the present one, with one more table."""
    following = {schema.VERSION + 1: ("CREATE TABLE notes(text TEXT)",)}
    monkeypatch.setattr(schema, "_MIGRATIONS", schema._MIGRATIONS | following)
    monkeypatch.setattr(schema, "VERSION", schema.VERSION + 1)


def test_an_older_journal_is_brought_forward_by_who_writes(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = tmp_path / "journal.db"
    make(path)
    before = path.read_bytes()
    request.getfixturevalue("next_version")
    with pytest.raises(JournalError, match="a command that writes, such as holdfast run, brings"):
        connect_to_read(path)
    assert path.read_bytes() == before
    _read_something(SqliteJournal(path))
    assert sql(path, "PRAGMA user_version") == [(schema.VERSION,)]
    assert sql(path, "SELECT * FROM notes") == []


HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


def test_who_keeps_the_write_lock_is_named(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    make(path)
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
            with pytest.raises(sqlite3.OperationalError) as caught:
                connection.execute("BEGIN IMMEDIATE")
            text = str(schema.explain(caught.value, path))
    assert f"{path} cannot be written: process {holder.pid} keeps its write lock; " in text
    assert "let it go on or end it" in text
