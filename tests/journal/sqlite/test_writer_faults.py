"""Group commit: what it promises when any one statement fails, or a row is refused."""

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.journal.damage.check import check
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.records.errors import JournalError, JournalFull, LeaseLost
from holdfast.records.step import Record
from holdfast.records.trajectory import Status
from support.journal.faulty_journal import DISK_FULL, FaultyConnections, When
from support.records import consuming, files_open, joined, make_tasks, ready, spec, value, values

WHENS = (When.BEFORE, When.AFTER)


class Ledger:
    """What a workload was told: which records were acknowledged, which refused."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, list[Record]] = {}
        self.refused: dict[int, list[Record]] = {}
        self.settled: set[int] = set()

    def note(self, trajectory: int, records: list[Record], error: BaseException | None) -> None:
        if error is not None:
            assert isinstance(error, JournalError), error
        where = self.acknowledged if error is None else self.refused
        where.setdefault(trajectory, []).extend(records)


async def workload(path: Path, connect: FaultyConnections) -> Ledger:
    """A small run: claims, concurrent appends, blobs, a delivery. Errors are noted."""
    ledger = Ledger()
    try:
        journal = SqliteJournal(path, connect=connect)
    except JournalError:
        return ledger
    try:
        await _work(journal, ledger)
    except JournalError:
        pass
    finally:
        await journal.close()
    return ledger


async def _work(journal: SqliteJournal, ledger: Ledger) -> None:
    run = await journal.find_run("run")
    if run is None:
        run = await journal.create_run(spec(), make_tasks("a", "b"))
    worker = await joined(journal, run)
    claims = await journal.claim(worker, groups=2)
    leases = [lease for claim in claims for lease in claim.open]

    async def append_values(number: int) -> None:
        lease = leases[number % len(leases)]
        records = values(number, number + 100)
        error: BaseException | None = None
        try:
            await journal.append(lease, records, status=Status.RUNNING)
        except JournalError as raised:
            error = raised
        ledger.note(lease.id, records, error)

    await asyncio.gather(*(append_values(number) for number in range(8)))
    await append_values(8)
    digest = await journal.put_blob(b"snapshot")
    assert await journal.get_blob(digest) == b"snapshot"
    for lease in leases[:2]:
        await journal.append(lease, [], status=Status.RUNNING, settled=False)
    await journal.heartbeat(worker)
    trainer = await consuming(journal, run)
    await journal.next_batch(trainer, 1, groups=1)
    await journal.unsubscribe(trainer)
    await journal.leave(worker)


def _statements(tmp_path: Path) -> list[int]:
    """The numbers of the statements that are to fail: all of them with `make crash`, else the last
    of each kind, and some of the others."""
    counted = FaultyConnections()
    asyncio.run(workload(tmp_path / "clean.db", counted))
    assert len(counted.statements) > 60
    numbers = dict(enumerate(counted.statements, 1))
    if os.environ.get("HOLDFAST_EXHAUSTIVE") == "1":
        return list(numbers)
    last = {kind: number for number, kind in numbers.items()}
    return sorted({*last.values(), *range(1, len(numbers) + 1, 9)})


def _hit(tmp_path: Path, k: int, when: When, times: int) -> tuple[FaultyConnections, Ledger, Path]:
    path = tmp_path / f"{k}-{when}-{times}.db"
    faults = FaultyConnections(k, when=when, times=times)
    return faults, asyncio.run(workload(path, faults)), path


async def _contents(path: Path) -> dict[int, list[Record]]:
    journal = SqliteJournal(path)
    run = await journal.find_run("run")
    result = {}
    if run is not None:
        result = {row.id: records async for row, records in journal.histories(run)}
    await journal.close()
    return result


def _verify(path: Path, ledger: Ledger) -> None:
    """Acknowledged: there, once, in order. Refused: there at most once. Nothing else, no gap."""
    fields = asyncio.run(_contents(path))
    for trajectory, records in fields.items():
        acknowledged = ledger.acknowledged.get(trajectory, [])
        refused = ledger.refused.get(trajectory, [])
        assert [record for record in records if record in acknowledged] == acknowledged
        assert all(record in acknowledged or record in refused for record in records)
        assert len(records) == len(set(records))
    assert set(ledger.acknowledged) <= set(fields)
    assert check(path).findings == []
    assert files_open(path) == 0


@pytest.mark.parametrize("when", WHENS)
@pytest.mark.parametrize("times", [1, 2, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_any_failing_statement_loses_nothing_acknowledged(
    tmp_path: Path, when: When, times: int
) -> None:
    refused = survived = 0
    for k in _statements(tmp_path):
        faults, ledger, path = _hit(tmp_path, k, when, times)
        assert len(faults.statements) >= k, "the fault was never met"
        _verify(path, ledger)
        refused += bool(ledger.refused)
        survived += len(ledger.acknowledged.get(1, [])) > 0 and not ledger.refused
    # One fault is survived by trying once more; a series of them is not, and callers are told.
    assert survived > 0
    assert (refused == 0) if times == 1 else (refused > 0)


@pytest.mark.parametrize("when", WHENS)
async def test_a_commit_whose_answer_is_lost_is_not_repeated(tmp_path: Path, when: When) -> None:
    path = tmp_path / "journal.db"
    faults = FaultyConnections(when=when)
    journal = SqliteJournal(path, connect=faults)
    _, _, claims = await ready(journal, "a", samples=1)
    (lease,) = claims[0].open
    await journal.append(lease, values(0))  # It looks where the log stands; later ones know.
    await journal.append(lease, values(1))
    last = len(faults.statements)
    commit = next(n for n in range(last, 0, -1) if faults.statements[n - 1] == "COMMIT")
    # The next append runs the same statements: its COMMIT is as far away as the last one's.
    begin = max(n for n in range(commit) if faults.statements[n - 1] == "BEGIN IMMEDIATE")
    faults.k = last + (commit - begin) + 1
    await journal.append(lease, values(2))
    assert faults.statements[faults.k - 1] == "COMMIT"
    await journal.append(lease, values(3))
    stored = await journal.history(lease.id)
    await journal.close()
    assert (stored) == values(0, 1, 2, 3)


async def test_an_append_behind_a_failed_one_leaves_no_gap(tmp_path: Path) -> None:
    faults = FaultyConnections()
    journal = SqliteJournal(tmp_path / "journal.db", connect=faults)
    _, _, claims = await ready(journal, "a", samples=1)
    (lease,) = claims[0].open
    await journal.append(lease, values(0))
    faults.fail_from_now()
    first = asyncio.ensure_future(journal.append(lease, values(1)))
    await asyncio.sleep(0)
    first.cancel()  # Nobody is left to mark the lease as broken.
    await asyncio.gather(first, return_exceptions=True)
    await journal._writer.drain()
    faults.heal()
    assert lease.broken is None
    with pytest.raises(JournalError, match="an earlier append"):
        await journal.append(lease, values(2))
    assert await journal.history(lease.id) == values(0)
    await journal.close()


async def test_a_full_disk_says_so_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    faults = FaultyConnections(message=DISK_FULL)
    journal = SqliteJournal(path, connect=faults)
    run, worker, claims = await ready(journal, "a", samples=1)
    (lease,) = claims[0].open
    await journal.append(lease, values(1))
    faults.fail_from_now()
    with pytest.raises(JournalFull, match="free some space and run the same command again"):
        await journal.append(lease, values(2))
    faults.heal()
    await journal.leave(worker)
    (claim,) = await journal.claim(await joined(journal, run), groups=1)
    await journal.append(claim.open[0], values(3))
    assert await journal.history(lease.id) == values(1, 3)
    await journal.close()


async def test_a_disk_that_is_really_full_says_so(tmp_path: Path) -> None:
    """SQLite's own page limit stands for the disk: the same error from the same place."""
    path = tmp_path / "journal.db"

    def small(uri: str):  # type: ignore[no-untyped-def]
        connection = FaultyConnections()(uri)
        connection.execute("PRAGMA max_page_count=60")
        return connection

    journal = SqliteJournal(path, connect=small)
    _, _, claims = await ready(journal, "a", samples=1)
    (lease,) = claims[0].open
    kept = 0
    with suppress(JournalFull):
        while kept < 1_000:
            await journal.append(lease, [value(kept, size=20_000)])
            kept += 1
    assert kept < 1_000
    with pytest.raises(JournalFull, match="free some space"):
        await journal.append(lease, [value(kept)])
    assert len(await journal.history(lease.id)) == kept > 0
    await journal.close()
    report = check(path)
    assert (report.records, report.findings) == (kept, [])


async def test_one_refused_append_does_not_touch_the_rest_of_its_batch(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "journal.db")
    run, worker, claims = await ready(journal, "a", "b", samples=4)
    await journal.leave(worker)
    worker = await joined(journal, run)
    fresh = (await journal.claim(worker, groups=2))[1].open
    stale = claims[0].open
    outcomes = await asyncio.gather(
        *(
            journal.append(lease, values(1))
            for pair in zip(stale, fresh, strict=True)
            for lease in pair
        ),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [LeaseLost, type(None)] * 4
    await journal.close()
