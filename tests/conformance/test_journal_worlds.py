"""Every journal keeps a ledger of worlds, in which only owners write."""

import pytest
from msgspec import structs

from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import Lease
from holdfast.journal.worlds import WorldIntent, WorldPhase
from holdfast.records.errors import LeaseLost
from holdfast.records.trajectory import Status
from support.conformance.journals import Check, every_journal  # noqa: F401 - the fixture
from support.records import joined, ready

INTENT = WorldIntent(name="w1", provider="docker", spec="docker:a", trajectory="run/a/0", run="run")
SNAPSHOT = structs.replace(INTENT, name="s1", is_snapshot=True, origin="w1", after="4")


async def states(journal: Journal) -> dict[str, WorldPhase]:
    return {row.name: row.state for row in await journal.worlds(removed=True)}


async def claimed_again(journal: Journal, run: object, worker: object) -> Lease:
    """Returns the lease of another worker, after the first one gave its leases back."""
    await journal.leave(worker)  # type: ignore[arg-type]
    (claim,) = await journal.claim(await joined(journal, run), groups=1)  # type: ignore[arg-type]
    return claim.open[0]


def test_a_world_is_in_the_ledger_from_its_intent_to_its_end(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, "a", samples=2)
        lease, other = claims[0].open
        await journal.plan_world(lease, INTENT)
        await journal.plan_world(other, structs.replace(INTENT, name="w2", trajectory="run/a/1"))
        await journal.plan_world(lease, SNAPSHOT)
        (row, snapshot) = await journal.worlds(trajectory=lease.id)
        assert (row.intent, row.state, row.handle, row.ended) == (
            INTENT,
            WorldPhase.WANTED,
            "",
            None,
        )
        assert (snapshot.intent, snapshot.is_snapshot, row.is_snapshot) == (SNAPSHOT, True, False)
        assert await journal.change_world("w1", WorldPhase.READY, lease=lease, handle="box-1")
        assert await journal.change_world("w1", WorldPhase.REMOVING, lease=lease, cpu_seconds=2.5)
        assert await journal.change_world("w1", WorldPhase.REMOVED, lease=lease)
        (gone,) = [row for row in await journal.worlds(run=run, removed=True) if row.name == "w1"]
        assert (gone.state, gone.handle, gone.cpu_seconds) == (WorldPhase.REMOVED, "box-1", 2.5)
        assert gone.ended is not None
        assert gone.ended >= gone.created > 0
        assert [row.name for row in await journal.worlds(run=run)] == ["w2", "s1"]

    check(body)


def test_a_state_only_grows(check: Check) -> None:
    async def body(journal: Journal) -> None:
        _, _, claims = await ready(journal, "a", samples=1)
        lease = claims[0].open[0]
        await journal.plan_world(lease, INTENT)
        assert await journal.change_world("w1", WorldPhase.REMOVING, lease=lease)
        assert not await journal.change_world("w1", WorldPhase.READY, lease=lease, handle="late")
        assert await journal.change_world("w1", WorldPhase.REMOVED, lease=lease)
        assert not await journal.change_world("w1", WorldPhase.REMOVING, lease=lease)
        assert not await journal.change_world("nobody", WorldPhase.REMOVED, lease=lease)

    check(body)


def test_a_fenced_worker_changes_nothing_and_the_next_one_adopts(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, worker, claims = await ready(journal, "a", samples=1)
        stale = claims[0].open[0]
        await journal.plan_world(stale, INTENT)
        fresh = await claimed_again(journal, run, worker)
        for call in (
            journal.plan_world(stale, SNAPSHOT),
            journal.change_world("w1", WorldPhase.READY, lease=stale, handle="box-1"),
        ):
            with pytest.raises(LeaseLost):
                await call
        assert await states(journal) == {"w1": WorldPhase.WANTED}
        assert await journal.change_world("w1", WorldPhase.READY, lease=fresh, handle="box-1")
        (row,) = await journal.worlds()
        assert (row.epoch, row.is_held) == (fresh.epoch, True)

    check(body)


def test_what_a_living_worker_holds_is_not_changed_without_its_lease(check: Check) -> None:
    async def body(journal: Journal) -> None:
        _, worker, claims = await ready(journal, "a", samples=1)
        lease = claims[0].open[0]
        await journal.plan_world(lease, INTENT)
        assert not await journal.change_world("w1", WorldPhase.REMOVING)
        await journal.leave(worker)
        (row,) = await journal.worlds()
        assert (row.is_held, row.is_over) == (False, False)
        assert await journal.change_world("w1", WorldPhase.REMOVING)
        assert await states(journal) == {"w1": WorldPhase.REMOVING}

    check(body)


def test_the_worlds_of_a_settled_trajectory_are_held_by_nobody(check: Check) -> None:
    async def body(journal: Journal) -> None:
        _, _, claims = await ready(journal, "a", samples=1)
        lease = claims[0].open[0]
        await journal.plan_world(lease, INTENT)
        await journal.append(lease, [], status=Status.COMPLETED, settled=True)
        (row,) = await journal.worlds()
        assert (row.is_held, row.is_over) == (False, True)
        assert await journal.change_world("w1", WorldPhase.REMOVING)

    check(body)


def test_what_may_exist_outlives_its_run(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, worker, claims = await ready(journal, "a", samples=1)
        lease = claims[0].open[0]
        await journal.plan_world(lease, INTENT)
        await journal.plan_world(lease, SNAPSHOT)
        await journal.change_world("s1", WorldPhase.REMOVED, lease=lease)
        await journal.leave(worker)
        await journal.delete_run(run)
        assert await states(journal) == {"w1": WorldPhase.WANTED}
        assert await journal.change_world("w1", WorldPhase.REMOVED)
        assert await journal.worlds() == []

    check(body)


def test_a_journal_has_one_mark_for_its_worlds(check: Check) -> None:
    async def body(journal: Journal) -> None:
        mark = await journal.worlds_label()
        assert mark == await journal.worlds_label()
        assert len(mark) == 16

    check(body)
