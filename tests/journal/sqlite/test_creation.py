"""A journal that is new is whole or not there, whenever the power fails.

And a file that was cut short afterwards is damaged, for every command in the same way.
"""

import asyncio
import os
import random
from pathlib import Path

import pytest

from holdfast.journal.damage.check import check, repair
from holdfast.journal.files.wal import PAGE_SIZE
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.journal.sqlite.schema import prepare
from holdfast.records.errors import JournalDamaged, JournalError
from support.journal.simulated_disk import DiskConnection, SimulatedDisk, after_power_loss
from support.records import make_tasks, ready, spec, value


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


async def used(path: Path) -> None:
    journal = SqliteJournal(path)
    await journal.create_run(spec(), make_tasks("a"))
    await journal.close()


def clear(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


def errors_of(path: Path) -> str:
    """What a reader is told; `check` says the same."""
    texts = []
    for read in (
        lambda: check(path),
        lambda: asyncio.run(SqliteJournal(path, read_only=True).runs()),
    ):
        try:
            read()
            texts.append("")
        except JournalError as error:
            texts.append(str(error))
    first, second = texts
    assert first == second
    return first


def test_power_lost_while_an_older_version_creates_the_file(path: Path) -> None:
    """It did so in place. Whatever is there is an empty journal, or a whole one."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    rng, disk = random.Random(seed), SimulatedDisk(f"creation-{seed}")
    connection = DiskConnection(disk, str(path), "FULL")
    prepare(connection, path)  # type: ignore[arg-type]
    connection.close()
    parts = set()
    for length in range(0, len(disk.events), 2):
        clear(path.parent)
        for file, content in after_power_loss(disk.events[:length], rng).items():
            Path(file).write_bytes(content)
        if path.exists():
            parts.add(errors_of(path).partition(" is ")[2].partition(":")[0])
        asyncio.run(used(path))
        assert check(path).findings == []
    assert parts == {"", "empty"}
    disk.unregister()


def test_a_creation_that_was_interrupted_blames_nobodys_rights(path: Path) -> None:
    """SQLite's own journal of a file that was about to become one with a log."""
    disk = SimulatedDisk("creation")
    connection = DiskConnection(disk, str(path), "FULL")
    prepare(connection, path)  # type: ignore[arg-type]
    connection.close()
    hot = next(
        length
        for length in range(len(disk.events))
        if f"{path}-journal" in (files := after_power_loss(disk.events[:length], random.Random(0)))
        and files[f"{path}-journal"].strip(b"\0")
        and files.get(str(path))
    )
    for file, content in after_power_loss(disk.events[:hot], random.Random(0)).items():
        Path(file).write_bytes(content)
    disk.unregister()
    assert "is empty" in errors_of(path)
    assert "begins it" in errors_of(path)
    asyncio.run(used(path))
    assert check(path).findings == []


@pytest.mark.parametrize("left", ["-new", "-new-wal", "-new-shm", "-journal", "-wal", "-shm"])
def test_what_was_left_beside_a_file_that_is_not_there_does_no_harm(path: Path, left: str) -> None:
    Path(f"{path}{left}").write_bytes(b"left by somebody")
    asyncio.run(used(path))
    kept = {file.name for file in path.parent.iterdir()}
    assert check(path).findings == []
    assert kept == {path.name, f"{path.name}-witness"} | (
        {f"{path.name}-wal.kept-1"} if left == "-wal" else set()
    )


def test_an_empty_file_keeps_its_rights(path: Path) -> None:
    path.touch(mode=0o640)
    path.chmod(0o640)
    asyncio.run(used(path))
    modes = {file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    assert modes == {0o640}


def test_folders_that_are_made_are_synced_into_their_parents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the power takes a journal away with the folder that it lies in."""
    done: list[str] = []
    sync, rename = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        done.append(f"sync {os.readlink(f'/proc/self/fd/{descriptor}')}")
        sync(descriptor)

    def renamed(source: Path, target: Path) -> None:
        done.append(f"rename {source} {target}")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    path = tmp_path / "one" / "two" / "journal.db"
    SqliteJournal(path)
    assert done == [
        f"sync {tmp_path}",
        f"sync {tmp_path / 'one'}",
        f"sync {path}-new",
        f"rename {path}-new {path}",
        f"sync {path.parent}",
    ]


# --- a file that was cut


async def filled(path: Path, tasks: int) -> None:
    journal = SqliteJournal(path)
    _, worker, claims = await ready(journal, *map(str, range(tasks)), samples=2)
    for claim in claims:
        for lease in claim.open:
            await journal.append(lease, [value(number, size=4_000) for number in range(3)])
    await journal.leave(worker)
    await journal.close()


@pytest.mark.parametrize("tasks", [1, 4, 40])
def test_a_file_cut_inside_a_page_is_damaged_for_every_command(path: Path, tasks: int) -> None:
    asyncio.run(filled(path, tasks))
    whole, witness = path.read_bytes(), Path(f"{path}-witness").read_bytes()
    mended = 0
    for missing in (1, 17, 600, 5_000, PAGE_SIZE // 2, PAGE_SIZE - 1):
        clear(path.parent)
        path.write_bytes(whole[:-missing])
        Path(f"{path}-witness").write_bytes(witness)
        finding = check(path).findings[0]
        assert finding.what == f"is cut: {missing:,} bytes at its end are missing"
        assert "report" not in finding.remedy
        for read_only in (False, True):
            with pytest.raises(JournalDamaged, match="is cut"):
                asyncio.run(SqliteJournal(path, read_only=read_only).runs())
        if not is_mended(path):
            assert path.read_bytes() == whole[:-missing]
            assert check(path).findings
            continue
        mended += 1
        assert check(path).findings == []
        assert Path(f"{path}.kept-1").read_bytes() == whole[:-missing]
        asyncio.run(used_again(path))
        assert check(path).findings == []
    assert mended


def is_mended(path: Path) -> bool:
    try:
        repair(path)
    except JournalDamaged:
        return False
    return True


async def used_again(path: Path) -> None:
    journal = SqliteJournal(path)
    run = await journal.find_run("run")
    assert run is not None
    await journal.put_blob(b"more")
    await journal.close()


def test_a_page_that_the_log_still_has_is_not_missing(path: Path) -> None:
    """The power failed while the log was copied into the file."""
    log = b""

    async def write() -> None:
        nonlocal log
        journal = SqliteJournal(path)
        await journal.create_run(spec(), make_tasks("a"))
        await journal.put_blob(os.urandom(5 * PAGE_SIZE))
        log = Path(f"{path}-wal").read_bytes()
        await journal.close()

    asyncio.run(write())
    whole, witness = path.read_bytes(), Path(f"{path}-witness").read_bytes()
    for missing in (1, 5_000, PAGE_SIZE - 1):
        path.write_bytes(whole[:-missing])
        Path(f"{path}-wal").write_bytes(log)
        Path(f"{path}-witness").write_bytes(witness)
        assert check(path).findings == []
        asyncio.run(used_again(path))
        assert check(path).findings == []
        assert path.stat().st_size == len(whole)
