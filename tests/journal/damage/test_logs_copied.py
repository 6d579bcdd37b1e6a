"""A damaged log that was copied into the file already, in whole or in part.

SQLite would put its pages up to the damage over newer ones of the file.
"""

import asyncio
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.journal.damage.check import accept_loss, check
from holdfast.journal.files.wal import _checksum
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.journal.sqlite.losses import find_loss
from holdfast.journal.sqlite.schema import last_number
from holdfast.records.errors import JournalDamaged, JournalError
from support.journal.lost_log import FRAME, HEADER, PAGE, Files, killed_writer, offset
from support.records import make_tasks, spec

OWNER = 12345


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return killed_writer(tmp_path_factory.mktemp("killed") / "journal.db")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def number(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return last_number(connection)


def copied(files: Files, path: Path, commits: int) -> tuple[Files, int]:
    """With so many commits of its log in the file; and the number of the last of them."""
    files.put(path, log=files.log[: offset(files.commits[commits - 1] + 1)], witness=None)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return replace(files, main=path.read_bytes()), number(path)


def damaged(log: bytes, frame: int) -> bytes:
    changed = bytearray(log)
    changed[offset(frame) + FRAME + 500] ^= 1
    return bytes(changed)


def remove(path: Path) -> None:
    for file in path.parent.iterdir():
        file.unlink()


@pytest.mark.parametrize("kind", ["flipped", "cut"])
@pytest.mark.parametrize("has_witness", [True, False])
def test_a_repair_goes_back_to_the_last_commit_of_the_file_or_of_the_good_part_of_its_log(
    files: Files, path: Path, kind: str, has_witness: bool
) -> None:
    half = len(files.commits) // 2
    some, last = copied(files, path, half)
    for frame in range(1, files.frames - 1, 2):
        remove(path)
        good = sum(commit < frame for commit in files.commits)
        log = damaged(files.log, frame) if kind == "flipped" else files.log[: offset(frame)]
        some.put(path, log=log, witness=files.witness if has_witness else None)
        notice = accept_loss(path)
        if has_witness:
            assert notice is not None
        assert check(path).findings == [], frame
        assert number(path) == last + max(good - half, 0), frame
        if notice and 0 < good < half:
            assert path.read_bytes() == some.main
            assert Path(f"{path}-wal.kept-1").read_bytes() == log


def test_a_log_that_is_copied_completely_is_told_to_lose_nothing(files: Files, path: Path) -> None:
    some, last = copied(files, path, len(files.commits))
    for frame in (1, files.commits[3]):
        some.put(path, log=damaged(files.log, frame))
        (finding,) = check(path).findings
        assert "has lost no commit, but has a log that must not be read" in finding.what
        assert f"keeps the file without its log, up to commit {last}" in finding.remedy
    with pytest.raises(JournalDamaged, match="must not be read"):
        SqliteJournal(path)


def test_nothing_is_touched_where_neither_the_file_nor_the_file_with_its_log_is_whole(
    files: Files, path: Path
) -> None:
    """Its writer was killed while the log was copied, page by page."""
    some, _ = copied(files, path, len(files.commits))
    ends = set()
    for commit in (3, 8):
        log = damaged(files.log, files.commits[commit])
        for pages in range(1, len(some.main) // PAGE, 4):
            remove(path)
            main = some.main[: pages * PAGE] + files.main[pages * PAGE :]
            main = main.ljust(len(some.main), b"\0")
            files.put(path, main=main, log=log)
            try:
                accept_loss(path)
            except JournalDamaged as error:
                ends.add("untouched" if "nothing was touched" in str(error) else str(error))
                assert path.read_bytes() == main
                assert Path(f"{path}-wal").read_bytes() == log
                with pytest.raises(JournalDamaged, match=r"log \(-wal\)"):
                    SqliteJournal(path)
            else:
                ends.add("mended")
                assert check(path).findings == []
                assert number(path) == commit
    assert ends == {"untouched", "mended"}


def unreadable(files: Files) -> bytes:
    """A log of one commit, after which the file is a single page."""
    header, page = files.log[:HEADER], files.main[:PAGE]
    start = (1).to_bytes(4, "big") * 2
    sums = (int.from_bytes(header[24:28], "big"), int.from_bytes(header[28:32], "big"))
    order = "big" if header[3] & 1 else "little"
    first, second = _checksum(page, _checksum(start, sums, order), order)
    made = first.to_bytes(4, "big") + second.to_bytes(4, "big")
    return header + start + header[16:24] + made + page


@pytest.mark.parametrize("has_witness", [True, False])
def test_where_the_log_makes_a_file_unreadable_it_is_named_and_set_aside(
    files: Files, path: Path, has_witness: bool
) -> None:
    some, last = copied(files, path, len(files.commits) - 2)
    log = unreadable(files)
    some.put(path, log=log, witness=files.witness if has_witness else None)
    loss = find_loss(path)
    assert loss is not None
    assert ("has lost 2 commits" if has_witness else "may have lost commits") in loss.what
    assert "log (-wal)" in loss.what
    assert f"keeps the file without its log, up to commit {last}" in loss.remedy
    accept_loss(path)
    assert check(path).findings == []
    assert number(path) == last
    assert Path(f"{path}-wal.kept-1").read_bytes() == log


# --- whose files they are

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files for others")


def owners(path: Path) -> set[tuple[int, int, int]]:
    results = [file.stat() for file in path.parent.glob(f"{path.name}*")]
    return {(each.st_uid, each.st_gid, each.st_mode & 0o777) for each in results}


async def commit(path: Path, name: str) -> None:
    journal = SqliteJournal(path)
    await journal.create_run(spec(name), make_tasks("a"))
    await journal.close()


@as_root
def test_what_root_makes_beside_a_journal_belongs_to_its_owner(files: Files, path: Path) -> None:
    path.touch()
    os.chown(path, OWNER, OWNER)
    path.chmod(0o640)
    asyncio.run(commit(path, "first"))
    assert owners(path) == {(OWNER, OWNER, 0o640)}
    remove(path)
    files.put(path, log=damaged(files.log, files.commits[-3]))
    for file in (path, Path(f"{path}-wal"), Path(f"{path}-witness")):
        os.chown(file, OWNER, OWNER)
        file.chmod(0o640)
    accept_loss(path)
    assert len(list(path.parent.glob("*.kept-1"))) == 2
    assert owners(path) == {(OWNER, OWNER, 0o640)}


@pytest.fixture
def open_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # One that others may enter.
    yield folder
    shutil.rmtree(folder)


@as_root
def test_whoever_may_not_write_the_witness_is_told_what_to_do(open_folder: Path) -> None:
    path = open_folder / "journal.db"
    os.chown(open_folder, OWNER, OWNER)
    os.seteuid(OWNER)
    try:
        asyncio.run(commit(path, "first"))
        os.seteuid(0)
        os.chown(f"{path}-witness", 0, 0)
        os.seteuid(OWNER)
        with pytest.raises(JournalError, match=r"chown \S+-witness to .* or remove it"):
            asyncio.run(commit(path, "second"))
    finally:
        os.seteuid(0)
