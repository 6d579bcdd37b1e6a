"""Every journal keeps the same promises. A new implementation joins by adding a factory."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from builders import (
    finished,
    generated,
    joined,
    make_tasks,
    me,
    ready,
    settle,
    settle_one,
    someone_else,
    spec,
    started,
    value,
    values,
)
from holdfast.journal.journal import Batch, Journal, Lease, WorkerIdentity
from holdfast.journal.memory import MemoryJournal
from holdfast.journal.sqlite import SqliteJournal
from holdfast.records.errors import JournalError, LeaseLost, RunHeld, UsageError
from holdfast.records.group import GroupPolicy, Shortfall
from holdfast.records.step import Reopened, ValueRecorded
from holdfast.records.trajectory import Status, TrajectoryKey
from holdfast.testing.faulty import FaultyJournal

Factory = Callable[[Path], Journal]
Check = Callable[[Callable[[Journal], Awaitable[None]]], None]

FACTORIES: dict[str, Factory] = {
    "memory": lambda folder: MemoryJournal(),
    "sqlite": lambda folder: SqliteJournal(folder / "journal.db"),
    # Without a fault it is its journal.
    "faulty": lambda folder: FaultyJournal(MemoryJournal()),
}
FOR_EVER = 600.0
SOON = 0.05


@pytest.fixture(params=sorted(FACTORIES))
def check(request: pytest.FixtureRequest, tmp_path: Path) -> Check:
    """Runs a coroutine function with a fresh journal."""

    def run(body: Callable[[Journal], Awaitable[None]]) -> None:
        async def with_journal() -> None:
            journal = FACTORIES[request.param](tmp_path)
            try:
                await body(journal)
            finally:
                await journal.close()

        asyncio.run(with_journal())

    return run


async def until_expired(journal: Journal) -> None:
    """Leases run on the journal's own clock, so this one has to pass for real."""
    del journal
    await asyncio.sleep(2 * SOON)


def names_of(batch: Batch) -> list[str]:
    return [group[0].key.task for group in batch.groups]


# --- runs and planning


def test_a_run_is_found_again_with_everything_it_was_created_with(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(samples=3), make_tasks("a", "b"))
        found = await journal.find_run("run")
        assert found is not None
        assert (found.id, found.spec, found.changes) == (run.id, run.spec, ())
        assert await journal.tasks(found) == make_tasks("a", "b")
        assert await journal.find_run("other") is None

    check(body)


def test_a_name_is_taken_once(check: Check) -> None:
    async def body(journal: Journal) -> None:
        await journal.create_run(spec(), make_tasks("a"))
        with pytest.raises(UsageError, match="exists already"):
            await journal.create_run(spec(), make_tasks("b"))
        assert [row.name for row in await journal.runs()] == ["run"]
        found = await journal.find_run("run")
        assert found is not None
        assert [task.id for task in await journal.tasks(found)] == ["a"]

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


def test_the_listing_counts_what_there_is(check: Check) -> None:
    async def body(journal: Journal) -> None:
        _, worker, claims = await ready(journal, "a", "b")
        await settle(journal, claims[0])
        (row,) = await journal.runs()
        assert (row.tasks, row.samples, row.settled) == (2, 2, 2)
        assert row.by_status == {"PENDING": 2, "COMPLETED": 2}
        assert row.live_workers == (str(worker.identity),)
        await journal.leave(worker)
        (row,) = await journal.runs()
        assert row.live_workers == ()

    check(body)


def test_amending_plans_new_tasks_and_lets_missing_ones_rest(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(samples=1), make_tasks("a", "b"))
        amended = await journal.amend_run(
            run, spec(samples=2), make_tasks("b", "c"), differences=["tasks"]
        )
        found = await journal.find_run("run")
        assert found is not None
        assert found.spec.samples == 2
        assert [change.differences for change in found.changes] == [("tasks",)]
        assert [task.id for task in await journal.tasks(amended)] == ["a", "b", "c"]
        worker = await joined(journal, amended)
        claims = await journal.claim(worker, groups=9)
        assert [(claim.task.id, len(claim.open)) for claim in claims] == [("b", 2), ("c", 2)]

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
        before = await journal.next_batch(run, "trainer", 1, groups=1)
        run = await journal.amend_run(
            run, spec(samples=2), make_tasks("a", "b"), differences=["samples"]
        )
        assert await journal.next_batch(run, "trainer", 1, groups=1) == before
        assert [row.key.task for row in await journal.trajectories(run)] == ["a", "b", "b"]

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
        claims = await asyncio.gather(*(journal.claim(one, groups=2) for one in workers))
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


# --- the log


def test_what_was_appended_is_read_back_in_order(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, "a", samples=1)
        (lease,) = claims[0].open
        records = [started(), generated("0"), value(1), finished()]
        await journal.append(lease, records[:2], status=Status.RUNNING)
        await journal.append(lease, records[2:], status=Status.COMPLETED, settled=True)
        assert await journal.history(lease.id) == records
        (row,) = await journal.trajectories(run)
        assert (row.status, row.settled, row.records) == (Status.COMPLETED, True, 4)
        assert (lease.status, lease.settled, lease.next_seq) == (Status.COMPLETED, True, 4)
        assert [(row.id, read) async for row, read in journal.histories(run)] == [
            (lease.id, records)
        ]

    check(body)


def test_a_status_alone_can_be_written(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, "a", samples=1)
        await journal.append(claims[0].open[0], [], status=Status.RUNNING)
        (row,) = await journal.trajectories(run)
        assert (row.status, row.records) == (Status.RUNNING, 0)

    check(body)


def test_concurrent_appends_of_one_lease_keep_their_order(check: Check) -> None:
    async def body(journal: Journal) -> None:
        _, _, claims = await ready(journal, "a", samples=1)
        (lease,) = claims[0].open
        await asyncio.gather(*(journal.append(lease, values(n, n)) for n in range(300)))
        found = [int(one.path) for one in await journal.history(lease.id)]  # type: ignore[union-attr]
        assert found == [n for n in range(300) for _ in range(2)]

    check(body)


def test_cancelling_a_waiter_does_not_cancel_the_write(check: Check) -> None:
    async def body(journal: Journal) -> None:
        _, _, claims = await ready(journal, "a", samples=1)
        (lease,) = claims[0].open
        waiting = asyncio.ensure_future(journal.append(lease, values(1)))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await journal.append(lease, values(2))
        assert await journal.history(lease.id) == values(1, 2)

    check(body)


def test_a_record_that_cannot_be_encoded_fails_only_its_caller(check: Check) -> None:
    async def body(journal: Journal) -> None:
        _, _, claims = await ready(journal, "a", samples=2)
        one, two = claims[0].open
        bad = ValueRecorded("0", b"", "lone surrogate \ud800", b"")
        outcomes = await asyncio.gather(
            journal.append(two, values(1)),
            journal.append(one, [bad]),
            journal.append_together([(two, values(2), None), (one, [bad], None)]),
            journal.append(one, values(1)),
            journal.append(two, values(3)),
            return_exceptions=True,
        )
        assert [outcome is None for outcome in outcomes] == [True, False, False, True, True]
        assert await journal.history(one.id) == values(1)
        assert await journal.history(two.id) == values(1, 3)

    check(body)


def test_appending_together_is_all_or_nothing(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, worker, claims = await ready(journal, "a", "b", samples=1)
        stale = claims[0].open[0]
        await journal.leave(worker)
        worker = await joined(journal, run)
        mine = (await journal.claim(worker, groups=2))[1].open[0]
        with pytest.raises(LeaseLost):
            await journal.append_together(
                [(mine, values(1), Status.RUNNING), (stale, values(1), Status.RUNNING)]
            )
        assert await journal.history(mine.id) == []
        assert [row.status for row in await journal.trajectories(run)] == [Status.PENDING] * 2

    check(body)


def test_appending_together_writes_all(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, "a", samples=3)
        entries = [(lease, values(1, 2), Status.COMPLETED) for lease in claims[0].open]
        await journal.append_together(entries, settled=True)
        rows = await journal.trajectories(run)
        assert [(row.status, row.settled, row.records) for row in rows] == [
            (Status.COMPLETED, True, 2)
        ] * 3

    check(body)


def test_a_lease_whose_append_failed_takes_no_more(check: Check) -> None:
    async def body(journal: Journal) -> None:
        _, worker, claims = await ready(journal, "a", samples=1)
        (lease,) = claims[0].open
        await journal.leave(worker)
        with pytest.raises(LeaseLost):
            await journal.append(lease, values(1))
        assert isinstance(lease.broken, LeaseLost)
        with pytest.raises(LeaseLost):
            await journal.append(lease, values(2))

    check(body)


# --- fencing


def test_a_stale_lease_writes_nothing_and_its_neighbour_is_unaffected(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, worker, claims = await ready(journal, "a", samples=2)
        stale = claims[0].open[0]
        await journal.append(stale, values(1))
        await journal.leave(worker)
        (claim,) = await journal.claim(await joined(journal, run), groups=1)
        fresh = claim.open[0]
        assert (fresh.id, fresh.next_seq) == (stale.id, 1)
        assert fresh.epoch > stale.epoch
        outcomes = await asyncio.gather(
            journal.append(stale, values(66), status=Status.FAILED, settled=True),
            journal.append(fresh, values(2), status=Status.RUNNING),
            journal.append(claim.open[1], values(3)),
            return_exceptions=True,
        )
        assert [type(outcome) for outcome in outcomes] == [LeaseLost, type(None), type(None)]
        assert await journal.history(fresh.id) == values(1, 2)
        assert await journal.history(claim.open[1].id) == values(3)
        row = (await journal.trajectories(run))[0]
        assert (row.status, row.settled) == (Status.RUNNING, False)

    check(body)


def test_an_expired_worker_is_taken_over_and_fenced(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(samples=1), make_tasks("a"))
        asleep = await journal.join(run, someone_else(), lease_seconds=SOON, share=False)
        (old,) = await journal.claim(asleep, groups=1)
        await until_expired(journal)
        awake = await journal.join(run, me(), lease_seconds=FOR_EVER, share=False)
        (new,) = await journal.claim(awake, groups=1)
        with pytest.raises(LeaseLost):
            await journal.append(old.open[0], values(1))
        with pytest.raises(LeaseLost):
            await journal.heartbeat(asleep)
        with pytest.raises(LeaseLost):
            await journal.claim(asleep, groups=1)
        await journal.append(new.open[0], values(2))
        assert await journal.history(new.open[0].id) == values(2)

    check(body)


def test_a_buried_worker_is_never_taken_for_its_successor(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(samples=1), make_tasks("a"))
        asleep = await journal.join(run, someone_else(), lease_seconds=SOON, share=False)
        await until_expired(journal)
        awake = await journal.join(run, me(), lease_seconds=FOR_EVER, share=False)
        (claim,) = await journal.claim(awake, groups=1)
        await journal.leave(asleep)
        await journal.heartbeat(awake)
        await journal.append(claim.open[0], values(1))
        assert asleep.id != awake.id

    check(body)


def test_expired_groups_are_claimed_by_a_worker_that_shares_the_run(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(samples=1), make_tasks("a", "b"))
        awake = await joined(journal, run)
        asleep = await journal.join(run, someone_else(), lease_seconds=SOON, share=True)
        (old,) = await journal.claim(asleep, groups=1)
        await until_expired(journal)
        claims = await journal.claim(awake, groups=2)
        assert [claim.task.id for claim in claims] == ["a", "b"]
        with pytest.raises(LeaseLost):
            await journal.append(old.open[0], values(1))

    check(body)


def test_a_heartbeat_keeps_the_leases(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(samples=1), make_tasks("a"))
        other = await joined(journal, run)
        worker = await journal.join(run, someone_else(), lease_seconds=1.0, share=True)
        (claim,) = await journal.claim(worker, groups=1)
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            await journal.heartbeat(worker)
            assert await journal.claim(other, groups=1) == []
            await asyncio.sleep(0.1)
        await journal.append(claim.open[0], values(1))

    check(body)


def test_a_worker_that_overslept_does_not_claim_its_own_groups_anew(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(samples=1), make_tasks("a", "b"))
        worker = await journal.join(run, someone_else(), lease_seconds=SOON, share=True)
        (first,) = await journal.claim(worker, groups=1)
        await until_expired(journal)
        claims = await journal.claim(worker, groups=9)
        assert [claim.task.id for claim in claims] == ["b"]
        await journal.append(first.open[0], values(1))

    check(body)


def test_leaving_gives_leases_back_at_once(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, worker, claims = await ready(journal, "a")
        await journal.leave(worker)
        other = await joined(journal, run, share=False)
        assert [claim.task.id for claim in await journal.claim(other, groups=1)] == ["a"]
        with pytest.raises(LeaseLost):
            await journal.append(claims[0].open[0], values(1))

    check(body)


def test_a_held_run_is_refused_unless_it_is_shared(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(), make_tasks("a"))
        other = await journal.create_run(spec("other"), make_tasks("a"))
        await journal.join(run, someone_else(77), lease_seconds=FOR_EVER, share=False)
        with pytest.raises(RunHeld, match="process 77 on elsewhere"):
            await journal.join(run, me(), lease_seconds=FOR_EVER, share=False)
        await journal.join(run, me(), lease_seconds=FOR_EVER, share=True)
        await journal.join(other, me(), lease_seconds=FOR_EVER, share=False)

    check(body)


def test_a_dead_process_holds_nothing(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(samples=1), make_tasks("a"))
        here = me()
        dead = WorkerIdentity(here.host, here.pid, "another process with the same number")
        worker = await journal.join(run, dead, lease_seconds=FOR_EVER, share=False)
        (old,) = await journal.claim(worker, groups=1)
        worker = await journal.join(run, here, lease_seconds=FOR_EVER, share=False)
        assert len(await journal.claim(worker, groups=1)) == 1
        with pytest.raises(LeaseLost):
            await journal.append(old.open[0], values(1))

    check(body)


# --- reopening and cutting


def test_reopening_opens_failed_trajectories_and_no_others(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, worker, claims = await ready(journal, "a", samples=2)
        one, two = claims[0].open
        await settle_one(journal, one, status=Status.FAILED)
        await settle_one(journal, two)
        assert await journal.reopen(run, reason="try again") == 1
        assert await journal.reopen(run, reason="try again") == 0
        with pytest.raises(LeaseLost):
            await journal.append(one, values(1))
        await journal.leave(worker)
        (claim,) = await journal.claim(await joined(journal, run), groups=1)
        assert [lease.key.sample for lease in claim.open] == [0]
        last = (await journal.history(one.id))[-1]
        assert isinstance(last, Reopened)
        assert (last.reason, claim.open[0].next_seq) == ("try again", 3)

    check(body)


def test_reopening_leaves_delivered_groups_alone(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, "a", samples=2)
        one, two = claims[0].open
        await settle_one(journal, one, status=Status.FAILED)
        await settle_one(journal, two)
        before = await journal.next_batch(run, "trainer", 1, groups=1)
        assert await journal.reopen(run, reason="try again") == 0
        assert await journal.next_batch(run, "trainer", 1, groups=1) == before

    check(body)


def test_cutting_a_whole_log_changes_nothing(check: Check) -> None:
    async def body(journal: Journal) -> None:
        _, _, claims = await ready(journal, "a", samples=1)
        (lease,) = claims[0].open
        await journal.append(lease, values(1))
        assert await journal.cut(lease) is None
        await journal.append(lease, values(2))
        assert await journal.history(lease.id) == values(1, 2)

    check(body)


def test_a_stale_lease_cuts_nothing(check: Check) -> None:
    async def body(journal: Journal) -> None:
        _, worker, claims = await ready(journal, "a", samples=1)
        await journal.leave(worker)
        with pytest.raises(LeaseLost):
            await journal.cut(claims[0].open[0])

    check(body)


# --- blobs


def test_a_blob_is_stored_once_and_named_by_its_content(check: Check) -> None:
    async def body(journal: Journal) -> None:
        one, two = await asyncio.gather(journal.put_blob(b"same"), journal.put_blob(b"same"))
        other = await journal.put_blob(b"other")
        assert one == two != other
        assert await journal.get_blob(one) == b"same"
        assert await journal.get_blob(other) == b"other"
        with pytest.raises(JournalError, match="no blob"):
            await journal.get_blob(b"\0" * 32)

    check(body)


# --- delivery


def test_groups_are_delivered_whole_and_in_the_order_they_settled(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, "a", "b", "c")
        await settle(journal, claims[2])
        await settle(journal, claims[0])
        await settle_one(journal, claims[1].open[0])
        batch = await journal.next_batch(run, "trainer", 1, groups=9)
        assert names_of(batch) == ["c", "a"]
        assert [len(group) for group in batch.groups] == [2, 2]
        await settle_one(journal, claims[1].open[1])
        assert names_of(await journal.next_batch(run, "trainer", 2, groups=9)) == ["b"]
        assert names_of(await journal.next_batch(run, "trainer", 3, groups=9)) == []

    check(body)


def test_the_same_step_gets_the_same_batch(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, "a", "b", "c")
        for claim in claims:
            await settle(journal, claim)
        first = await journal.next_batch(run, "trainer", 1, groups=1)
        again = await journal.next_batch(run, "trainer", 1, groups=9)
        assert first == again
        assert names_of(await journal.next_batch(run, "trainer", 2, groups=1)) == ["b"]
        assert await journal.next_batch(run, "trainer", 1, groups=1) == first

    check(body)


def test_consumers_do_not_share_their_deliveries(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, "a")
        await settle(journal, claims[0])
        for consumer in ("trainer", "judge"):
            assert names_of(await journal.next_batch(run, consumer, 1, groups=1)) == ["a"]

    check(body)


def test_an_earlier_step_than_the_last_is_refused(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, "a", "b")
        await settle(journal, claims[0])
        await journal.next_batch(run, "trainer", 5, groups=1)
        await settle(journal, claims[1])
        with pytest.raises(UsageError, match="step 5"):
            await journal.next_batch(run, "trainer", 4, groups=1)
        assert names_of(await journal.next_batch(run, "trainer", 6, groups=1)) == ["b"]

    check(body)


def test_a_step_that_a_checkpoint_holds_gets_nothing_new(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, "a")
        await settle(journal, claims[0])
        await journal.commit(run, "trainer", 7)
        # Delivered under step 7, a rewind to the checkpoint of step 7 would not give it back.
        with pytest.raises(UsageError, match="step 7"):
            await journal.next_batch(run, "trainer", 7, groups=1)
        assert names_of(await journal.next_batch(run, "trainer", 8, groups=1)) == ["a"]

    check(body)


@pytest.mark.parametrize(
    ("policy", "failed", "kept"),
    [
        (GroupPolicy(), 0, True),
        (GroupPolicy(), 2, True),
        (GroupPolicy(), 3, False),
        (GroupPolicy(at_least=2), 1, True),
        (GroupPolicy(at_least=2), 2, False),
        (GroupPolicy(shortfall=Shortfall.DROP), 0, True),
        (GroupPolicy(shortfall=Shortfall.DROP), 1, False),
    ],
)
def test_dropped_groups_are_never_delivered(
    check: Check, policy: GroupPolicy, failed: int, kept: bool
) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, "a", "b", samples=3, group=policy)
        for number, lease in enumerate(claims[0].open):
            status = Status.FAILED if number < failed else Status.COMPLETED
            await settle_one(journal, lease, status=status)
        await settle(journal, claims[1])
        batch = await journal.next_batch(run, "trainer", 1, groups=9)
        assert names_of(batch) == (["a", "b"] if kept else ["b"])
        assert names_of(await journal.next_batch(run, "trainer", 2, groups=9)) == []

    check(body)


def test_rewinding_gives_back_exactly_what_came_later(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, *"abcd", samples=1)
        for claim in claims:
            await settle(journal, claim)
        for step in (1, 2, 3):
            await journal.next_batch(run, "trainer", step, groups=1)
        await journal.commit(run, "trainer", 1)
        assert await journal.rewind(run, "trainer", 1) == 2
        assert names_of(await journal.next_batch(run, "trainer", 1, groups=1)) == ["a"]
        assert names_of(await journal.next_batch(run, "trainer", 2, groups=9)) == ["b", "c", "d"]
        assert await journal.rewind(run, "trainer", 2) == 0

    check(body)


def test_rewinding_behind_a_commit_believes_the_restored_checkpoint(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, "a", samples=1)
        await settle(journal, claims[0])
        await journal.next_batch(run, "trainer", 2, groups=1)
        await journal.commit(run, "trainer", 2)
        assert await journal.rewind(run, "trainer", 0) == 1
        assert names_of(await journal.next_batch(run, "trainer", 1, groups=1)) == ["a"]

    check(body)


def test_closing_twice_is_no_error(check: Check) -> None:
    async def body(journal: Journal) -> None:
        _, _, claims = await ready(journal, "a")
        lease: Lease = claims[0].open[0]
        await journal.append(lease, values(1))
        await journal.close()

    check(body)
