"""One journal, one name: under a second one SQLite would write a second log to the same file."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.journal.damage.check import check, repair
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.records.errors import JournalError
from support.paths import SUPPORT

HERE = SUPPORT / "journal"
OPEN = "import sys, pathlib; from holdfast.journal.sqlite.journal import SqliteJournal as J; "
WRITE = f"{OPEN} J(pathlib.Path(sys.argv[1]))"
READ = f"import asyncio; {OPEN} asyncio.run(J(pathlib.Path(sys.argv[1]), read_only=True).runs())"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    return tmp_path / "a" / "journal.db"


@contextmanager
def in_use(path: Path) -> Iterator[None]:
    """Another process commits to it all the while, and its journal is whole in the end."""
    command = [sys.executable, HERE / "busy_writer.py", path]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as busy:
        assert busy.stdout is not None
        busy.stdout.readline()
        yield
        busy.communicate()
    assert busy.returncode == 0


def refused(path: Path) -> None:
    for use in (
        lambda: SqliteJournal(path),
        lambda: asyncio.run(SqliteJournal(path, read_only=True).runs()),
        lambda: check(path),
        lambda: repair(path),
    ):
        with pytest.raises(JournalError, match="hard links"):
            use()


def test_a_hard_link_to_a_journal_in_use_is_refused(path: Path) -> None:
    second = path.parents[1] / "b" / "journal.db"
    with in_use(path):
        os.link(path, second)
        refused(second)
        assert list(second.parent.iterdir()) == [second], "no second log was begun"
        second.unlink()
    assert check(path).findings == []


def test_a_hard_link_to_a_journal_at_rest_is_refused_too(path: Path) -> None:
    """What is in the log beside the other name is not seen from here."""
    asyncio.run(SqliteJournal(path).close())
    second = path.with_name("second.db")
    os.link(path, second)
    refused(second)
    refused(path)
    path.unlink()
    asyncio.run(SqliteJournal(second).close())


def mounted(path: Path, second: Path, code: str) -> "subprocess.CompletedProcess[str]":
    """What the code says that runs where `second` is a mount of the file."""
    script = 'mount --bind "$1" "$2" && exec "$3" -c "$4" "$2"'
    command = ["unshare", "-m", "sh", "-c", script, "sh", path, second, sys.executable, code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "Operation not permitted" in done.stderr or "permission denied" in done.stderr:
        pytest.skip("mounting is not allowed here")
    return done


@pytest.mark.parametrize("code", [WRITE, READ])
@pytest.mark.parametrize("name", ["journal.db", "with a space.db"])
def test_a_mount_of_the_single_file_is_refused(path: Path, code: str, name: str) -> None:
    second = path.parents[1] / "b" / name
    second.touch()
    with in_use(path):
        done = mounted(path, second, code)
        assert done.returncode == 1
        assert "is mounted as a single file" in done.stderr
        assert "mount its folder instead" in done.stderr
        assert list(second.parent.iterdir()) == [second], "no second log was begun"
    assert check(path).findings == []


def test_a_mount_of_the_folder_is_one_name(path: Path) -> None:
    folder = path.parents[1] / "b"
    with in_use(path):
        done = mounted(path.parent, folder, WRITE.replace("argv[1]", "argv[1] + '/journal.db'"))
        assert done.returncode == 0, done.stderr
    assert check(path).findings == []


def test_a_symbolic_link_is_followed(path: Path) -> None:
    second = path.parents[1] / "b" / "journal.db"
    second.symlink_to(path)
    with in_use(path):

        async def write() -> None:
            journal = SqliteJournal(second)
            await journal.put_blob(b"through the link")
            await journal.close()

        asyncio.run(write())
        assert check(second).findings == []
        assert list(second.parent.iterdir()) == [second]
    assert check(path).findings == []


def test_a_journal_that_was_moved_or_copied_goes_on(path: Path) -> None:
    asyncio.run(SqliteJournal(path).close())
    moved, copied = path.with_name("moved.db"), path.with_name("copied.db")
    shutil.copy(path, copied)
    path.rename(moved)
    for each in (moved, copied):
        asyncio.run(SqliteJournal(each).close())
        assert check(each).findings == []
