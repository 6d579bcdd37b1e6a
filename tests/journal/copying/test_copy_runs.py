"""Runs that are copied between files and servers are the same on both sides."""

import asyncio
import random
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from holdfast.journal import open_journal
from holdfast.journal.copying import sides
from holdfast.journal.copying.copy_runs import copy_runs
from holdfast.journal.damage.check import check
from holdfast.journal.damage.check_server import check_server
from holdfast.journal.sql.journal import Journal
from holdfast.records.errors import JournalDamaged, RunHeld, UsageError
from holdfast.records.step import Snapshotted
from holdfast.records.trajectory import Status
from support.journal import postgres_server as server
from support.records import consuming, finished, joined, make_tasks, scored, spec, started, value

pytestmark = pytest.mark.skipif(not server.is_available(), reason="needs a PostgreSQL server")


async def fill(journal: Journal) -> None:
    """A run with settled, failed, open and resting tasks, a trainer's ledger, versions, a blob."""
    run = await journal.create_run(spec("first"), make_tasks(*"abcde"), sealed=False)
    worker = await joined(journal, run)
    blob = await journal.put_blob(b"snapshot")
    claims = await journal.claim(worker, groups=4)
    for claim in reversed(claims[:3]):
        for lease in claim.open:
            status = Status.FAILED if claim.task.id == "b" else Status.COMPLETED
            records = [started(), value(1), Snapshotted("1", 1, blob), finished(status)]
            records += [scored()] if status is Status.COMPLETED else []
            await journal.append(lease, records, status=status, settled=True)
    await journal.append(claims[3].open[0], [started(), value(7)], status=Status.RUNNING)
    trainer = await consuming(journal, run)
    await journal.next_batch(trainer, 1, groups=1)
    await journal.commit(trainer, 1)
    await journal.publish_version(run, "v1", step=1, digest="d")
    await journal.unsubscribe(trainer)
    await journal.leave(worker)
    await journal.amend_run(run, spec("first"), make_tasks(*"abcd"), differences=["tasks"])
    await journal.create_run(spec("second"), make_tasks("x"))


def using(where: str, do) -> object:
    async def use() -> object:
        journal = open_journal(where)
        try:
            return await do(journal)
        finally:
            await journal.close()

    return asyncio.run(use())


@pytest.mark.parametrize("way", ["file to server", "server to file", "file to file"])
def test_a_copy_is_the_same_and_goes_on(tmp_path, way):
    url = server.emptied_database()
    source, target = {
        "file to server": (str(tmp_path / "a.db"), url),
        "server to file": (url, str(tmp_path / "a.db")),
        "file to file": (str(tmp_path / "a.db"), str(tmp_path / "b.db")),
    }[way]
    using(source, fill)
    using(target, lambda journal: journal.create_run(spec("there"), make_tasks("y")))
    copied = asyncio.run(copy_runs(source, target, []))
    assert [(run.name, run.trajectories, run.blobs) for run in copied] == [
        ("first", 10, 1),
        ("second", 2, 0),
    ]
    with pytest.raises(UsageError, match="exists already"):
        asyncio.run(copy_runs(source, target, ["second"]))

    async def go_on(journal: Journal) -> list[str]:
        run = await journal.find_run("first")
        assert run is not None
        worker = await joined(journal, run)
        claims = await journal.claim(worker, groups=9)
        await journal.append(claims[0].open[0], [value(8)])
        trainer = await consuming(journal, run)
        batch = await journal.next_batch(trainer, 2, groups=1)
        await journal.unsubscribe(trainer)
        await journal.leave(worker)
        return [claim.task.id for claim in claims] + [batch.groups[0][0].key.task]

    assert using(target, go_on) == using(source, go_on)
    findings = asyncio.run(check_server(url)).findings
    for file in tmp_path.glob("*.db"):
        findings += check(file).findings
    assert findings == []


def test_a_copy_that_was_killed_is_begun_anew(tmp_path):
    source, target = str(tmp_path / "a.db"), server.emptied_database()
    using(source, fill)
    name = "first (being copied)"
    using(target, lambda journal: journal.create_run(spec(name), make_tasks("a")))
    asyncio.run(copy_runs(source, target, ["first"]))
    listed = using(target, lambda journal: journal.runs())
    assert [row.name for row in listed] == ["first"]


def test_a_run_that_is_worked_on_is_not_copied(tmp_path):
    source, target = str(tmp_path / "a.db"), server.emptied_database()

    async def begin(journal: Journal) -> None:
        run = await journal.create_run(spec("first"), make_tasks("a"))
        await joined(journal, run)

    using(source, begin)
    with pytest.raises(RunHeld, match="is being worked on"):
        asyncio.run(copy_runs(source, target, []))
    with pytest.raises(UsageError, match="is both"):
        asyncio.run(copy_runs(source, source, []))


def test_what_cannot_be_copied_leaves_no_empty_journal(tmp_path):
    source, target = str(tmp_path / "a.db"), tmp_path / "b.db"
    using(source, fill)
    with pytest.raises(UsageError, match="there is no run 'frist'"):
        asyncio.run(copy_runs(source, str(target), ["frist"]))
    assert not target.exists()


async def fill_at_random(journal: Journal, dice: random.Random) -> None:
    """Two runs whose members settle in any order, are reopened, taken, trained and dismissed."""
    made = [
        await journal.create_run(spec(name, samples=dice.randint(1, 4)), make_tasks(*"abcdef"))
        for name in ("first", "second")
    ]
    for step in (1, 3):
        for run in dice.sample(made, 2):
            worker = await joined(journal, run)
            claims = await journal.claim(worker, groups=6)
            leases = [lease for claim in claims for lease in claim.open]
            for lease in dice.sample(leases, dice.randint(len(leases) // 2, len(leases))):
                status = dice.choice([Status.COMPLETED, Status.COMPLETED, Status.FAILED])
                records = [started(1 if lease.next_seq == 0 else 2), finished(status)]
                await journal.append(lease, records, status=status, settled=True)
            await journal.leave(worker)
            trainer = await consuming(journal, run)
            batch = await journal.take(trainer, groups=1)
            if batch.groups and dice.random() < 0.5:
                task = batch.groups[0][0].key.task
                await journal.commit(trainer, step, groups=[task])
            await journal.next_batch(trainer, step + 1, groups=dice.randint(1, 2))
            if dice.random() < 0.5:
                await journal.commit(trainer, step + 1)
            await journal.unsubscribe(trainer)
            await journal.reopen(run, reason="again")


async def rest(journal: Journal, name: str) -> list[list[str]]:
    """What a consumer that begins again after its last commit still gets, in its order."""
    run = await journal.find_run(name)
    assert run is not None
    trainer = await consuming(journal, run)
    await journal.rewind(trainer, trainer.committed or 0)
    batches = []
    while groups := (await journal.take(trainer, groups=1)).groups:
        batches.append([str(row.key) for row in groups[0]])
    await journal.unsubscribe(trainer)
    return batches


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["file to file", "file to server", "server to file"]))
def test_a_consumer_that_goes_on_with_a_copy_gets_exactly_the_rest(seed, way):
    with tempfile.TemporaryDirectory() as folder:
        url = server.emptied_database() if "server" in way else f"{folder}/other.db"
        files = f"{folder}/a.db", url
        source, target = files if way.startswith("file") else files[::-1]
        using(source, lambda journal: fill_at_random(journal, random.Random(seed)))
        asyncio.run(copy_runs(source, target, []))
        for name in ("first", "second"):
            assert using(target, lambda journal, name=name: rest(journal, name)) == using(
                source, lambda journal, name=name: rest(journal, name)
            )
        for where in (source, target):
            report = asyncio.run(check_server(where)) if "://" in where else check(Path(where))
            assert report.findings == []


async def settle_backwards(journal: Journal) -> None:
    run = await journal.create_run(spec("first"), make_tasks(*"ab"))
    worker = await joined(journal, run)
    for claim in await journal.claim(worker, groups=2):
        for lease in reversed(claim.open):
            status = Status.COMPLETED
            await journal.append(lease, [started(), finished()], status=status, settled=True)
    await journal.leave(worker)


def test_a_group_of_a_copy_has_the_place_of_the_member_that_settled_last(tmp_path):
    source, target = tmp_path / "a.db", tmp_path / "b.db"
    using(str(source), settle_backwards)
    asyncio.run(copy_runs(str(source), str(target), []))
    query = "SELECT * FROM task_groups ORDER BY task"
    with sqlite3.connect(source) as first, sqlite3.connect(target) as other:
        assert first.execute(query).fetchall() == other.execute(query).fetchall()


def test_a_copy_whose_ledger_differs_is_never_given_its_name(tmp_path, monkeypatch):
    source, target = str(tmp_path / "a.db"), str(tmp_path / "b.db")
    using(source, fill)
    finish = sides.finish

    def lose_the_ledger(connection, image, *arguments) -> None:
        finish(connection, structs.replace(image, deliveries=[]), *arguments)

    monkeypatch.setattr(sides, "finish", lose_the_ledger)
    with pytest.raises(JournalDamaged, match="is not the same"):
        asyncio.run(copy_runs(source, target, ["first"]))
    monkeypatch.undo()
    assert using(target, lambda journal: journal.find_run("first")) is None
    asyncio.run(copy_runs(source, target, ["first"]))


def test_a_copy_that_does_not_pass_the_check_is_never_given_its_name(tmp_path):
    source, target = str(tmp_path / "a.db"), str(tmp_path / "b.db")
    using(source, fill)
    using(target, lambda journal: journal.create_run(spec("there"), make_tasks("y")))
    with sqlite3.connect(target) as damaged:
        damaged.execute("UPDATE totals SET planned = 7")
    with pytest.raises(JournalDamaged, match="does not pass its check"):
        asyncio.run(copy_runs(source, target, ["first"]))
    assert using(target, lambda journal: journal.find_run("first")) is None


def test_a_damaged_task_does_not_look_sound_in_the_copy(tmp_path):
    source, target = str(tmp_path / "a.db"), str(tmp_path / "b.db")
    using(source, fill)
    with sqlite3.connect(source) as damaged:
        body = bytearray(damaged.execute("SELECT body FROM tasks WHERE ordinal = 0").fetchone()[0])
        body[-1] ^= 1
        damaged.execute("UPDATE tasks SET body = ? WHERE ordinal = 0", (bytes(body),))
    with pytest.raises(JournalDamaged, match="fails its checksum"):
        asyncio.run(copy_runs(source, target, ["first"]))
    assert using(target, lambda journal: journal.find_run("first")) is None


def test_a_run_with_the_longest_name_is_copied(tmp_path):
    source, target = str(tmp_path / "a.db"), str(tmp_path / "b.db")
    name = "n" * 200
    using(source, lambda journal: journal.create_run(spec(name), make_tasks("a")))
    asyncio.run(copy_runs(source, target, []))
    assert using(target, lambda journal: journal.find_run(name)) is not None


def without_driver(*arguments: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """The command where the extra `postgres` is not installed."""
    program = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from holdfast.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_two_files_are_copied_without_the_driver_of_a_server(tmp_path):
    using(str(tmp_path / "a.db"), fill)
    ended = without_driver("journal", "copy", "a.db", "b.db", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "both are the same" in ended.stdout


@pytest.mark.parametrize("arguments", [("check",), ("copy", "a.db"), ("compact",)])
def test_a_server_without_its_driver_names_the_extra(tmp_path, arguments):
    using(str(tmp_path / "a.db"), fill)
    ended = without_driver("journal", *arguments, "postgresql://me@nowhere/x", cwd=tmp_path)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert "needs psycopg: pip install '.[postgres]'" in line
