"""Every journal admits tasks while a run is worked on, and keeps its weight versions in order."""

import asyncio

import pytest
from msgspec import structs

from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import RunProgress
from holdfast.records.errors import UsageError
from holdfast.records.run import MAX_TRAJECTORIES
from holdfast.records.samples.version import WeightVersion
from holdfast.records.trajectory import Status
from support.conformance.journals import Check, every_journal  # noqa: F401 - the fixture
from support.records import consuming, joined, make_tasks, ready, settle, spec


def test_a_run_that_is_created_with_its_tasks_is_sealed(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(), make_tasks("a"))
        assert (await journal.progress(run)).sealed
        with pytest.raises(UsageError, match="sealed"):
            await journal.admit(run, make_tasks("b"))
        assert await journal.admit(run, make_tasks("a")) == 0
        await journal.seal(run)

    check(body)


def test_tasks_are_admitted_until_the_run_is_sealed(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(samples=2), make_tasks("a"), sealed=False)
        worker = await joined(journal, run)
        (first,) = await journal.claim(worker, groups=9)
        await settle(journal, first)
        assert not (await journal.progress(run)).is_over
        assert await journal.claim(worker, groups=9) == []
        assert await journal.admit(run, make_tasks("b", "c")) == 2
        claims = await journal.claim(worker, groups=9)
        assert [(claim.task.id, claim.ordinal) for claim in claims] == [("b", 1), ("c", 2)]
        await journal.seal(run)
        await journal.seal(run)
        await settle(journal, claims[0])
        await settle(journal, claims[1], status=Status.FAILED)
        assert await journal.progress(run) == RunProgress(6, 6, 2, sealed=True)
        assert (await journal.progress(run)).is_over

    check(body)


def test_a_sealed_run_that_is_opened_again_takes_tasks(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(samples=1), make_tasks("a"), sealed=False)
        worker, consumer = await joined(journal, run), await consuming(journal, run)
        await settle(journal, (await journal.claim(worker, groups=9))[0])
        await journal.seal(run)
        assert (await journal.next_batch(consumer, 1, groups=1)).ended
        await journal.unseal(run)
        await journal.unseal(run)
        assert not (await journal.progress(run)).sealed
        assert not (await journal.next_batch(consumer, 2, groups=1)).ended
        assert await journal.admit(run, make_tasks("b")) == 1
        await settle(journal, (await journal.claim(worker, groups=9))[0])
        batch = await journal.next_batch(consumer, 2, groups=1)
        assert [members[0].key.task for members in batch.groups] == ["b"]

    check(body)


def test_admitting_may_be_repeated_but_an_id_has_one_content(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(samples=1), [], sealed=False)
        assert await journal.admit(run, make_tasks("a", "b")) == 2
        assert await journal.admit(run, make_tasks("b", "c", "c")) == 1
        (other,) = make_tasks("a")
        other = structs.replace(other, ground_truth="another")
        for tasks in (
            [*make_tasks("d"), other],
            [*make_tasks("d"), structs.replace(other, id="d")],
        ):
            with pytest.raises(UsageError, match="another task"):
                await journal.admit(run, tasks)
        assert [task.id for task in await journal.tasks(run)] == ["a", "b", "c"]
        assert [row.key.task for row in await journal.trajectories(run)] == ["a", "b", "c"]

    check(body)


def test_a_stream_has_a_bound(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(samples=MAX_TRAJECTORIES + 1), [], sealed=False)
        with pytest.raises(UsageError, match="at most"):
            await journal.admit(run, make_tasks("a"))
        assert await journal.tasks(run) == []

    check(body)


def test_some_tasks_are_read_without_the_others(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(), make_tasks(*"abcd"))
        tasks = await journal.tasks(run, ordinals=[3, 0, 3])
        assert [task.id for task in tasks] == ["d", "a", "d"]
        with pytest.raises(UsageError, match="no task number 4"):
            await journal.tasks(run, ordinals=[4])

    check(body)


def test_the_trajectories_of_some_tasks_are_read_without_the_others(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, *"abcd", samples=2)
        await settle(journal, claims[3])
        every = await journal.trajectories(run)
        trajectories = await journal.trajectories(run, ordinals=[3, 1, 3])
        assert [(row.key.task, row.key.sample) for row in trajectories] == [
            ("b", 0),
            ("b", 1),
            ("d", 0),
            ("d", 1),
        ]
        assert trajectories == [row for row in every if row.ordinal in (1, 3)]
        assert await journal.trajectories(run, ordinals=[]) == []
        assert await journal.trajectories(run, ordinals=[4, -1, 2**40]) == [], "there are none"

    check(body)


def test_progress_counts_what_the_listing_counts(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(samples=2), make_tasks("a", "b"))
        worker = await joined(journal, run)
        a, b = await journal.claim(worker, groups=9)
        await settle(journal, a)
        await settle(journal, b, status=Status.FAILED)
        assert await journal.progress(run) == RunProgress(4, 4, 2, sealed=True)
        await journal.reopen(run, reason="again")
        assert await journal.progress(run) == RunProgress(4, 2, 0, sealed=True)
        run = await journal.amend_run(run, run.spec, make_tasks("b", "c"), differences=["tasks"])
        assert await journal.progress(run) == RunProgress(4, 0, 0, sealed=True)
        run = await journal.amend_run(run, run.spec, make_tasks("a", "c"), differences=["tasks"])
        assert await journal.progress(run) == RunProgress(4, 2, 0, sealed=True)

    check(body)


def test_who_waits_is_woken_by_what_this_process_changes(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(samples=1), [], sealed=False)
        worker = await joined(journal, run)

        async def woken_by(change: object) -> None:
            seen = journal.changes.count
            waiting = asyncio.create_task(journal.changes.wait(seen, timeout=600))
            await asyncio.sleep(0)
            await change  # type: ignore[misc]
            await waiting
            await journal.changes.wait(seen, timeout=600)  # It has changed: no waiting.

        await woken_by(journal.admit(run, make_tasks("a")))
        (claim,) = await journal.claim(worker, groups=1)
        await woken_by(settle(journal, claim))
        await woken_by(journal.seal(run))
        await woken_by(journal.leave(worker))
        await journal.changes.wait(journal.changes.count, timeout=0.01)

    check(body)


# --- weight versions


def test_versions_have_an_order_and_each_name_its_bytes(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(), make_tasks("a"))
        other = await journal.create_run(spec("other"), make_tasks("a"))
        assert await journal.publish_version(run, "base", step=0, digest="d0") == 1
        assert await journal.publish_version(run, "step-1", step=1, digest="d1") == 2
        assert await journal.publish_version(run, "base", step=0, digest="d0") == 1
        assert await journal.publish_version(other, "step-1", step=1, digest="dx") == 1
        with pytest.raises(UsageError, match="digest d1, not d2"):
            await journal.publish_version(run, "step-1", step=1, digest="d2")
        assert await journal.publish_version(run, "step-1b", step=1, digest="d2") == 3
        assert await journal.versions(run) == [
            WeightVersion(1, "base", 0, "d0"),
            WeightVersion(2, "step-1", 1, "d1"),
            WeightVersion(3, "step-1b", 1, "d2"),
        ]
        assert await journal.versions(run, name="step-1") == [WeightVersion(2, "step-1", 1, "d1")]
        assert await journal.versions(run, name="step-2") == []

    check(body)


@pytest.mark.parametrize(
    ("name", "step", "digest"), [("", 1, "d"), ("v", -1, "d"), ("v", 1, ""), ("v", 1.5, "d")]
)
def test_a_version_that_says_nothing_is_refused(
    check: Check, name: str, step: int, digest: str
) -> None:
    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(), make_tasks("a"))
        with pytest.raises(UsageError, match="weight version"):
            await journal.publish_version(run, name, step=step, digest=digest)
        assert await journal.versions(run) == []

    check(body)


@pytest.mark.parametrize(("name", "lease"), [("", 1.0), ("trainer", 0.0), ("x" * 201, 1.0)])
def test_a_consumer_that_makes_no_sense_is_refused(check: Check, name: str, lease: float) -> None:
    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(), make_tasks("a"))
        with pytest.raises(UsageError):
            await consuming(journal, run, name, lease_seconds=lease)
        trainer = await consuming(journal, run)
        with pytest.raises(UsageError, match="groups"):
            await journal.next_batch(trainer, 1, groups=0)

    check(body)
