"""Runs that are copied between files and servers are the same on both sides."""

import asyncio

import pytest

from holdfast.journal import open_journal
from holdfast.journal.copying.copy_runs import copy_runs
from holdfast.journal.damage.check import check
from holdfast.journal.damage.check_server import check_server
from holdfast.journal.journal import Journal
from holdfast.records.errors import RunHeld, UsageError
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
