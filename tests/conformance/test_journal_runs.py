"""Every journal plans runs and hands out their groups in the same way."""

import asyncio

import pytest
from msgspec import structs

from holdfast.journal.sql.journal import Journal
from holdfast.records.errors import UsageError
from holdfast.records.trajectory import Status, TrajectoryKey
from support.conformance.journals import Check, every_journal  # noqa: F401 - the fixture
from support.records import consuming, joined, make_tasks, ready, settle, settle_one, spec, values


def test_a_run_is_found_again_with_everything_it_was_created_with(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(samples=3), make_tasks("a", "b"))
        stored_run = await journal.find_run("run")
        assert stored_run is not None
        assert (stored_run.id, stored_run.spec, stored_run.changes) == (run.id, run.spec, ())
        assert await journal.tasks(stored_run) == make_tasks("a", "b")
        assert await journal.find_run("other") is None

    check(body)


def test_a_name_is_taken_once(check: Check) -> None:
    async def body(journal: Journal) -> None:
        await journal.create_run(spec(), make_tasks("a"))
        with pytest.raises(UsageError, match="exists already"):
            await journal.create_run(spec(), make_tasks("b"))
        assert [row.name for row in await journal.runs()] == ["run"]
        stored_run = await journal.find_run("run")
        assert stored_run is not None
        assert [task.id for task in await journal.tasks(stored_run)] == ["a"]

    check(body)


def test_planning_makes_every_sample_of_every_task_in_order(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(samples=2), make_tasks("b", "a"))
        rows = await journal.trajectories(run)
        assert [row.key for row in rows] == [
            TrajectoryKey("run", task, sample) for task in ("b", "a") for sample in (0, 1)
        ]
        assert {row.status for row in rows} == {Status.PENDING}
        assert len({row.id for row in rows}) == 4
        assert not any(row.settled or row.records or row.owner for row in rows)

    check(body)


def test_a_run_is_rolled_out_once_nothing_is_left_to_sample(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, worker, claims = await ready(journal, "a", "b")

        async def states() -> tuple[bool, bool]:
            return (
                await journal.is_rolled_out(run, retries_failed=False),
                await journal.is_rolled_out(run, retries_failed=True),
            )

        await settle(journal, claims[0])
        assert await states() == (False, False)
        done, failed = claims[1].open
        # An outcome without a score counts, and a trajectory that failed for good may be retried.
        await journal.append(done, values(1), status=Status.COMPLETED)
        await journal.append(failed, values(1), status=Status.FAILED, settled=True)
        assert await states() == (True, False)
        await journal.leave(worker)
        await journal.amend_run(run, run.spec, make_tasks("a"), differences=[])
        assert await states() == (True, True)
        await journal.unseal(run)
        assert await states() == (False, False)

    check(body)


def test_the_listing_counts_what_there_is(check: Check) -> None:
    async def body(journal: Journal) -> None:
        _, worker, claims = await ready(journal, "a", "b")
        await settle(journal, claims[0])
        (row,) = await journal.runs()
        assert (row.tasks, row.samples, row.settled) == (2, 2, 2)
        assert row.by_status == {"PENDING": 2, "COMPLETED": 2}
        assert row.sealed
        assert row.live_workers == (str(worker.identity),)
        await journal.leave(worker)
        (row,) = await journal.runs()
        assert row.live_workers == ()

    check(body)


def test_a_run_has_live_workers_until_they_leave_or_it_is_deleted(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, worker, _ = await ready(journal, "a")
        assert await journal.live_workers(run) == (str(worker.identity),)
        await journal.leave(worker)
        assert await journal.live_workers(run) == ()
        await journal.delete_run(run)
        assert await journal.live_workers(run) == ()

    check(body)


def test_the_listing_says_which_runs_are_open_for_more_tasks(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(), (), sealed=False)
        assert [row.sealed for row in await journal.runs()] == [False]
        await journal.seal(run)
        assert [row.sealed for row in await journal.runs()] == [True]

    check(body)


def test_amending_plans_new_tasks_and_lets_missing_ones_rest(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(samples=1), make_tasks("a", "b"))
        amended = await journal.amend_run(
            run, spec(samples=2), make_tasks("b", "c"), differences=["tasks"]
        )
        stored_run = await journal.find_run("run")
        assert stored_run is not None
        assert stored_run.spec.samples == 2
        assert [change.differences for change in stored_run.changes] == [("tasks",)]
        assert [task.id for task in await journal.tasks(amended)] == ["a", "b", "c"]
        worker = await joined(journal, amended)
        claims = await journal.claim(worker, groups=9)
        assert [(claim.task.id, len(claim.open)) for claim in claims] == [("b", 2), ("c", 2)]

    check(body)


def test_what_settles_in_a_resting_task_counts_for_nothing(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, "a", samples=1)
        run = await journal.amend_run(run, run.spec, make_tasks("b"), differences=[])
        await settle(journal, claims[0])
        progress = await journal.progress(run)
        assert (progress.planned, progress.settled, progress.is_over) == (1, 0, False)

    check(body)


def test_a_resting_task_comes_back_with_its_records(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, worker, claims = await ready(journal, "a", samples=1)
        await journal.append(claims[0].open[0], values(1))
        await journal.leave(worker)
        run = await journal.amend_run(run, run.spec, make_tasks("b"), differences=[])
        run = await journal.amend_run(run, run.spec, make_tasks("b", "a"), differences=[])
        worker = await joined(journal, run)
        claims = await journal.claim(worker, groups=9)
        assert [claim.task.id for claim in claims] == ["a", "b"]
        assert claims[0].open[0].next_seq == 1

    check(body)


def test_a_delivered_group_gets_no_more_members(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, "a", "b", samples=1)
        await settle(journal, claims[0])
        trainer = await consuming(journal, run)
        before = await journal.next_batch(trainer, 1, groups=1)
        run = await journal.amend_run(
            run, spec(samples=2), make_tasks("a", "b"), differences=["samples"]
        )
        assert await journal.next_batch(trainer, 1, groups=1) == before
        assert [row.key.task for row in await journal.trajectories(run)] == ["a", "b", "b"]

    check(body)


def test_another_scorer_opens_outcomes_again_and_is_refused_while_a_consumer_has_groups(
    check: Check,
) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, "a", "b", "c", samples=1)
        for claim in claims:
            await settle(journal, claim)
        other = structs.replace(spec(samples=1), scorer="other")
        tasks = make_tasks("a", "b", "c")
        mine, idle = await consuming(journal, run, "mine"), await consuming(journal, run, "idle")
        assert await journal.held_groups(run) == {}
        await journal.next_batch(mine, 1, groups=1)
        await journal.commit(mine, 1)
        await journal.next_batch(mine, 2, groups=1)
        await journal.dismiss(mine, ["b"], reason="too old")
        assert await journal.held_groups(run) == {"mine": ["a", "b"]}
        for spec_now in (other, structs.replace(run.spec, scorer="third")):
            with pytest.raises(UsageError, match=r"consumer 'mine' has 2 groups .* checkpoint=0"):
                await journal.amend_run(run, spec_now, tasks, differences=["scorer"])
        stored_run = await journal.find_run("run")
        assert stored_run is not None
        assert stored_run.spec.scorer == ""
        assert stored_run.changes == ()
        assert (await journal.progress(run)).settled == 3
        await journal.rewind(mine, 0)
        assert await journal.held_groups(run) == {}
        run = await journal.amend_run(run, other, tasks, differences=["scorer"])
        assert (await journal.progress(run)).settled == 0
        assert (await journal.next_batch(idle, 1, groups=1)).groups == ()

    check(body)


def test_a_task_that_is_corrected_has_its_outcomes_scored_anew_and_no_others(check: Check) -> None:
    async def body(journal: Journal) -> None:
        scored_by = structs.replace(spec(samples=2), scorer="scorer")
        run = await journal.create_run(scored_by, make_tasks("a", "b", "c"))
        for claim in await journal.claim(await joined(journal, run), groups=2):
            await settle(journal, claim)
        first, second, third = make_tasks("a", "b", "c")
        corrected = [first, structs.replace(second, ground_truth="2"), third]
        trainer = await consuming(journal, run)
        await journal.next_batch(trainer, 1, groups=1)
        run = await journal.amend_run(run, scored_by, corrected, differences=["tasks"])
        rows = await journal.trajectories(run)
        assert {row.key.task for row in rows if row.settled} == {"a"}
        assert {row.key.task for row in rows if row.status is Status.COMPLETED} == {"a", "b"}
        assert (await journal.progress(run)).settled == 2
        assert await journal.tasks(run) == corrected
        await journal.commit(trainer, 1)
        assert (await journal.next_batch(trainer, 2, groups=1)).groups == (), "b is not settled"
        held = [structs.replace(first, ground_truth="1"), *corrected[1:]]
        with pytest.raises(UsageError, match="consumer 'trainer' has 1 group of tasks that"):
            await journal.amend_run(run, scored_by, held, differences=["tasks"])
        assert await journal.tasks(run) == corrected

    check(body)


# --- claims


def test_claims_are_whole_groups_in_task_order(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(samples=3), make_tasks("c", "a", "b"))
        worker = await joined(journal, run)
        first = await journal.claim(worker, groups=2)
        second = await journal.claim(worker, groups=2)
        assert [claim.task.id for claim in first + second] == ["c", "a", "b"]
        assert all([lease.key.sample for lease in claim.open] == [0, 1, 2] for claim in first)
        assert [claim.ordinal for claim in first] == [0, 1]
        assert await journal.claim(worker, groups=2) == []

    check(body)


def test_a_claim_shows_the_members_that_are_settled_already(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, worker, claims = await ready(journal, "a", samples=2)
        await settle_one(journal, claims[0].open[0])
        await journal.leave(worker)
        (claim,) = await journal.claim(await joined(journal, run), groups=1)
        assert [row.key.sample for row in claim.settled] == [0]
        assert [lease.key.sample for lease in claim.open] == [1]
        assert claim.settled[0].status is Status.COMPLETED

    check(body)


def test_settled_groups_are_not_claimed_again(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, worker, claims = await ready(journal, "a", "b")
        await settle(journal, claims[0])
        await journal.leave(worker)
        claims = await journal.claim(await joined(journal, run), groups=9)
        assert [claim.task.id for claim in claims] == ["b"]

    check(body)


def test_two_workers_never_hold_the_same_group(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(), make_tasks(*"abcdef"))
        workers = [await joined(journal, run) for _ in range(3)]
        claims = await asyncio.gather(*(journal.claim(worker, groups=2) for worker in workers))
        names = [claim.task.id for some in claims for claim in some]
        assert sorted(names) == list("abcdef")

    check(body)


def test_a_worker_goes_back_to_groups_that_others_gave_back(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(), make_tasks("a", "b"))
        first, second = await joined(journal, run), await joined(journal, run)
        await journal.claim(first, groups=1)
        (claim,) = await journal.claim(second, groups=1)
        assert claim.task.id == "b"
        await journal.leave(first)
        (claim,) = await journal.claim(second, groups=1)
        assert claim.task.id == "a"

    check(body)
