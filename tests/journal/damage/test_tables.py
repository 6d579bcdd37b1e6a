"""Damage outside the logs is an error of ours or a finding of the check, never a silent loss."""

import asyncio
import random
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from holdfast.journal.damage.check import check, repair
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.journal.sqlite.schema import PAGE_SIZE
from holdfast.journal.types import Batch
from holdfast.records.errors import JournalCorrupt, JournalDamaged, JournalError
from holdfast.records.run import Run
from holdfast.records.trajectory import Status
from support.records import consuming, joined, ready, settle, sql, started, values

NO_TEXT = "CAST(x'ff41' AS TEXT)"
NAMES = [f"task{number}" for number in range(8)]
Read = Callable[[SqliteJournal, Run], Awaitable[object]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A closed journal of eight groups, half of them settled, and one of these delivered."""
    path = tmp_path / "journal.db"

    async def fill() -> None:
        journal = SqliteJournal(path)
        run, worker, claims = await ready(journal, *NAMES, samples=2)
        for claim in claims[::2]:
            await settle(journal, claim)
        for claim in claims[1::2]:
            for lease in claim.open:
                await journal.append(lease, [started(), *values(1, 2)], status=Status.RUNNING)
        trainer = await consuming(journal, run)
        await journal.next_batch(trainer, 1, groups=1)
        await journal.unsubscribe(trainer)
        await journal.leave(worker)
        await journal.close()

    asyncio.run(fill())
    return path


def everything(path: Path) -> object:
    async def body() -> object:
        journal = SqliteJournal(path, read_only=True)
        try:
            run = await journal.find_run("run")
            if run is None:
                return None
            return [
                (row.key, row.status, row.settled, records)
                async for row, records in journal.histories(run)
            ]
        finally:
            await journal.close()

    return asyncio.run(body())


def page_of(path: Path, name: str) -> int:
    ((root,),) = sql(path, "SELECT rootpage FROM sqlite_schema WHERE name = ?", name)
    return (int(str(root)) - 1) * PAGE_SIZE


def flips(path: Path, name: str, count: int) -> list[bytes]:
    """The file, each time with another bit flipped in what is used of this page."""
    whole, start = path.read_bytes(), page_of(path, name)
    used = [at for at in range(start, start + PAGE_SIZE) if whole[at]]
    rng = random.Random(name)
    damaged = []
    for _ in range(count):
        content = bytearray(whole)
        content[rng.choice(used)] ^= 1 << rng.randrange(8)
        damaged.append(bytes(content))
    return damaged


def rewrite(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    for part in ("-wal", "-shm"):
        path.with_name(path.name + part).unlink(missing_ok=True)


UNIQUE = "sqlite_autoindex_trajectories_1"


@pytest.mark.parametrize("name", ["trajectories", UNIQUE, "tasks", "sqlite_autoindex_tasks_1"])
def test_a_flipped_bit_that_changes_what_is_read_is_found(path: Path, name: str) -> None:
    good, silent = everything(path), 0
    for content in flips(path, name, 40):
        rewrite(path, content)
        try:
            if everything(path) == good:
                continue
        except JournalError:
            continue
        silent += 1
        assert check(path).findings
    assert silent or name == "trajectories"


@pytest.mark.parametrize("name", [UNIQUE, "task_groups_claimable"])
def test_what_the_rows_tell_is_made_anew(path: Path, name: str) -> None:
    good, mended, refused = everything(path), 0, 0
    for content in flips(path, name, 25):
        rewrite(path, content)
        findings = check(path).findings
        if not findings:
            continue
        message = {finding.what for finding in findings if finding.where == "file"}
        assert not message & {finding.what for finding in findings if finding.where != "file"}
        try:
            cuts = repair(path)
        except JournalDamaged:
            refused += 1  # SQLite cannot even give the pages back.
            continue
        assert check(path).findings == []
        assert sum(cut.lost for cut in cuts) == 0
        if not cuts:
            assert everything(path) == good
            mended += 1
    assert mended > 5 * (refused + 1)


@pytest.mark.parametrize("column", ["host text", "status smallint", "place integer"])
def test_a_column_under_another_name_is_found(path: Path, column: str) -> None:
    content = bytearray(path.read_bytes())
    content[content.index(column.encode())] ^= 1
    rewrite(path, bytes(content))
    assert "file, schema" in {finding.where for finding in check(path).findings}


BEYOND = {
    "the pages of another": "rootpage = (SELECT rootpage FROM sqlite_schema WHERE name = 'records')"
    " WHERE name = 'cuts'",
    "pages that are free": "rootpage = 2 WHERE name = 'records'",
    "other columns": "sql = replace(sql, 'epoch', 'eroch') WHERE name = 'records'",
}


@pytest.mark.parametrize("name", BEYOND)
def test_a_table_that_is_not_what_it_was_is_not_written(path: Path, name: str) -> None:
    """It would be made anew in the place of the records, or they would be cut for lost."""
    in_schema(path, BEYOND[name])
    before = path.read_bytes()
    assert check(path).findings
    with pytest.raises(JournalDamaged):
        repair(path)
    assert path.read_bytes() == before


def lose_from_index(path: Path) -> None:
    """The entry of task 3, sample 1, of run 1 becomes one of task 11: one bit."""
    content, start = bytearray(path.read_bytes()), page_of(path, UNIQUE)
    at = content.index(b"\x05\x09\x01\x09\x01\x03\x08", start)
    assert at < start + PAGE_SIZE
    content[at + 5] ^= 8
    rewrite(path, bytes(content))


def test_a_trajectory_that_its_index_lost_is_found_and_comes_back(path: Path) -> None:
    good = everything(path)
    lose_from_index(path)
    assert everything(path) != good
    findings = check(path).findings
    assert {finding.where for finding in findings} == {"file, trajectories"}
    assert "missing from index" in findings[0].what
    assert repair(path) == []
    assert check(path).findings == []
    assert everything(path) == good


def test_a_run_is_found_by_an_index_that_knows_better_than_its_row(path: Path) -> None:
    good = everything(path)
    content, start = bytearray(path.read_bytes()), page_of(path, "runs")
    content[content.index(b"run", start)] ^= 1
    rewrite(path, bytes(content))
    assert check(path).findings
    repair(path)
    assert check(path).findings
    assert everything(path) == good


def test_a_sample_number_that_a_page_lost_is_given_again(path: Path) -> None:
    """Its index still has the number, and the order of planning says the same."""
    good = everything(path)
    content, start = bytearray(path.read_bytes()), page_of(path, "trajectories")
    # Of the first one, all are small constants: its number is the row's, 0 and 1 have no bytes.
    at = content.index(b"\x00\x09\x08\x08", start)
    assert at < start + PAGE_SIZE
    content[at + 3] ^= 1  # Sample 0 is sample 1.
    rewrite(path, bytes(content))
    assert {"file, trajectories", "run 1, task 0"} <= {each.where for each in check(path).findings}
    repair(path)
    assert check(path).findings == []
    assert everything(path) == good


@pytest.mark.parametrize(("name", "shown"), [("'tawk3'", "tawk3"), (NO_TEXT, "\ufffdA")])
def test_a_task_under_another_name_is_found_and_gets_its_own_back(
    path: Path, name: str, shown: str
) -> None:
    good = everything(path)
    sql(path, f"UPDATE tasks SET id = {name} WHERE id = 'task3'")
    (finding,) = check(path).findings
    assert finding.where == f"task run/{shown}"
    assert finding.what == f"task {shown!r} is named 'task3' in its own text"
    assert repair(path) == []
    assert check(path).findings == []
    assert everything(path) == good


async def _next_batch(journal: SqliteJournal, run: Run) -> Batch:
    return await journal.next_batch(await consuming(journal, run), 1, groups=1)


READS: dict[str, Read] = {
    "find_run": lambda journal, run: journal.find_run(run.spec.name),
    "runs": lambda journal, run: journal.runs(),
    "tasks": lambda journal, run: journal.tasks(run),
    "trajectories": lambda journal, run: journal.trajectories(run),
    "next_batch": lambda journal, run: _next_batch(journal, run),
}
UNDECODABLE = [
    ("UPDATE runs SET spec = CAST(replace(spec, 'model', x'6d6f6465ff') AS BLOB)", "find_run"),
    ("UPDATE runs SET spec = CAST(replace(spec, 'model', x'6d6f6465ff') AS BLOB)", "runs"),
    ("UPDATE runs SET changes = NULL", "find_run"),
    ("UPDATE runs SET created = 'x'", "runs"),
    (f"UPDATE runs SET name = {NO_TEXT}", "runs"),
    ("UPDATE runs SET name = 'rum'", "runs"),
    (f"UPDATE tasks SET id = {NO_TEXT} WHERE ordinal = 0", "tasks"),
    (f"UPDATE tasks SET id = {NO_TEXT} WHERE ordinal = 0", "trajectories"),
    (f"UPDATE tasks SET id = {NO_TEXT} WHERE ordinal = 0", "next_batch"),
    ("UPDATE tasks SET id = 'task' WHERE ordinal = 0", "tasks"),
    ("UPDATE tasks SET body = 'text' WHERE ordinal = 0", "tasks"),
    ("UPDATE trajectories SET status = 66 WHERE id = 1", "trajectories"),
    ("UPDATE trajectories SET status = 66 WHERE id = 1", "runs"),
    ("UPDATE trajectories SET status = 66 WHERE id = 1", "next_batch"),
    ("UPDATE trajectories SET status = 'x' WHERE id = 1", "trajectories"),
    ("UPDATE trajectories SET epoch = 'x' WHERE id = 1", "trajectories"),
    ("UPDATE trajectories SET sample = 'x' WHERE id = 1", "trajectories"),
]


def in_schema(path: Path, change: str, *parameters: object) -> None:
    """Changes what SQLite says of its own tables."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute(f"UPDATE sqlite_schema SET {change}", parameters)
    connection.close()


def without_constraints(path: Path, table: str, damage: str) -> None:
    """As damage does it, which knows none."""
    ((sound,),) = sql(path, "SELECT sql FROM sqlite_schema WHERE name = ?", table)
    in_schema(path, "sql = replace(sql, ' NOT NULL', '') WHERE name = ?", table)
    sql(path, damage)
    in_schema(path, "sql = ? WHERE name = ?", sound, table)


@pytest.mark.parametrize(("damage", "read"), UNDECODABLE)
async def test_a_row_that_does_not_decode_is_corrupt_and_found(
    path: Path, damage: str, read: str
) -> None:
    journal = SqliteJournal(path)
    run = await journal.find_run("run")
    assert run is not None
    without_constraints(path, damage.split()[1], damage)
    with pytest.raises(JournalCorrupt):
        await READS[read](journal, run)
    await journal.close()
    findings = check(path).findings
    assert findings
    assert not [finding for finding in findings if "Error" in finding.what], findings


@pytest.mark.parametrize("damage", ["id = 'task'", f"id = {NO_TEXT}", "body = x'00'"])
async def test_a_damaged_task_is_not_claimed(path: Path, damage: str) -> None:
    sql(path, f"UPDATE tasks SET {damage} WHERE ordinal = 1")
    journal = SqliteJournal(path)
    run = await journal.find_run("run")
    assert run is not None
    with pytest.raises(JournalCorrupt):
        await journal.claim(await joined(journal, run), groups=1)
    await journal.close()


ROWS = {
    "run 1, task 2: 1 of its samples are not numbered": (
        "UPDATE trajectories SET sample = 2 WHERE id = 6"
    ),
    "run 1, task 7: has no trajectory": "DELETE FROM trajectories WHERE task = 7",
    "run 1: its 8 tasks do not have numbers": "UPDATE tasks SET ordinal = 9 WHERE ordinal = 7",
    "file, trajectories: 2 trajectories have place 1": (
        "UPDATE trajectories SET settled = 1 WHERE settled = 2"
    ),
    "file, trajectories: 1 trajectories have place 99": (
        "UPDATE trajectories SET settled = 99 WHERE settled = 2"
    ),
    "file, trajectories: 1 trajectories have place 8": "DELETE FROM counters",
    "run/task1/0: is marked PENDING; its log says RUNNING": (
        "UPDATE trajectories SET status = 0 WHERE id = 3"
    ),
    "task run/task1: neither rests nor is current": (
        "UPDATE tasks SET current = 7 WHERE ordinal = 1"
    ),
}


@pytest.mark.parametrize("what", ROWS)
def test_rows_that_no_writer_left_so_are_found(path: Path, what: str) -> None:
    assert check(path).findings == []
    sql(path, ROWS[what])
    findings = [str(finding) for finding in check(path).findings]
    assert any(finding.startswith(what) for finding in findings), findings


@pytest.mark.parametrize("damage", ["seq = NULL", "seq = -126", "seq = 'x'", "epoch = NULL",
                                    "crc = NULL", "body = NULL"])  # fmt: skip
def test_a_record_that_lost_a_column_is_cut(path: Path, damage: str) -> None:
    damage = f"UPDATE records SET {damage} WHERE trajectory = 3 AND seq = 1"
    without_constraints(path, "records", damage)
    assert any(
        finding.where.startswith("run/task1/0, record 1") for finding in check(path).findings
    )
    (cut,) = repair(path)
    assert (cut.seq, cut.lost) == (1, 2)
    assert sql(path, "SELECT count(*) FROM cuts") == [(cut.lost,)]
    assert check(path).findings == []


KEPT = {
    "tasks": "UPDATE tasks SET crc = crc + 1 WHERE ordinal = 0",
    "trajectories": "UPDATE trajectories SET status = 66 WHERE id = 1",
    "next_batch": "UPDATE trajectories SET status = 66 WHERE id = 1",
}


@pytest.mark.parametrize("read", KEPT)
async def test_an_error_that_is_kept_keeps_no_snapshot(path: Path, read: str) -> None:
    """Or later reads would be stale, and the log could not be begun again."""
    journal = SqliteJournal(path)
    run = await journal.find_run("run")
    assert run is not None
    sql(path, KEPT[read])
    with pytest.raises(JournalCorrupt) as kept:
        await READS[read](journal, run)
    await journal.put_blob(b"new")
    connection = sqlite3.connect(path, timeout=0)
    ((busy, *_),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()
    assert busy == 0, kept
    await journal.close()


def test_a_schema_that_is_no_text_is_told_as_damage(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    asyncio.run(SqliteJournal(path).close())
    page = bytearray(path.read_bytes())
    page[page.index(b"CREATE TABLE tasks") + 3] |= 0x80
    path.write_bytes(page)
    with pytest.raises(JournalError, match="is damaged"):
        SqliteJournal(path)
    with pytest.raises(JournalError, match="is damaged"):
        asyncio.run(SqliteJournal(path, read_only=True).runs())
