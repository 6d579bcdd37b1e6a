"""What is kept of a settled trajectory is written with its settlement, checked, and repaired."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec import structs

from holdfast.engine.report import build
from holdfast.journal.damage.check import check, repair
from holdfast.journal.rows import kept_summary, summary_body
from holdfast.journal.sql.journal import Journal
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.records.errors import JournalError
from holdfast.records.history import History
from holdfast.records.samples.summary import Summary, summarize
from holdfast.records.step import Record
from holdfast.records.trajectory import Status
from support.engine.local_run import LocalRun, turn
from support.journal.faulty_journal import FaultyConnections, When
from support.records import finished, generated, ready, scored, sql, started

LOG: list[Record] = [started(), generated("0"), finished(), scored()]
KEPT = "SELECT id, settled, summary FROM trajectories ORDER BY id"


async def settle_two(journal: Journal) -> None:
    _, worker, claims = await ready(journal, "a", samples=2)
    for lease in claims[0].open:
        lease.summary = summarize(History(LOG))
        await journal.append(lease, LOG, status=Status.COMPLETED, settled=True)
    await journal.leave(worker)


async def filled(path: Path, faults: FaultyConnections | None = None) -> None:
    journal = SqliteJournal(path, connect=faults) if faults else SqliteJournal(path)
    try:
        await settle_two(journal)
    finally:
        await journal.close()


def keep(path: Path, body: bytes) -> None:
    sql(path, "UPDATE trajectories SET summary = ? WHERE id = 1", body)


def wrong() -> Summary:
    return structs.replace(summarize(History(LOG)), reward=0.25)


def test_no_settlement_is_without_its_summary_whichever_statement_fails(tmp_path: Path) -> None:
    counted = FaultyConnections()
    asyncio.run(filled(tmp_path / "clean.db", counted))
    first = next(
        number
        for number, statement in enumerate(counted.statements, 1)
        if "summary" in statement and "UPDATE" in statement
    )
    for k in range(first - 4, first + 5):
        for when in When:
            path = tmp_path / f"{k}-{when}.db"
            with suppress(JournalError):  # Then the trajectory may not be settled.
                asyncio.run(filled(path, FaultyConnections(k, when=when, times=3)))
            for number, settled, body in sql(path, KEPT):
                assert (settled is not None) == (kept_summary(body, number) is not None)
            assert check(path).is_clean


@pytest.mark.parametrize("what", ["another reward", "a flipped bit", "no summary at all"])
def test_a_summary_that_does_not_follow_from_the_log_is_found_and_made_anew(
    tmp_path: Path, what: str
) -> None:
    path = tmp_path / "journal.db"
    asyncio.run(filled(path))
    before = sql(path, KEPT)
    assert check(path).is_clean
    right = summary_body(summarize(History(LOG)), 1)
    keep(
        path,
        {
            "another reward": summary_body(wrong(), 1),
            "a flipped bit": bytes([*right[:-1], right[-1] ^ 1]),
            "no summary at all": b"",
        }[what],
    )
    (finding,) = check(path).findings
    assert "a summary that does not follow from its log" in finding.what
    assert repair(path) == []
    assert check(path).is_clean
    assert sql(path, KEPT) == before


def test_a_summary_that_is_damaged_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    asyncio.run(filled(path))
    keep(path, summary_body(wrong(), 2))  # Another trajectory's.

    async def rewards() -> list[float]:
        async with SqliteJournal(path, read_only=True) as journal:
            run = await journal.find_run("run")
            assert run is not None
            return [reward for _, reward in await journal.rewards(run)]

    assert asyncio.run(rewards()) == [1.0, 1.0]


class CountingJournal(SqliteJournal):
    """Counts the logs that are read."""

    read = 0

    async def history(self, trajectory: int) -> list[Record]:
        self.read += 1
        return await super().history(trajectory)


def test_what_an_engine_settles_is_kept_and_a_report_reads_one_log_for_each_cause(
    tmp_path: Path,
) -> None:
    journal = CountingJournal(tmp_path / "journal.db")
    local = LocalRun("a", "b", "c", samples=3, journal=journal)

    async def rollout(t):
        await turn(t)
        if t.key.task == "b":
            raise KeyError("bug 17")
        return 1.0

    local.run(rollout)

    async def report():
        run = await journal.find_run("run")
        journal.read = 0
        built = await build(journal, run)
        read = journal.read
        async for row, summary in journal.summaries(run):
            assert summary == summarize(History(await journal.history(row.id)))
        await journal.close()
        return built, read

    built, read = asyncio.run(report())
    assert (built.turns, built.by_status) == (9, {"COMPLETED": 6, "FAILED": 3})
    assert (len(built.causes), read) == (1, 1)
    assert "bug 17" in built.causes[0].traceback
    rows = sql(tmp_path / "journal.db", KEPT)
    assert all(kept_summary(body, number) is not None for number, _, body in rows)
