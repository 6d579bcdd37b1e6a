"""Who only reads can read where nothing can be written, and is told what to do where not."""

import asyncio
import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.journal.damage.check import check, repair
from holdfast.journal.sqlite.journal import SqliteJournal, connect_to_read
from holdfast.records.errors import JournalDamaged, JournalError
from support.records import make_tasks, spec


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A folder with a closed journal, one with its log, and one whose index is gone."""
    folder = tmp_path / "made"

    async def make() -> None:
        journal = SqliteJournal(folder / "closed.db")
        await journal.create_run(spec("first"), make_tasks("a", "b"))
        for name, parts in {"live": ("", "-wal", "-shm"), "torn": ("", "-wal")}.items():
            for part in parts:
                shutil.copy(folder / f"closed.db{part}", folder / f"{name}.db{part}")
        await journal.close()

    asyncio.run(make())
    assert not (folder / "closed.db-wal").exists()
    return folder


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[Path]:
    """The folder as a read-only medium, where this machine lets us mount one."""
    place = folder.with_name("medium")
    place.mkdir()
    mounts = (["--bind", folder, place], ["-o", "remount,ro,bind", place])
    try:
        for arguments in mounts:
            if subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode:
                pytest.skip("mounting is not allowed here")
        yield place
    finally:
        subprocess.run(["umount", place], capture_output=True, check=False)


def names(path: Path) -> list[str]:
    async def read() -> list[str]:
        journal = SqliteJournal(path, read_only=True)
        try:
            return [run.name for run in await journal.runs()]
        finally:
            await journal.close()

    return asyncio.run(read())


def test_a_journal_on_a_read_only_medium_is_read_and_checked(made: Path) -> None:
    with read_only(made) as medium:
        for name in ("closed.db", "live.db"):
            assert names(medium / name) == ["first"]
            assert check(medium / name).is_clean
        before = sorted(path.name for path in medium.iterdir())
    assert before == sorted(path.name for path in made.iterdir())


def test_a_log_that_cannot_be_read_there_has_to_be_copied_too(made: Path, tmp_path: Path) -> None:
    with (
        read_only(made) as medium,
        pytest.raises(JournalError, match="copy it and its -wal into one that you can") as refused,
    ):
        names(medium / "torn.db")
    assert "cannot be written:" not in str(refused.value)
    for part in ("", "-wal"):
        shutil.copy(made / f"torn.db{part}", tmp_path / f"copy.db{part}")
    assert names(tmp_path / "copy.db") == ["first"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for another user")
def test_a_folder_of_somebody_else_is_told_with_what_to_do(made: Path) -> None:
    """Its disk can be written, so somebody may be writing: the file alone is not enough."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        path = Path(shutil.copy(made / "closed.db", folder))
        path.chmod(0o644)
        with as_nobody(), pytest.raises(JournalError) as refused:
            names(path)
        text = str(refused.value)
        assert "closed.db cannot be read where it lies, in a folder that you cannot write" in text
        assert "copy it into one that you can, and name the copy" in text
        path.chmod(0o600)
        with (
            as_nobody(),
            pytest.raises(JournalError, match=r"closed\.db cannot be read: Permission denied"),
        ):
            names(path)


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """With the rights of a user who has none."""
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_whoever_writes_is_told_that_it_cannot_be_written(made: Path) -> None:
    with read_only(made) as medium, pytest.raises(JournalError, match="cannot be written"):
        SqliteJournal(medium / "closed.db")


def test_a_medium_that_can_be_written_is_never_taken_for_a_fixed_one(made: Path) -> None:
    """Somebody may write there: without SQLite's locks, a reader would see half of it."""
    texts: list[str] = []

    def connect(uri: str) -> object:
        texts.append(uri)
        raise AssertionError

    with pytest.raises(AssertionError):
        connect_to_read(made / "closed.db", connect)  # type: ignore[arg-type]
    assert texts[0].endswith("closed.db?mode=ro")


@pytest.mark.parametrize("kept", [0.3, 0.9])
def test_a_file_whose_end_is_gone_is_damaged_and_can_be_salvaged(made: Path, kept: float) -> None:
    path = made / "closed.db"
    os.truncate(path, int(path.stat().st_size * kept))
    with pytest.raises(JournalDamaged, match=r"closed\.db is damaged .*sqlite3 FILE \.recover"):
        names(path)
    with pytest.raises(JournalDamaged, match="is damaged"):
        check(path)


def test_an_empty_file_is_not_repaired_into_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    path.touch()
    with pytest.raises(JournalError, match="is empty"):
        repair(path)
    assert [path.name for path in tmp_path.iterdir()] == ["empty.db"]
    assert path.stat().st_size == 0


@pytest.mark.parametrize("place", ["/dev/null", "/dev/zero", "/dev"])
def test_what_is_no_regular_file_is_no_journal(place: str) -> None:
    with pytest.raises(JournalError, match=f"{place} cannot be read: it is not a regular file"):
        names(Path(place))
    with pytest.raises(JournalError, match=f"{place} cannot be written: it is not a regular file"):
        SqliteJournal(Path(place))
