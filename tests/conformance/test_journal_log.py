"""Every journal keeps what was appended: in order, all or nothing, and once."""

import asyncio

import pytest

from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import Lease
from holdfast.records.errors import JournalError, LeaseLost
from holdfast.records.step import Reopened, ValueRecorded
from holdfast.records.trajectory import Status
from support.conformance.journals import Check, every_journal  # noqa: F401 - the fixture
from support.records import (
    consuming,
    finished,
    generated,
    joined,
    ready,
    settle_one,
    started,
    value,
    values,
)


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
        result = [int(item.path) for item in await journal.history(lease.id)]  # type: ignore[union-attr]
        assert result == [n for n in range(300) for _ in range(2)]

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
        first, two = claims[0].open
        bad = ValueRecorded("0", b"", "lone surrogate \ud800", b"")
        outcomes = await asyncio.gather(
            journal.append(two, values(1)),
            journal.append(first, [bad]),
            journal.append_together([(two, values(2), None), (first, [bad], None)]),
            journal.append(first, values(1)),
            journal.append(two, values(3)),
            return_exceptions=True,
        )
        assert [outcome is None for outcome in outcomes] == [True, False, False, True, True]
        assert await journal.history(first.id) == values(1)
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


def test_a_settled_trajectory_that_fails_later_counts_as_failed(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, "a", samples=1)
        (lease,) = claims[0].open
        await settle_one(journal, lease)
        await journal.append(lease, [finished(Status.FAILED)], status=Status.FAILED)
        assert (await journal.progress(run)).failed == 1

    check(body)


# --- reopening and cutting


def test_reopening_opens_failed_trajectories_and_no_others(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, worker, claims = await ready(journal, "a", samples=2)
        first, two = claims[0].open
        await settle_one(journal, first, status=Status.FAILED)
        await settle_one(journal, two)
        assert await journal.reopen(run, reason="try again") == 1
        assert await journal.reopen(run, reason="try again") == 0
        with pytest.raises(LeaseLost):
            await journal.append(first, values(1))
        await journal.leave(worker)
        (claim,) = await journal.claim(await joined(journal, run), groups=1)
        assert [lease.key.sample for lease in claim.open] == [0]
        last = (await journal.history(first.id))[-1]
        assert isinstance(last, Reopened)
        assert (last.reason, claim.open[0].next_seq) == ("try again", 3)

    check(body)


def test_reopening_leaves_delivered_groups_alone(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, "a", samples=2)
        first, two = claims[0].open
        await settle_one(journal, first, status=Status.FAILED)
        await settle_one(journal, two)
        trainer = await consuming(journal, run)
        before = await journal.next_batch(trainer, 1, groups=1)
        assert await journal.reopen(run, reason="try again") == 0
        assert await journal.next_batch(trainer, 1, groups=1) == before

    check(body)


def test_reopening_leaves_dismissed_groups_alone(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, "a", samples=2)
        first, two = claims[0].open
        await settle_one(journal, first, status=Status.FAILED)
        await settle_one(journal, two)
        trainer = await consuming(journal, run)
        await journal.next_batch(trainer, 1, groups=1)
        await journal.dismiss(trainer, ["a"], reason="too old")
        assert await journal.reopen(run, reason="try again") == 0

    check(body)


def test_a_reopened_group_of_which_nothing_was_valid_is_delivered_when_it_is_settled_again(
    check: Check,
) -> None:
    async def body(journal: Journal) -> None:
        run, worker, claims = await ready(journal, "a", "b", samples=1)
        await settle_one(journal, claims[0].open[0], status=Status.FAILED)
        trainer = await consuming(journal, run)
        assert (await journal.next_batch(trainer, 1, groups=1)).groups == ()
        await journal.leave(worker)
        await journal.reopen(run, reason="try again")
        (claim, _) = await journal.claim(await joined(journal, run), groups=2)
        await settle_one(journal, claim.open[0])
        batch = await journal.next_batch(trainer, 1, groups=1)
        assert [group[0].key.task for group in batch.groups] == ["a"]

    check(body)


def test_rescoring_opens_the_named_outcomes_as_they_are_and_no_others(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, worker, claims = await ready(journal, "a", "b", samples=2)
        first, two, three, four = (lease for claim in claims for lease in claim.open)
        for lease in (first, two, three):
            await settle_one(journal, lease)
        await settle_one(journal, four, status=Status.FAILED)
        before = await journal.history(first.id)
        assert await journal.rescore(run, [first.id, four.id, 4711]) == 1
        assert await journal.rescore(run, [first.id]) == 0
        with pytest.raises(LeaseLost):
            await journal.append(first, values(1))
        await journal.leave(worker)
        (claim,) = await journal.claim(await joined(journal, run), groups=2)
        (lease,) = claim.open
        assert (lease.id, lease.status) == (first.id, Status.COMPLETED)
        assert await journal.history(first.id) == before

    check(body)


def test_rescoring_leaves_delivered_groups_alone(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, "a", samples=1)
        await settle_one(journal, claims[0].open[0])
        trainer = await consuming(journal, run)
        before = await journal.next_batch(trainer, 1, groups=1)
        assert await journal.rescore(run, [claims[0].open[0].id]) == 0
        assert await journal.next_batch(trainer, 1, groups=1) == before

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
        first, two = await asyncio.gather(journal.put_blob(b"same"), journal.put_blob(b"same"))
        other = await journal.put_blob(b"other")
        assert first == two != other
        assert await journal.get_blob(first) == b"same"
        assert await journal.get_blob(other) == b"other"
        with pytest.raises(JournalError, match="no blob"):
            await journal.get_blob(b"\0" * 32)

    check(body)


# --- the end


def test_closing_twice_is_no_error(check: Check) -> None:
    async def body(journal: Journal) -> None:
        _, _, claims = await ready(journal, "a")
        lease: Lease = claims[0].open[0]
        await journal.append(lease, values(1))
        await journal.close()

    check(body)
