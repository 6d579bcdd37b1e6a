"""A log whose head is lost is no empty log: readers and claims notice, and nothing is lost."""

import asyncio
from pathlib import Path

import pytest

from holdfast.engine.report import build
from holdfast.journal.damage.check import check, repair
from holdfast.journal.sql import runs
from holdfast.journal.sql.store import Store
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.journal.types import Lease
from holdfast.records.errors import JournalCorrupt, JournalError
from holdfast.records.run import Run
from holdfast.records.step import Record
from holdfast.records.trajectory import Status
from support.records import finished, joined, ready, settle_one, sql, started, values

LOG: list[Record] = [started(), *values(1, 2, 3, 4)]
VICTIM = 2


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A closed journal: a trajectory that is settled, one that is open, one not begun."""
    path = tmp_path / "journal.db"

    async def fill() -> None:
        journal = SqliteJournal(path)
        _, worker, claims = await ready(journal, "a", "b", "c", samples=1)
        await settle_one(journal, claims[0].open[0], status=Status.FAILED)
        await journal.append(claims[1].open[0], LOG, status=Status.RUNNING)
        await journal.leave(worker)
        await journal.close()

    asyncio.run(fill())
    return path


def lose_head(path: Path, trajectory: int = VICTIM) -> None:
    """What the trajectory's row says of its log."""
    sql(path, "UPDATE trajectories SET length = 0, last = 0 WHERE id = ?", trajectory)


async def opened(path: Path) -> tuple[SqliteJournal, Run]:
    journal = SqliteJournal(path)
    run = await journal.find_run("run")
    assert run is not None
    return journal, run


async def claimed(journal: SqliteJournal, run: Run) -> dict[int, Lease]:
    claims = await journal.claim(await joined(journal, run), groups=3)
    return {lease.id: lease for claim in claims for lease in claim.open}


async def test_readers_are_told(path: Path) -> None:
    lose_head(path)
    journal, run = await opened(path)
    with pytest.raises(JournalCorrupt, match=r"record 5 of trajectory 2 .*its head is lost"):
        await journal.history(VICTIM)
    with pytest.raises(JournalCorrupt, match="run/b/0 is corrupt"):
        _ = [row async for row in journal.histories(run)]
    assert [row.records for row in await journal.trajectories(run)] == [2, 5, 0]
    (message,) = (await build(journal, run)).corrupt
    assert message.startswith("run/b/0: ")
    await journal.close()


async def test_whoever_claims_it_does_not_begin_it_again(path: Path) -> None:
    lose_head(path)
    journal, run = await opened(path)
    leases = await claimed(journal, run)
    assert {number: lease.next_seq for number, lease in leases.items()} == {2: 5, 3: 0}
    with pytest.raises(JournalError):
        await journal.append(leases[VICTIM], values(9))
    await journal.close()
    assert sql(path, "SELECT count(*) FROM records WHERE trajectory = ?", VICTIM) == [(5,)]


async def test_its_holder_mends_it_and_goes_on(path: Path) -> None:
    lose_head(path)
    journal, run = await opened(path)
    lease = (await claimed(journal, run))[VICTIM]
    cut = await journal.cut(lease)
    assert cut is not None
    assert (cut.seq, cut.lost, cut.status) == (5, 0, Status.RUNNING)
    await journal.append(lease, values(5))
    assert await journal.history(VICTIM) == [*LOG, *values(5)]
    assert await journal.cut(lease) is None
    await journal.close()


async def test_a_repair_loses_nothing(path: Path) -> None:
    lose_head(path)
    assert {finding.where for finding in check(path).findings} == {"run/b/0"}
    assert repair(path) == []
    assert check(path).findings == []
    assert sql(path, "SELECT id, length FROM trajectories") == [(1, 2), (2, 5), (3, 0)]
    journal, _ = await opened(path)
    assert await journal.history(VICTIM) == LOG
    await journal.close()


def test_a_settled_trajectory_stays_settled(path: Path) -> None:
    before = sql(path, "SELECT status, settled FROM trajectories WHERE id = 1")
    lose_head(path, 1)
    repair(path)
    assert check(path).findings == []
    assert sql(path, "SELECT status, settled FROM trajectories WHERE id = 1") == before


def test_a_failed_one_is_not_opened_again_before_it_is_mended(path: Path) -> None:
    lose_head(path, 1)

    async def reopen() -> int:
        journal, run = await opened(path)
        try:
            return await journal.reopen(run, reason="again")
        finally:
            await journal.close()

    with pytest.raises(JournalCorrupt, match=r"record 2 of trajectory 1 .*its head is lost"):
        asyncio.run(reopen())
    assert sql(path, "SELECT count(*) FROM records WHERE trajectory = 1") == [(2,)]
    repair(path)
    assert asyncio.run(reopen()) == 1
    assert check(path).findings == []


@pytest.mark.parametrize("number", [None, "x'00'", "'text'", "1.5"])
async def test_a_head_that_counts_no_number_is_a_bad_record(path: Path, number: str | None) -> None:
    sql(path, "CREATE TABLE sound AS SELECT * FROM trajectories")
    sql(path, "DROP TABLE trajectories")
    columns = "run, task, sample, status, epoch, owner, settled, length, last, summary"
    sql(path, f"CREATE TABLE trajectories(id INTEGER PRIMARY KEY, {columns})")
    sql(path, "INSERT INTO trajectories SELECT * FROM sound")
    sql(path, f"UPDATE trajectories SET length = {number or 'NULL'} WHERE id = {VICTIM}")
    journal, run = await opened(path)
    with pytest.raises(JournalCorrupt, match="record 5 of trajectory 2"):
        await journal.history(VICTIM)
    lease = (await claimed(journal, run))[VICTIM]
    cut = await journal.cut(lease)
    assert cut is not None
    assert (cut.seq, cut.lost) == (5, 0)
    assert await journal.history(VICTIM) == LOG
    await journal.close()


async def test_an_empty_log_of_a_begun_trajectory_is_no_lost_head(path: Path) -> None:
    """Nothing but a status may be written, too."""
    journal, run = await opened(path)
    leases = await claimed(journal, run)
    await journal.append(leases[3], (), status=Status.RUNNING)
    assert await journal.history(3) == []
    assert await journal.cut(leases[3]) is None
    await journal.append(leases[3], [started(), finished()])
    await journal.close()


def test_claims_look_for_no_lost_head_where_none_can_be(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass over all records is made for a begun log without a length, and for no other."""
    passes: list[list[int]] = []
    count = runs.uncounted

    def counted(store: Store, trajectories: list[int]) -> dict[int, int]:
        passes.extend([trajectories] if trajectories else [])
        return count(store, trajectories)

    monkeypatch.setattr(runs, "uncounted", counted)

    async def body() -> None:
        journal, run = await opened(path)
        await claimed(journal, run)
        await journal.trajectories(run)
        await journal.close()

    asyncio.run(body())
    assert passes == []
    lose_head(path)
    sql(path, "DELETE FROM workers")
    asyncio.run(body())
    assert passes == [[VICTIM], [VICTIM]]
