"""Every journal is fenced: who lost a lease writes nothing, and no clock decides that."""

import asyncio
import time

import pytest
from msgspec import structs

from holdfast.journal.sql.journal import Journal
from holdfast.records.errors import LeaseLost, RunHeld
from holdfast.records.trajectory import Status
from support.conformance.journals import Check, every_journal  # noqa: F401 - the fixture
from support.records import joined, make_tasks, me, ready, settle_one, someone_else, spec, values

FOR_EVER = 600.0
SOON = 0.05
UNUSED_PID = 2**22 - 1


async def until_expired(journal: Journal) -> None:
    """Leases run on the journal's own clock, so this one has to pass for real."""
    del journal
    await asyncio.sleep(2 * SOON)


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


def test_a_run_that_is_held_says_until_when(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(samples=1), make_tasks("a"))
        await journal.join(run, someone_else(), lease_seconds=90, share=False)
        with pytest.raises(RunHeld, match=r"its lease ends in (8\d|90) s.*join=True"):
            await journal.join(run, me(), lease_seconds=FOR_EVER, share=False)

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
        worker = await journal.join(run, someone_else(), lease_seconds=2.0, share=True)
        (claim,) = await journal.claim(worker, groups=1)
        end = time.monotonic() + 2.5
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


def test_a_worker_that_left_writes_nothing_even_before_another_one_claims(check: Check) -> None:
    async def body(journal: Journal) -> None:
        _, worker, claims = await ready(journal, "a", samples=1)
        await journal.leave(worker)
        with pytest.raises(LeaseLost):
            await journal.append(claims[0].open[0], values(1))

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


def test_a_worker_claims_its_first_group_again_after_it_was_opened_again(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, worker, claims = await ready(journal, "a", samples=1)
        await settle_one(journal, claims[0].open[0], status=Status.FAILED)
        assert await journal.claim(worker, groups=1) == []
        assert await journal.reopen(run, reason="try again") == 1
        (claim,) = await journal.claim(worker, groups=1)
        assert claim.ordinal == 0

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
        dead = structs.replace(here, born="another process with the same number")
        worker = await journal.join(run, dead, lease_seconds=FOR_EVER, share=False)
        (old,) = await journal.claim(worker, groups=1)
        worker = await journal.join(run, here, lease_seconds=FOR_EVER, share=False)
        assert len(await journal.claim(worker, groups=1)) == 1
        with pytest.raises(LeaseLost):
            await journal.append(old.open[0], values(1))

    check(body)


def test_what_a_dead_process_held_goes_to_a_worker_that_has_nothing_else(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(samples=1), make_tasks("a", "b"))
        worker = await journal.join(run, me(), lease_seconds=FOR_EVER, share=True)
        dead = structs.replace(me(), born="another process with the same number")
        killed = await journal.join(run, dead, lease_seconds=FOR_EVER, share=True)
        (old,) = await journal.claim(killed, groups=1)
        claims = [*await journal.claim(worker, groups=1), *await journal.claim(worker, groups=1)]
        assert sorted(claim.task.id for claim in claims) == ["a", "b"]
        with pytest.raises(LeaseLost):
            await journal.append(old.open[0], values(1))

    check(body)


def test_a_worker_of_another_namespace_is_never_looked_up_by_its_number(check: Check) -> None:
    """Its pid is no process here, or another one, and it lives: its lease alone decides."""

    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(samples=1), make_tasks("a", "b"))
        here = me()
        there = structs.replace(here, pid=UNUSED_PID, namespace="another container's")
        other = await journal.join(run, there, lease_seconds=FOR_EVER, share=False)
        (held,) = await journal.claim(other, groups=1)
        with pytest.raises(RunHeld, match=f"process {UNUSED_PID}"):
            await journal.join(run, here, lease_seconds=FOR_EVER, share=False)
        worker = await journal.join(run, here, lease_seconds=FOR_EVER, share=True)
        assert [claim.task.id for claim in await journal.claim(worker, groups=9)] == ["b"]
        assert await journal.claim(worker, groups=9) == []
        (row,) = await journal.runs()
        assert str(there) in row.live_workers
        await journal.append(held.open[0], values(1))

    check(body)
