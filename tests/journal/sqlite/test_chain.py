"""A log is found by its links, in proportion to itself; links that are wrong lose no record."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

from holdfast.journal.damage.check import check, repair
from holdfast.journal.sqlite import chain
from holdfast.journal.sqlite.journal import SqliteJournal, plain_connect
from holdfast.records.errors import JournalCorrupt
from holdfast.records.step import Record
from holdfast.records.trajectory import Status
from support.records import ready, sql, values

VICTIM, NEIGHBOUR = 2, 1
LOG = values(0, 1, 2, 3, 4)


async def fill(path: Path, *, neighbours: int = 1) -> None:
    """The records of the victim, in between those of others."""
    journal = SqliteJournal(path)
    _, worker, claims = await ready(journal, *map(str, range(neighbours)), samples=2)
    victim, others = claims[0].open[1], [claim.open[0] for claim in claims]
    for record in LOG:
        for lease in (*others, victim):
            await journal.append(lease, [record], status=Status.RUNNING)
    await journal.leave(worker)
    await journal.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "journal.db"
    asyncio.run(fill(path))
    return path


def read(path: Path, trajectory: int) -> list[Record]:
    async def body() -> list[Record]:
        journal = SqliteJournal(path, read_only=True)
        try:
            return await journal.history(trajectory)
        finally:
            await journal.close()

    return asyncio.run(body())


def steps_to_read(path: Path, trajectory: int) -> int:
    """In SQLite's own instructions: the same on every machine."""
    connection = plain_connect(f"{path.absolute().as_uri()}?mode=ro")
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    list(chain.rows(connection, trajectory))  # Reads the schema.
    connection.set_progress_handler(count, 1)
    assert len(list(chain.rows(connection, trajectory))) == len(LOG)
    connection.close()
    return steps


def test_reading_takes_as_long_as_the_log_not_as_the_journal(tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path / "small.db"))
    asyncio.run(fill(tmp_path / "large.db", neighbours=60))
    small, large = (steps_to_read(tmp_path / f"{item}.db", VICTIM) for item in ("small", "large"))
    assert large <= small * 1.1


# What can happen to links and heads, and whether every record can still be read without repair.
DAMAGES = {
    "a link that leads astray": "UPDATE records SET previous = 1 WHERE position = 6",
    "a link to nowhere": "UPDATE records SET previous = 999 WHERE position = 6",
    "a link forward": "UPDATE records SET previous = 10 WHERE position = 6",
    "a lost link": "UPDATE records SET previous = 0 WHERE position = 6",
    "no links at all": "UPDATE records SET previous = 0",
    "a head that leads astray": "UPDATE trajectories SET last = 1 WHERE id = 2",
    "a head to nowhere": "UPDATE trajectories SET last = 999 WHERE id = 2",
    "a head of an earlier record": "UPDATE trajectories SET last = 6 WHERE id = 2",
}


@pytest.mark.parametrize("name", DAMAGES)
def test_broken_links_are_found_and_mended_and_hide_nothing(path: Path, name: str) -> None:
    sql(path, DAMAGES[name])
    assert read(path, VICTIM) == LOG
    assert read(path, NEIGHBOUR) == LOG
    findings = [finding for finding in check(path).findings if finding.where == "run/0/1"]
    assert [finding.what for finding in findings] == ["has links that do not lead to its 5 records"]
    assert repair(path) == []
    assert check(path).findings == []
    assert read(path, VICTIM) == LOG


# One that counts too few hides records, which are all there; one that counts more has lost some.
@pytest.mark.parametrize(("length", "cuts"), [(3, []), (7, [(5, 0)])])
def test_a_head_that_counts_wrong_is_bad_until_it_is_repaired(
    path: Path, length: int, cuts: list[tuple[int, int]]
) -> None:
    sql(path, "UPDATE trajectories SET length = ? WHERE id = ?", length, VICTIM)
    with pytest.raises(JournalCorrupt, match=rf"its head counts {length} records"):
        read(path, VICTIM)
    (finding,) = check(path).findings
    assert finding.where == "run/0/1"
    assert [(cut.seq, cut.lost) for cut in repair(path)] == cuts
    assert check(path).findings == []
    assert read(path, VICTIM) == LOG


def test_a_lost_head_is_found_and_mended(path: Path) -> None:
    sql(path, "UPDATE trajectories SET length = 0, last = 0 WHERE id = ?", VICTIM)
    (finding,) = check(path).findings
    assert finding.where == "run/0/1"
    repair(path)
    assert check(path).findings == []
    assert read(path, VICTIM) == LOG


@pytest.mark.parametrize("seq", [0, 4])
def test_lost_records_at_either_end_of_a_log_are_noticed(path: Path, seq: int) -> None:
    sql(path, "DELETE FROM records WHERE trajectory = ? AND seq = ?", VICTIM, seq)
    with pytest.raises(JournalCorrupt, match=f"record {seq} of trajectory 2"):
        read(path, VICTIM)
    (finding,) = check(path).findings
    assert finding.where.startswith("run/0/1")
    (cut,) = repair(path)
    assert cut.seq == seq
    assert check(path).findings == []
    assert read(path, VICTIM) == LOG[:seq]


def test_two_records_in_one_place_are_found(path: Path) -> None:
    sql(
        path,
        "INSERT INTO records SELECT 99, trajectory, seq, epoch, crc, previous, body FROM records "
        "WHERE trajectory = ? AND seq = 4",
        VICTIM,
    )
    (finding,) = check(path).findings
    assert finding.where == "run/0/1, record 5 (position 99)"
    (cut,) = repair(path)
    assert (cut.seq, cut.lost) == (5, 1)
    assert check(path).findings == []
    assert read(path, VICTIM) == LOG


def test_relinking_what_is_whole_changes_nothing(path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    assert not chain.relink(connection, VICTIM)
    connection.close()
