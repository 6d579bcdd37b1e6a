"""When an append has returned, losing power does not lose it.

The real journal writes to a simulated disk; the power fails at random points of what it wrote; the
image is opened by the real journal on real files. With `synchronous=FULL` nothing acknowledged may
be missing. With less, the same test finds losses, so it is able to.
"""

import asyncio
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec import Struct

from holdfast.journal.damage.check import check
from holdfast.journal.sqlite import checkpoint, committer
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.journal.sqlite.losses import find_loss
from holdfast.records.errors import JournalError
from holdfast.records.step import Record
from holdfast.records.trajectory import Status
from support.exhaustive import points
from support.journal.simulated_disk import (
    DiskConnection,
    DiskWitness,
    Event,
    IdleConnection,
    Note,
    SimulatedDisk,
    Sync,
    after_power_loss,
)
from support.records import ready, value

SEED = int(os.environ.get("HOLDFAST_SEED", random.randrange(10**6)))


class Acknowledged(Struct, frozen=True):
    trajectory: int
    records: int


class Verdict(Struct):
    crashes: int = 0
    lost: int = 0
    corrupt: int = 0
    noticed: int = 0
    """Crashes after which the journal itself says that it has lost commits."""
    unfinished: int = 0
    """Crashes at which something was written that nobody had been told of."""


@contextmanager
def simulated(files: dict[str, bytes] | None = None) -> Iterator[SimulatedDisk]:
    disk = SimulatedDisk(f"simulated-{random.randrange(10**9)}", files)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DiskWitness, "disk", disk, raising=False)
        patch.setattr(committer, "Witness", DiskWitness)
        yield disk
    disk.unregister()


@pytest.fixture
def disk() -> Iterator[SimulatedDisk]:
    with simulated() as disk:
        yield disk


def journal_on(disk: SimulatedDisk, path: Path, synchronous: str) -> SqliteJournal:
    def connect(uri: str) -> DiskConnection | IdleConnection:
        if disk.connections:
            return IdleConnection()
        return DiskConnection(disk, str(path), synchronous)

    return SqliteJournal(path, connect=connect)  # type: ignore[arg-type]


async def workload(path: Path, disk: SimulatedDisk, synchronous: str, rng: random.Random) -> None:
    """Concurrent appends of mixed sizes; what is acknowledged is noted in the disk's history."""
    journal = journal_on(disk, path, synchronous)
    _, _, claims = await ready(journal, *map(str, range(4)), samples=2)
    disk.note("planned")

    async def append_records(number: int) -> None:
        lease = claims[number // 2].open[number % 2]
        for step in range(20):
            records: list[Record] = [
                value(step, size=rng.choice([10, 500, 5_000, 30_000]))
                for _ in range(rng.randint(1, 3))
            ]
            await journal.append(lease, records, status=Status.RUNNING)
            disk.note(Acknowledged(lease.id, lease.next_seq))

    await asyncio.gather(*(append_records(number) for number in range(8)))
    await journal.close()


def crash(path: Path, events: list[Event], rng: random.Random, verdict: Verdict) -> None:
    """Loses power after `events`, reopens, and compares with what had been acknowledged."""
    put(path, after_power_loss(events, rng))
    acknowledged: dict[int, int] = {}
    for event in events:
        if isinstance(event, Note) and isinstance(event.what, Acknowledged):
            acknowledged[event.what.trajectory] = event.what.records
    verdict.crashes += 1
    if find_loss(path, thoroughly=True) is not None:
        verdict.noticed += 1
        return
    try:
        fields = asyncio.run(read(path))
        damage = check(path).findings
    except JournalError:
        verdict.corrupt += 1
        return
    verdict.corrupt += bool(damage)
    verdict.lost += any(fields.get(key, 0) < records for key, records in acknowledged.items())
    verdict.unfinished += any(fields[field] > acknowledged.get(field, 0) for field in fields)


def put(path: Path, files: dict[str, bytes]) -> None:
    """These files, and no others, are on the real disk."""
    for suffix in ("", "-wal", "-shm", "-witness"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    for file, content in files.items():
        Path(file).write_bytes(content)


async def read(path: Path) -> dict[int, int]:
    journal = SqliteJournal(path)
    try:
        run = await journal.find_run("run")
        if run is None:
            return {}
        return {row.id: len(records) async for row, records in journal.histories(run)}
    finally:
        await journal.close()


def simulate(path: Path, disk: SimulatedDisk, synchronous: str, crashes: int) -> Verdict:
    print(f"HOLDFAST_SEED={SEED}")
    rng = random.Random(SEED)
    asyncio.run(workload(path, disk, synchronous, rng))
    planned = disk.events.index(Note("planned"))
    verdict = Verdict()
    for _ in range(crashes):
        crash(path, disk.events[: rng.randrange(planned, len(disk.events))], rng, verdict)
    return verdict


@pytest.fixture(autouse=True)
def often_checkpointed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is moved into the file many times within the workload, by the writer itself."""
    monkeypatch.setattr(checkpoint, "START_BYTES", 10**12)
    monkeypatch.setattr(checkpoint, "MOST_BYTES", 300_000)


def test_losing_power_loses_nothing_acknowledged(tmp_path: Path, disk: SimulatedDisk) -> None:
    path = tmp_path / "journal.db"
    verdict = simulate(path, disk, "FULL", points(80, 200))
    assert (verdict.lost, verdict.corrupt, verdict.noticed) == (0, 0, 0)
    # The crashes were not all at quiet moments, and the log was moved into the file on the way.
    assert verdict.unfinished > 0
    assert disk.events[disk.events.index(Note("planned")) :].count(Sync(str(path))) >= 3


def test_the_simulation_finds_the_losses_of_a_weaker_setting(
    tmp_path: Path, disk: SimulatedDisk
) -> None:
    verdict = simulate(tmp_path / "journal.db", disk, "NORMAL", 60)
    assert verdict.lost + verdict.noticed > 0
    assert verdict.corrupt == 0


def test_the_simulation_finds_the_damage_of_no_syncing(tmp_path: Path, disk: SimulatedDisk) -> None:
    verdict = simulate(tmp_path / "journal.db", disk, "OFF", 60)
    assert verdict.lost + verdict.corrupt + verdict.noticed > 0


@pytest.mark.exhaustive
def test_losing_power_thousands_of_times(tmp_path: Path, disk: SimulatedDisk) -> None:
    verdict = simulate(tmp_path / "journal.db", disk, "FULL", 3_000)
    assert (verdict.lost, verdict.corrupt, verdict.noticed) == (0, 0, 0)


async def go_on(path: Path, disk: SimulatedDisk, rng: random.Random) -> None:
    """Another process goes on where the power failed, over what is left of the log."""
    journal = journal_on(disk, path, "FULL")
    for _ in range(rng.randrange(1, 12)):
        await journal.put_blob(rng.randbytes(rng.choice([10, 5_000, 60_000])))
    await journal.close()


def test_losing_power_again_and_again_is_never_taken_for_damage(
    tmp_path: Path, disk: SimulatedDisk
) -> None:
    """What an unfinished transaction left in the log lies behind those that came after it."""
    print(f"HOLDFAST_SEED={SEED}")
    rng, path = random.Random(SEED), tmp_path / "journal.db"
    asyncio.run(workload(path, disk, "FULL", rng))
    planned, events = disk.events.index(Note("planned")), disk.events
    for _ in range(points(8, 15)):
        image = after_power_loss(events[: rng.randrange(planned, len(events))], rng)
        for _ in range(4):
            put(path, image)
            assert find_loss(path, thoroughly=True) is None
            assert check(path).findings == []
            with simulated(image) as again:
                asyncio.run(go_on(path, again, rng))
            known = 2 * len(image)
            image = after_power_loss(again.events[: rng.randrange(known, len(again.events))], rng)
