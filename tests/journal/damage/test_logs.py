"""Whatever happens to the write-ahead log, no commit is lost without a word.

The log is that of a writer that was killed. SQLite reads a damaged one up to the damage, and says
nothing.
"""

import asyncio
import random
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.journal.damage.check import accept_loss, check, repair
from holdfast.journal.sqlite import checkpoint
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.journal.sqlite.losses import find_loss
from holdfast.records.errors import JournalDamaged
from support.exhaustive import points
from support.journal.lost_log import FRAME, HEADER, PAGE, Files, killed_writer, offset
from support.paths import SUPPORT
from support.records import make_tasks, spec

HERE = SUPPORT / "journal"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    files = killed_writer(tmp_path_factory.mktemp("killed") / "journal.db")
    assert len(files.commits) > 12
    return files


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return killed_writer(tmp_path_factory.mktemp("other") / "other.db", appends=20)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def flipped(log: bytes, at: int, bit: int = 4) -> bytes:
    changed = bytearray(log)
    changed[at] ^= 1 << bit
    return bytes(changed)


def losses(path: Path) -> list[str]:
    return [finding.what for finding in check(path).findings if finding.where == "log"]


def places(frame: int) -> list[int]:
    """Fields of its header, and its page, in turn: with `make crash` three of them for each."""
    start, step = offset(frame), points(9, 3)
    fields = [start + 4 * field + 3 for field in range(6)]
    page = [start + FRAME, start + FRAME + PAGE // 2, start + FRAME + PAGE - 1]
    return [*fields, *page][frame % step :: step]


def test_what_is_whole_is_told_to_be(files: Files, path: Path) -> None:
    files.put(path)
    assert check(path).findings == []
    SqliteJournal(path)


def test_a_flipped_bit_anywhere_in_the_log_is_noticed(files: Files, path: Path) -> None:
    silent = []
    every = [*range(HEADER), *(place for frame in range(files.frames) for place in places(frame))]
    for place in every:
        files.put(path, log=flipped(files.log, place))
        if not losses(path):
            silent.append(place)
    assert silent == []
    assert len(every) >= HEADER + files.frames


def test_without_a_witness_the_log_itself_tells_all_but_the_last_transactions(
    files: Files, path: Path
) -> None:
    """Of the last one, nobody knows whether it was ever synced; the one before proves the rest."""
    *_, proof, _ = files.commits
    silent = []
    for frame in range(proof):
        for place in places(frame):
            files.put(path, log=flipped(files.log, place), witness=None)
            if not losses(path):
                silent.append(place)
    assert silent == []


def test_a_log_that_is_cut_anywhere_is_noticed(files: Files, path: Path) -> None:
    for frame in range(files.frames):
        lengths = (offset(frame), offset(frame) + 10, offset(frame) + FRAME + PAGE // 3)
        for length in lengths[frame % (step := points(3, 1)) :: step]:
            files.put(path, log=files.log[:length])
            (what,) = losses(path)
            lost = sum(commit >= frame for commit in files.commits)
            assert f"has lost {lost} commit" in what


def test_a_log_that_is_gone_is_noticed(files: Files, path: Path) -> None:
    for log in (None, b"", bytes(len(files.log))):
        files.put(path, log=log)
        (what,) = losses(path)
        assert f"has lost {len(files.commits)} commits, the last one of 20" in what


def test_an_older_log_and_an_older_file_are_noticed(tmp_path: Path, path: Path) -> None:
    old = tmp_path / "old.db"

    async def write() -> None:
        journal = SqliteJournal(path)
        await journal.create_run(spec("first"), make_tasks("a"))
        for part in ("", "-wal"):
            shutil.copy(f"{path}{part}", f"{old}{part}")
        await journal.create_run(spec("second"), make_tasks("a"))
        await journal.close()

    asyncio.run(write())
    assert check(path).findings == []
    for part in ("", "-wal"):
        shutil.copy(f"{old}{part}", f"{path}{part}")
    (what,) = losses(path)
    assert "has lost 1 commit" in what
    asyncio.run(SqliteJournal(old).close())  # Its log is in its file now.
    Path(f"{path}-wal").unlink()
    shutil.copy(old, path)
    (what,) = losses(path)
    assert "has lost 1 commit" in what


def test_a_log_that_goes_on_with_another_is_noticed(files: Files, other: Files, path: Path) -> None:
    for frame in range(1, files.frames):
        log = files.log[: offset(frame)] + other.log[offset(frame) :]
        files.put(path, log=log)
        assert losses(path), frame


@pytest.mark.parametrize("has_witness", [True, False])
def test_a_log_of_another_journal_is_neither_read_nor_written_into_the_file(
    files: Files, other: Files, path: Path, has_witness: bool
) -> None:
    witness = files.witness if has_witness else None
    for commit in other.commits:
        log = other.log[: offset(commit + 1)]
        files.put(path, log=log, witness=witness)
        (what,) = losses(path)
        assert "the log (-wal) of another journal" in what
        with pytest.raises(JournalDamaged, match="of another journal"):
            SqliteJournal(path)
        with pytest.raises(JournalDamaged, match="of another journal"):
            asyncio.run(SqliteJournal(path, read_only=True).runs())
        assert path.read_bytes() == files.main
        assert Path(f"{path}-wal").read_bytes() == log


def test_the_log_of_another_program_is_noticed(files: Files, path: Path, tmp_path: Path) -> None:
    made = sqlite3.connect(tmp_path / "made.db", isolation_level=None)
    made.execute(f"PRAGMA page_size={PAGE}")
    made.execute("PRAGMA journal_mode=WAL")
    made.execute("CREATE TABLE some(thing)")
    log = (tmp_path / "made.db-wal").read_bytes()
    made.close()
    files.put(path, log=log)
    assert losses(path) == ["has the log (-wal) of another journal beside it"]


def test_what_is_lost_is_refused_and_left_as_it_is(files: Files, path: Path) -> None:
    log = flipped(files.log, offset(files.commits[4]) + 100)
    files.put(path, log=log)
    for _ in range(2):
        with pytest.raises(JournalDamaged, match=r"has lost \d+ commits.*--repair"):
            SqliteJournal(path)
        with pytest.raises(JournalDamaged, match=r"has lost \d+ commits.*--repair"):
            asyncio.run(SqliteJournal(path, read_only=True).runs())
    assert path.read_bytes() == files.main
    assert Path(f"{path}-wal").read_bytes() == log


async def records(path: Path) -> int:
    journal = SqliteJournal(path)
    run = await journal.find_run("run")
    assert run is not None
    (row,) = await journal.trajectories(run)
    await journal.close()
    return row.records


def test_an_accepted_loss_goes_back_to_the_last_commit_that_is_there(
    files: Files, path: Path
) -> None:
    log = flipped(files.log, offset(files.commits[-4]) + 100)
    files.put(path, log=log)
    notice = accept_loss(path)
    assert notice is not None
    assert "has lost 4 commits" in notice
    for suffix, content in (("", files.main), ("-wal", log)):
        assert f"{path.name}{suffix}.kept-1" in notice
        assert Path(f"{path}{suffix}.kept-1").read_bytes() == content
    assert check(path).findings == []
    assert accept_loss(path) is None
    assert asyncio.run(records(path)) == 12 - 4
    assert check(path).findings == []


def test_a_foreign_log_is_put_aside(files: Files, other: Files, path: Path) -> None:
    files.put(path, log=other.log)
    repair(path)
    (kept,) = path.parent.glob("*.kept-*")
    assert kept.read_bytes() == other.log
    assert check(path).findings == []
    asyncio.run(SqliteJournal(path).close())


# --- and nothing else is


def test_a_transaction_that_was_never_finished_is_no_loss(
    files: Files, path: Path, tmp_path: Path
) -> None:
    """Frames behind the last commit, in whatever state."""
    files.put(path)
    rng = random.Random(7)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA cache_size=1")
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("INSERT INTO blobs VALUES (x'00', ?)", (rng.randbytes(20 * PAGE),))
    log = Path(f"{path}-wal").read_bytes()
    connection.close()
    assert len(log) > len(files.log) + 10 * PAGE
    for _ in range(50):
        at = rng.randrange(len(files.log), len(log))
        files.put(path, log=flipped(log, at)[: rng.randrange(len(files.log), len(log))])
        assert check(path).findings == []


@pytest.mark.parametrize("has_witness", [True, False])
def test_a_journal_that_is_moved_or_copied_is_whole(
    files: Files, tmp_path: Path, has_witness: bool
) -> None:
    new = tmp_path / "elsewhere.db"
    files.put(new, witness=files.witness if has_witness else None)
    assert check(new).findings == []
    linked = tmp_path / "linked.db"
    linked.symlink_to(new)
    assert check(linked).findings == []
    assert asyncio.run(records(linked)) == 12
    assert not list(tmp_path.glob("linked.db-*"))


def test_another_journal_under_an_old_name_is_whole(files: Files, other: Files, path: Path) -> None:
    """What the witness knows of the one before says nothing about it."""
    other.put(path, witness=files.witness)
    assert check(path).findings == []
    path.unlink()
    Path(f"{path}-wal").unlink()
    asyncio.run(SqliteJournal(path).close())
    assert check(path).findings == []


def test_a_damaged_witness_says_nothing(files: Files, path: Path) -> None:
    used = [at for at, byte in enumerate(files.witness) if byte]
    for at in used:
        files.put(path, witness=flipped(files.witness, at))
        assert check(path).findings == []
    files.put(path, witness=files.witness[: used[0] + 20])
    assert check(path).findings == []


def test_a_log_that_is_written_meanwhile_gives_no_alarm(path: Path) -> None:
    """Another process commits, copies its log and begins it again; this one looks at it."""
    command = [sys.executable, HERE / "busy_writer.py", path]
    salts = set()
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as busy:
        assert busy.stdout is not None
        busy.stdout.readline()  # It has begun.
        looks = 0
        while (looks := looks + 1) <= 40 or len(salts) < 2:  # Until its log began again.
            assert find_loss(path, thoroughly=True) is None
            salts.add(Path(f"{path}-wal").read_bytes()[16:24])
        busy.communicate()
    assert busy.returncode == 0
    assert check(path).findings == []


def test_writers_that_are_gone_leave_no_rows_for_ever(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.journal.sqlite.committer.KEPT", 3)
    monkeypatch.setattr(checkpoint, "START_BYTES", 10**12)

    async def write(number: int) -> None:
        journal = SqliteJournal(path)
        await journal.put_blob(b"%d" % number)
        await journal.close()

    for number in range(8):
        asyncio.run(write(number))
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT batch FROM batches ORDER BY batch").fetchall()
    assert rows == [(5,), (6,), (7,), (8,)]
    assert Path(f"{path}-witness").stat().st_size == 4096
    assert check(path).findings == []
