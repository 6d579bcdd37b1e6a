"""What the writer's connections survive: a disk that fails to sync, another working directory, a
file that is gone, a fork, threads that cannot be had, a close that was cancelled."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.journal.damage.check import check
from holdfast.journal.sqlite import checkpoint
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.journal.types import Lease
from holdfast.records.errors import JournalError
from support.paths import TESTS
from support.records import files_open, ready, value, values

Body = Callable[[SqliteJournal, Lease], Awaitable[None]]


def subject(path: Path, body: Body) -> None:
    async def main() -> None:
        journal = SqliteJournal(path)
        _, _, claims = await ready(journal, "a", samples=1)
        await body(journal, claims[0].open[0])
        await journal.close()

    asyncio.run(main())


# While the file $FAILING exists, no sync of a journal works.
FAILING_SYNC = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int fails(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = 0;
    return strstr(path, "journal.db") && access(getenv("FAILING"), F_OK) == 0;
}
int fdatasync(int fd) {
    int (*real)(int) = dlsym(RTLD_NEXT, "fdatasync");
    return fails(fd) ? (errno = EIO, -1) : real(fd);
}
int fsync(int fd) {
    int (*real)(int) = dlsym(RTLD_NEXT, "fsync");
    return fails(fd) ? (errno = EIO, -1) : real(fd);
}
"""

ON_A_FAILING_DISK = """
import asyncio, os, sys
from pathlib import Path
from support.records import ready, values
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.records.errors import JournalError

async def main():
    journal = SqliteJournal(Path("journal.db"))
    _, _, claims = await ready(journal, *"abc", samples=1)
    leases = [claim.open[0] for claim in claims]
    for lease in leases:
        await journal.append(lease, values(0))
    failing = Path(os.environ["FAILING"])
    failing.touch()
    for lease in leases[:2]:
        try:
            await journal.append(lease, values(1))
        except JournalError:
            print("refused")
        else:
            print("acknowledged")
    failing.unlink()
    await journal.append(leases[2], values(1))
    for lease in leases:
        print(len(await journal.history(lease.id)))
    await journal.close()

asyncio.run(main())
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_what_could_not_be_synced_is_not_acknowledged(tmp_path: Path) -> None:
    library = tmp_path / "failing.so"
    build = ["cc", "-shared", "-fPIC", "-xc", "-", "-o", str(library), "-ldl"]
    subprocess.run(build, input=FAILING_SYNC, text=True, check=True)
    env = {
        **os.environ,
        "LD_PRELOAD": str(library),
        "FAILING": str(tmp_path / "failing"),
        "PYTHONPATH": str(TESTS),
    }
    process = subprocess.run(
        [sys.executable, "-c", ON_A_FAILING_DISK], cwd=tmp_path, env=env, text=True,
        capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert process.stdout.split() == ["refused", "refused", "1", "1", "2"]
    assert check(tmp_path / "journal.db").findings == []


def test_another_working_directory_means_no_other_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(here)

    async def body(journal: SqliteJournal, lease: Lease) -> None:
        await journal.append(lease, values(0))
        os.chdir(elsewhere)
        # As after an error: the next append connects anew.
        journal._committer.drop()
        await journal.append(lease, values(1))
        assert await journal.history(lease.id) == values(0, 1)

    subject(Path("journal.db"), body)
    assert list(elsewhere.iterdir()) == []
    assert check(here / "journal.db").findings == []


@pytest.mark.parametrize("how", ["deleted", "moved", "replaced"])
def test_a_file_that_is_gone_acknowledges_nothing(tmp_path: Path, how: str) -> None:
    path = tmp_path / "journal.db"

    async def body(journal: SqliteJournal, lease: Lease) -> None:
        await journal.append(lease, values(0))
        if how == "deleted":
            path.unlink()
        else:
            path.rename(tmp_path / "other.db")
        if how == "replaced":
            shutil.copy(tmp_path / "other.db", path)
        with pytest.raises(JournalError, match="was deleted, moved or replaced while it was in"):
            await journal.append(lease, values(1))
        with pytest.raises(JournalError, match="was deleted, moved or replaced"):
            await journal.put_blob(b"x")

    subject(path, body)


def test_a_forked_process_is_told_to_open_it_anew(tmp_path: Path) -> None:
    script = """
import asyncio, os, sys
from pathlib import Path
from support.records import ready, values
from holdfast.journal.sqlite.journal import SqliteJournal

async def main():
    journal = SqliteJournal(Path("journal.db"))
    _, _, claims = await ready(journal, "a", samples=1)
    lease = claims[0].open[0]
    await journal.append(lease, values(0))
    child = os.fork()
    if not child:
        try:
            asyncio.run(asyncio.wait_for(journal.append(lease, values(1)), 30))
        except Exception as error:
            print(error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    lease.broken = None
    await journal.append(lease, values(1))
    await journal.close()

asyncio.run(main())
"""
    env = {**os.environ, "PYTHONPATH": str(TESTS)}
    process = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=env, text=True,
        capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert "was opened before this process was forked; open it anew" in process.stdout


def without_threads(monkeypatch: pytest.MonkeyPatch, name: str) -> Callable[[], None]:
    """No thread of this name can be started, until what is returned is called."""
    start, is_full = threading.Thread.start, True

    def refusing(thread: threading.Thread) -> None:
        if is_full and thread.name == name:
            raise RuntimeError("can't start new thread")
        start(thread)

    def end() -> None:
        nonlocal is_full
        is_full = False

    monkeypatch.setattr(threading.Thread, "start", refusing)
    return end


async def test_a_writer_that_cannot_start_is_told_and_the_next_call_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = without_threads(monkeypatch, "holdfast-journal")
    journal = SqliteJournal(tmp_path / "journal.db")
    with pytest.raises(JournalError, match="can't start new thread"):
        await journal.put_blob(b"x")
    end()
    assert await journal.get_blob(await journal.put_blob(b"x")) == b"x"
    await journal.close()


def test_a_log_that_no_thread_can_copy_is_copied_by_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "START_BYTES", 100_000)
    monkeypatch.setattr(checkpoint, "MOST_BYTES", 1_000_000)
    without_threads(monkeypatch, "holdfast-checkpoint")
    path = tmp_path / "journal.db"

    async def body(journal: SqliteJournal, lease: Lease) -> None:
        for number in range(100):
            await journal.append(lease, [value(number, size=50_000)])
        assert path.with_name("journal.db-wal").stat().st_size < 3_000_000

    subject(path, body)
    assert check(path).findings == []


async def test_a_close_that_was_cancelled_can_be_repeated(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    _, _, claims = await ready(journal, "a", samples=1)
    lease = claims[0].open[0]
    writes = [asyncio.create_task(journal.append(lease, [value(n)])) for n in range(50)]
    await asyncio.sleep(0)
    for steps in range(8):
        closing = asyncio.create_task(journal.close())
        for _ in range(steps):
            await asyncio.sleep(0)
        closing.cancel()
        with suppress(asyncio.CancelledError):
            await closing
    await journal.close()
    await asyncio.gather(*writes)
    for late in (journal.history(lease.id), journal.put_blob(b"x")):
        with pytest.raises(JournalError, match="is closed"):
            await late
    assert files_open(path) == 0
    assert check(path).findings == []


def test_a_copy_without_a_log_gets_one(tmp_path: Path) -> None:
    async def body(journal: SqliteJournal, lease: Lease) -> None:
        await journal.append(lease, values(0))

    subject(tmp_path / "journal.db", body)
    copy = tmp_path / "copy.db"
    with sqlite3.connect(tmp_path / "journal.db") as connection:
        connection.execute("VACUUM INTO ?", (str(copy),))
    connection.close()
    asyncio.run(SqliteJournal(copy).close())
    connection = sqlite3.connect(copy)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()
