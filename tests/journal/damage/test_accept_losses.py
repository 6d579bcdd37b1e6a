"""A repair that is killed at any of its steps and begun again ends as one that was not killed: the
same records, the same files kept, once, and nothing left over."""

import asyncio
import os
import random
import shutil
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.journal.damage.check import accept_loss, check, repair
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.journal.sqlite.losses import find_loss
from holdfast.records.errors import JournalDamaged, RunHeld
from holdfast.testing import crash_points
from support.journal.lost_log import FRAME, Files, killed_writer, offset, taken
from support.records import make_tasks, ready, spec, value

SEED = int(os.environ.get("HOLDFAST_SEED", "0")) or random.randrange(1, 10**6)
TABLES = ("runs", "tasks", "trajectories", "records", "cuts")


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Files:
    return killed_writer(tmp_path_factory.mktemp("written") / "journal.db")


@pytest.fixture(scope="module")
def closed(tmp_path_factory) -> Files:
    """A journal whose log is copied into it."""
    path = tmp_path_factory.mktemp("closed") / "journal.db"

    async def write() -> None:
        journal = SqliteJournal(path)
        _, worker, claims = await ready(journal, "a", "b", samples=2)
        for claim in claims:
            for lease in claim.open:
                await journal.append(lease, [value(n, size=4_000) for n in range(3)])
        await journal.leave(worker)
        await journal.close()

    asyncio.run(write())
    path.with_name("journal.db-wal").touch()
    return taken(path)


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :]


def put_flipped(path: Path, files: Files, closed: Files) -> None:
    frame = files.commits[len(files.commits) // 2]
    files.put(path, log=flipped(files.log, offset(frame) + FRAME + 100))


def put_truncated(path: Path, files: Files, closed: Files) -> None:
    files.put(path, log=files.log[: len(files.log) // 2])


def put_removed(path: Path, files: Files, closed: Files) -> None:
    files.put(path, log=None)


def put_cut(path: Path, files: Files, closed: Files) -> None:
    closed.put(path, main=closed.main[:-17], log=None)


def put_cut_with_log(path: Path, files: Files, closed: Files) -> None:
    """A file that ends within a page, beside a log that has commits of its own."""
    gone_on = _gone_on(path.with_name("elsewhere"), closed)
    gone_on.put(path, main=gone_on.main[:-17])


_made: list[Files] = []


def _gone_on(folder: Path, closed: Files) -> Files:
    """The closed journal, after a writer that was killed; the same one each time."""
    if not _made:
        folder.mkdir()
        path = folder / "journal.db"
        closed.put(path)

        async def write() -> None:
            await SqliteJournal(path).create_run(spec("second"), make_tasks("c"))
            os.kill(os.getpid(), signal.SIGKILL)

        assert in_child(lambda: asyncio.run(write())) == -signal.SIGKILL
        _made.append(taken(path))
        shutil.rmtree(folder)
    return _made[0]


def put_torn(path: Path, files: Files, closed: Files) -> None:
    closed.put(path, log=None)
    with closing(sqlite3.connect(path)) as connection, connection:
        body = "UPDATE records SET body = zeroblob(10) WHERE position = 2"
        assert connection.execute(body).rowcount == 1


DAMAGES = [put_flipped, put_truncated, put_removed, put_cut, put_cut_with_log, put_torn]


def in_child(work: Callable[[], object]) -> int:
    """The exit status of a process that does it: 0, 1 where it is damaged for good, or a signal."""
    child = os.fork()
    if child == 0:
        status = 70
        try:
            work()
            status = 0
        except JournalDamaged:
            status = 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def repaired(path: Path, plan: str = "") -> int:
    """As the command does it."""

    def work() -> None:
        if plan:
            crash_points.arm(plan)
        accept_loss(path)
        repair(path)

    return in_child(work)


def content(path: Path) -> dict[str, list[tuple[object, ...]]]:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        return {
            table: connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()
            for table in TABLES
        }


def beside(path: Path) -> dict[str, bytes]:
    """What lies beside a repaired journal: whatever was kept, and nothing else."""
    ours = (path.name, f"{path.name}-witness", f"{path.name}-shm", f"{path.name}-wal")
    return {file.name: file.read_bytes() for file in path.parent.iterdir() if file.name not in ours}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_repair_is_killed_at_each_of_its_steps(damage, files, closed, tmp_path) -> None:
    calm = tmp_path / "calm" / "journal.db"
    calm.parent.mkdir()
    damage(calm, files, closed)
    assert repaired(calm) == 0
    assert check(calm).findings == []
    steps = 0
    while True:
        path = tmp_path / f"killed-{steps + 1}" / "journal.db"
        path.parent.mkdir()
        damage(path, files, closed)
        status = repaired(path, f"repairing:{steps + 1}")
        if status == 0:
            break
        assert status == -signal.SIGKILL
        steps += 1
        assert repaired(path) == 0, f"step {steps}"
        assert check(path).findings == [], f"step {steps}"
        assert content(path) == content(calm), f"step {steps}"
        assert beside(path) == beside(calm), f"step {steps}"
        # And once more changes nothing.
        assert repaired(path) == 0
        assert beside(path).keys() == beside(calm).keys(), f"step {steps}"
    assert steps >= 2


def test_killed_again_and_again_at_random(files, closed, tmp_path) -> None:
    rng = random.Random(SEED)
    for round_ in range(6):
        damage = rng.choice(DAMAGES)
        calm, path = (tmp_path / f"{round_}-{name}" / "journal.db" for name in ("calm", "killed"))
        for each in (calm, path):
            each.parent.mkdir()
            damage(each, files, closed)
        assert repaired(calm) == 0
        text = f"seed {SEED}, {damage.__name__}"
        for _ in range(20):
            if repaired(path, f"repairing:{rng.randint(1, 6)}") == 0:
                break
        else:
            assert repaired(path) == 0, text
        assert check(path).findings == [], text
        assert content(path) == content(calm), text
        assert beside(path).keys() == beside(calm).keys(), text


def live_worker(path: Path) -> int:
    """The process of a worker that holds a run, once it has written to its log."""
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        assert os.read(reader, 1) == b"x"
        os.close(reader)
        return child

    async def work() -> None:
        journal = SqliteJournal(path)
        _, _, claims = await ready(journal, "a", samples=1)
        # The file grows by it, so that its first page is in the log.
        await journal.append(claims[0].open[0], [value(0, size=40_000)])
        os.write(writer, b"x")
        await asyncio.sleep(3600)

    try:
        asyncio.run(work())
    finally:
        os._exit(70)


def test_a_live_worker_is_seen_in_a_log_that_only_it_can_read(tmp_path) -> None:
    """It knows its log without reading the frames' checksums again; the file alone, to which that
    log is copied meanwhile, may be anything."""
    path = tmp_path / "journal.db"
    worker = live_worker(path)
    try:
        log = path.with_name("journal.db-wal")
        with log.open("r+b") as file:
            file.seek(32 + 16)
            file.write(bytes(8))  # The checksum of the first frame.
        content = path.read_bytes()
        with path.open("r+b") as file:
            file.seek(100)
            file.write(bytes([content[100] ^ 0xFF]))  # The kind of the schema's first page.
        loss = find_loss(path, thoroughly=True)
        assert loss is not None
        assert loss.without_log
        with pytest.raises(RunHeld, match=f"process {worker}"):
            accept_loss(path)
    finally:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)
