"""Every journal deletes, renames and annotates runs in the same way."""

import asyncio

import pytest

from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import Deletion
from holdfast.records.errors import ConsumerHeld, JournalCorrupt, LeaseLost, RunHeld, UsageError
from holdfast.records.run import RecordedCommand, Run
from holdfast.records.step import Snapshotted
from holdfast.records.trajectory import Status
from support.conformance.journals import Check, every_journal  # noqa: F401 - the fixture
from support.records import (
    consuming,
    finished,
    joined,
    make_tasks,
    scored,
    someone_else,
    spec,
    started,
    value,
)


async def settled_run(journal: Journal, name: str = "run", *, blob: bytes = b"") -> Run:
    """Two tasks with two samples each, all over, and nobody there."""
    run = await journal.create_run(spec(name), make_tasks("a", "b"))
    worker = await joined(journal, run)
    for claim in await journal.claim(worker, groups=2):
        for lease in claim.open:
            records = [started(), value(1)]
            if blob:
                records.append(Snapshotted("1", 1, await journal.put_blob(blob)))
            await journal.append(
                lease, [*records, finished(), scored()], status=Status.COMPLETED, settled=True
            )
    await journal.leave(worker)
    return run


# --- deletion


def test_a_deleted_run_is_gone_and_no_other_is_touched(check: Check) -> None:
    async def body(journal: Journal) -> None:
        kept, gone = await settled_run(journal, "kept"), await settled_run(journal, "gone")
        rows = await journal.trajectories(kept)
        trainer = await consuming(journal, gone)
        await journal.next_batch(trainer, 1, groups=1)
        await journal.publish_version(gone, "v1", step=1, digest="d")
        await journal.unsubscribe(trainer)
        assert await journal.delete_run(gone) == Deletion(trajectories=4, records=16, blobs=0)
        assert [row.name for row in await journal.runs()] == ["kept"]
        assert await journal.find_run("gone") is None
        assert await journal.trajectories(kept) == rows
        assert [len(await journal.history(row.id)) for row in rows] == [4] * 4

    check(body)


def test_deleting_again_changes_nothing(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await settled_run(journal)
        await journal.delete_run(run)
        again = await settled_run(journal)
        assert await journal.delete_run(run) == Deletion()
        assert [row.records for row in await journal.trajectories(again)] == [4] * 4

    check(body)


def test_a_run_of_the_same_name_begins_with_nothing_of_the_deleted_one(check: Check) -> None:
    async def body(journal: Journal) -> None:
        before = await settled_run(journal)
        trainer = await consuming(journal, before)
        await journal.unsubscribe(trainer)
        await journal.publish_version(before, "v1", step=1, digest="d")
        await journal.delete_run(before)
        run = await journal.create_run(spec(samples=1), make_tasks("a"), sealed=False)
        (row,) = await journal.trajectories(run)
        assert (row.records, row.settled, row.status) == (0, False, Status.PENDING)
        assert await journal.consumers(run) == []
        assert await journal.versions(run) == []
        progress = await journal.progress(run)
        assert (progress.planned, progress.settled, progress.sealed) == (1, 0, False)

    check(body)


def test_a_run_that_a_live_worker_holds_is_not_deleted(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(), make_tasks("a"))
        worker = await journal.join(run, someone_else(7), lease_seconds=600, share=False)
        for refused in (journal.delete_run(run), journal.rename_run(run, "other")):
            with pytest.raises(RunHeld, match=r"process 7 on elsewhere \(its lease ends in"):
                await refused
        (claim,) = await journal.claim(worker, groups=1)
        await journal.append(claim.open[0], [started()])
        await journal.leave(worker)
        await journal.delete_run(run)

    check(body)


def test_a_run_that_a_live_consumer_holds_is_not_deleted(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await settled_run(journal)
        trainer = await consuming(journal, run)
        for refused in (journal.delete_run(run), journal.rename_run(run, "other")):
            with pytest.raises(ConsumerHeld, match="trainer"):
                await refused
        await journal.commit(trainer, 1)
        await journal.unsubscribe(trainer)
        await journal.delete_run(run)

    check(body)


def test_whoever_slept_through_the_deletion_is_fenced(check: Check) -> None:
    """Also where a new run has the same name, and as many tasks."""

    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(samples=1), make_tasks("a"))
        asleep = await journal.join(run, someone_else(), lease_seconds=0.001, share=False)
        (claim,) = await journal.claim(asleep, groups=1)
        trainer = await journal.subscribe(run, "trainer", someone_else(), lease_seconds=0.001)
        await asyncio.sleep(0.01)
        await journal.delete_run(run)
        again = await journal.create_run(spec(samples=1), make_tasks("a"))
        worker = await joined(journal, again)
        (taken,) = await journal.claim(worker, groups=1)
        assert taken.open[0].epoch == claim.open[0].epoch
        await consuming(journal, again)
        with pytest.raises(LeaseLost):
            await journal.append(claim.open[0], [started()])
        with pytest.raises(LeaseLost):
            await journal.claim(asleep, groups=1)
        with pytest.raises(LeaseLost):
            await journal.commit(trainer, 1)
        assert await journal.history(taken.open[0].id) == []

    check(body)


def test_blobs_go_with_the_last_run_that_uses_them(check: Check) -> None:
    async def body(journal: Journal) -> None:
        first = await settled_run(journal, "first", blob=b"shared")
        own = await settled_run(journal, "own", blob=b"alone")
        second = await settled_run(journal, "second", blob=b"shared")
        shared, alone = await journal.put_blob(b"shared"), await journal.put_blob(b"alone")
        assert (await journal.delete_run(first)).blobs == 0
        assert await journal.get_blob(shared) == b"shared"
        assert (await journal.delete_run(own)).blobs == 1
        with pytest.raises(JournalCorrupt, match="no blob"):
            await journal.get_blob(alone)
        assert (await journal.delete_run(second)).blobs == 1
        with pytest.raises(JournalCorrupt, match="no blob"):
            await journal.get_blob(shared)

    check(body)


def test_blobs_stay_while_somebody_may_be_about_to_use_them(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await settled_run(journal, "run", blob=b"content")
        other = await journal.create_run(spec("other"), make_tasks("a"))
        worker = await joined(journal, other)
        with pytest.raises(RunHeld, match="'other'"):
            await journal.delete_run(run)
        assert [row.records for row in await journal.trajectories(run)] == [5] * 4
        await journal.leave(worker)
        assert (await journal.delete_run(run)).blobs == 1

    check(body)


def test_a_run_without_blobs_is_deleted_while_others_are_worked_on(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await settled_run(journal)
        other = await journal.create_run(spec("other", samples=1), make_tasks("a"))
        (claim,) = await journal.claim(await joined(journal, other), groups=1)
        await journal.append(claim.open[0], [started()])
        await journal.delete_run(run)
        await journal.append(claim.open[0], [value(1)])
        assert len(await journal.history(claim.open[0].id)) == 2
        with pytest.raises(RunHeld, match="'other'"):
            await journal.compact()

    check(body)


# --- names and notes


def test_a_renamed_run_is_the_same_run(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await settled_run(journal, "before")
        renamed = await journal.rename_run(run, "after")
        assert renamed.spec.name == "after"
        assert await journal.find_run("before") is None
        assert await journal.find_run("after") == renamed
        rows = await journal.trajectories(renamed)
        assert {row.key.run for row in rows} == {"after"}
        assert [row.id for row in rows] == [row.id for row in await journal.trajectories(run)]
        worker = await joined(journal, renamed)
        assert await journal.claim(worker, groups=1) == []

    check(body)


def test_a_run_is_not_renamed_to_a_name_that_is_taken_or_none(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await settled_run(journal, "one")
        await settled_run(journal, "two")
        with pytest.raises(UsageError, match="exists already"):
            await journal.rename_run(run, "two")
        for wrong in ("", "a/b", "a\nb"):
            with pytest.raises(UsageError, match="name"):
                await journal.rename_run(run, wrong)
        assert (await journal.rename_run(run, "one")).spec.name == "one"

    check(body)


def test_tags_and_command_stay_through_an_amendment(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(), make_tasks("a"))
        await joined(journal, run)  # Whoever works on it.
        command = RecordedCommand(("run", "x.py"), "/here")
        run = await journal.annotate_run(run, tags=("baseline", "best", "best"))
        run = await journal.annotate_run(run, command=command)
        assert (run.spec.tags, run.spec.command) == (("baseline", "best"), command)
        assert run.spec.differences(spec()) == []
        amended = await journal.amend_run(run, spec(), make_tasks("a", "b"), differences=[])
        assert (amended.spec.tags, amended.spec.command) == (("baseline", "best"), command)
        assert await journal.find_run("run") == amended
        assert (await journal.annotate_run(amended, tags=())).spec.tags == ()

    check(body)


@pytest.mark.parametrize("tag", ["", " a", "a,b", "a\nb", "x" * 61])
def test_a_tag_is_one_short_line_without_commas(check: Check, tag: str) -> None:
    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(), make_tasks("a"))
        with pytest.raises(UsageError, match="a tag has"):
            await journal.annotate_run(run, tags=[tag])

    check(body)


def test_a_run_that_is_gone_gets_no_notes(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await settled_run(journal)
        await journal.delete_run(run)
        for refused in (journal.annotate_run(run, tags=["x"]), journal.rename_run(run, "x")):
            with pytest.raises(UsageError, match="deleted"):
                await refused

    check(body)
