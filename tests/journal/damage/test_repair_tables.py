"""A torn log is found with its position, cut to its last good record, never silently skipped."""

import asyncio
from pathlib import Path

import pytest

from holdfast.journal.damage.check import check, repair
from holdfast.journal.sql.journal import Journal
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.records.errors import JournalCorrupt, LeaseLost, RunHeld
from holdfast.records.history import History
from holdfast.records.step import Record
from holdfast.records.trajectory import Status
from support.records import (
    finished,
    generated,
    joined,
    make_tasks,
    ready,
    scored,
    someone_else,
    spec,
    sql,
    started,
    values,
)

LOG: list[Record] = [started(), generated("0"), *values(1, 2), finished(), scored()]
VICTIM, NEIGHBOUR = 2, 1


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A closed journal with two settled trajectories of six records."""
    path = tmp_path / "journal.db"

    async def fill() -> None:
        journal = SqliteJournal(path)
        _, worker, claims = await ready(journal, "a", samples=2)
        for lease in claims[0].open:
            await journal.append(lease, LOG, status=Status.COMPLETED, settled=True)
        await journal.leave(worker)
        await journal.close()

    asyncio.run(fill())
    return path


def position(path: Path, seq: int) -> int:
    ((result,),) = sql(
        path, "SELECT position FROM records WHERE trajectory = ? AND seq = ?", VICTIM, seq
    )
    return int(str(result))


def tear(path: Path, seq: int) -> None:
    """The tail of the record never reached the disk."""
    sql(
        path,
        "UPDATE records SET body = substr(body, 1, length(body) / 2) "
        "WHERE trajectory = ? AND seq = ?",
        VICTIM,
        seq,
    )


def flip(path: Path, seq: int) -> None:
    """One bit of the file itself, as a disk would do it."""
    ((body,),) = sql(path, "SELECT body FROM records WHERE trajectory = ? AND seq = ?", VICTIM, seq)
    assert isinstance(body, bytes)
    content = bytearray(path.read_bytes())
    # Both trajectories hold the same bytes; a page fills from its end, so the later come first.
    assert content.count(body) == 2
    content[content.find(body) + len(body) // 2] ^= 0x10
    path.write_bytes(content)


def lose(path: Path, seq: int) -> None:
    sql(path, "DELETE FROM records WHERE trajectory = ? AND seq = ?", VICTIM, seq)


def move(path: Path, seq: int) -> None:
    """A whole record, in a place that is not its own."""
    sql(
        path,
        "UPDATE records SET body = o.body, crc = o.crc FROM (SELECT body, crc FROM records "
        "WHERE trajectory = ?1 AND seq = ?2) o WHERE trajectory = ?3 AND seq = ?2",
        NEIGHBOUR,
        seq,
        VICTIM,
    )


DAMAGES = [tear, flip, lose, move]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("seq", [0, 1, 3])
def test_damage_is_found_where_it_is(path: Path, damage, seq: int) -> None:  # type: ignore[no-untyped-def]
    where = position(path, seq if damage is not lose else seq + 1)
    damage(path, seq)
    report = check(path)
    (finding,) = report.findings
    assert finding.where == f"run/a/1, record {seq} (position {where})"
    assert "repair" in finding.remedy
    assert report.records == 12 - (damage is lose)


@pytest.mark.parametrize("damage", DAMAGES)
async def test_reading_a_damaged_log_raises_with_the_position(path: Path, damage) -> None:  # type: ignore[no-untyped-def]
    damage(path, 2)
    journal = SqliteJournal(path)
    with pytest.raises(JournalCorrupt, match=r"record 2 of trajectory 2 \(position \d+\)"):
        await journal.history(VICTIM)
    assert await journal.history(NEIGHBOUR) == LOG
    await journal.close()


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("seq", [0, 3])
async def test_repairing_cuts_to_the_last_good_record(path: Path, damage, seq: int) -> None:  # type: ignore[no-untyped-def]
    damage(path, seq)
    lost = 6 - seq - (damage is lose)
    (cut,) = repair(path)
    assert (cut.trajectory, cut.id, cut.seq, cut.lost) == ("run/a/1", VICTIM, seq, lost)
    report = check(path)
    assert report.findings == []
    assert (report.records, report.cuts) == (6 + seq, lost)
    assert sql(path, "SELECT count(*) FROM cuts WHERE reason != ''") == [(lost,)]
    assert repair(path) == []
    journal = SqliteJournal(path)
    assert await journal.history(NEIGHBOUR) == LOG
    assert await journal.history(VICTIM) == LOG[:seq]
    run = await journal.find_run("run")
    assert run is not None
    (claim,) = await journal.claim(await joined(journal, run), groups=1)
    assert [lease.key.sample for lease in claim.open] == [1]
    await journal.append(claim.open[0], LOG[seq:], status=Status.COMPLETED, settled=True)
    assert await journal.history(VICTIM) == LOG
    await journal.close()
    assert check(path).findings == []


def test_a_log_that_is_cut_behind_its_end_keeps_its_outcome(path: Path) -> None:
    tear(path, 5)
    (cut,) = repair(path)
    assert cut.status is Status.COMPLETED
    assert sql(path, "SELECT status, settled FROM trajectories WHERE id = ?", VICTIM) == [(2, None)]
    assert check(path).findings == []


async def test_a_worker_cuts_what_it_claims(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    run, worker, claims = await ready(journal, "a", samples=2)
    for lease in claims[0].open:
        await journal.append(lease, LOG[:4], status=Status.RUNNING)
    await journal.leave(worker)
    tear(path, 2)
    (claim,) = await journal.claim(await joined(journal, run), groups=1)
    neighbour, victim = claim.open
    assert await journal.cut(neighbour) is None
    cut = await journal.cut(victim)
    assert await journal.cut(victim) is None
    assert (victim.next_seq, victim.status) == (2, Status.RUNNING)
    await journal.append(victim, values(7))
    assert await journal.history(victim.id) == [*LOG[:2], *values(7)]
    assert await journal.history(neighbour.id) == LOG[:4]
    await journal.close()
    assert cut is not None
    assert (cut.trajectory, cut.seq, cut.lost) == ("run/a/1", 2, 2)
    assert "checksum" in cut.reason


async def test_a_log_that_is_cut_at_its_beginning_is_pending_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    run, worker, claims = await ready(journal, "a", samples=2)
    await journal.append(claims[0].open[1], LOG[:3], status=Status.RUNNING)
    await journal.leave(worker)
    tear(path, 0)
    (claim,) = await journal.claim(await joined(journal, run), groups=1)
    await journal.cut(claim.open[1])
    assert claim.open[1].status is Status.PENDING
    assert History(await journal.history(VICTIM)).status is Status.PENDING
    await journal.close()


@pytest.mark.parametrize("lives", [True, False])
async def test_repair_waits_for_no_live_worker(path: Path, lives: bool) -> None:
    tear(path, 2)
    journal: Journal = SqliteJournal(path)
    run = await journal.find_run("run")
    assert run is not None
    await journal.join(run, someone_else(), lease_seconds=600 if lives else -1, share=True)
    await journal.close()
    if lives:
        with pytest.raises(RunHeld, match=r"process 1 on elsewhere.*lease ends in \d+ s"):
            repair(path)
        assert len(check(path).findings) == 1
    else:
        assert len(repair(path)) == 1


async def test_a_holder_from_before_the_repair_is_fenced(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    run = await journal.create_run(spec(samples=2), make_tasks("a"))
    asleep = await journal.join(run, someone_else(), lease_seconds=0.02, share=True)
    (claim,) = await journal.claim(asleep, groups=1)
    await journal.append(claim.open[1], LOG[:4], status=Status.RUNNING)
    await asyncio.sleep(0.05)
    tear(path, 3)
    assert len(repair(path)) == 1
    with pytest.raises(LeaseLost):
        await journal.append(claim.open[1], values(9))
    await journal.close()
    assert check(path).findings == []
