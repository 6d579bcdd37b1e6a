"""Every journal delivers groups whole, once, and again exactly when they were lost."""

import pytest

from holdfast.journal.journal import Batch, Journal
from holdfast.records.errors import UsageError
from holdfast.records.group import GroupPolicy, Shortfall
from holdfast.records.trajectory import Status
from support.conformance.journals import Check, every_journal  # noqa: F401 - the fixture
from support.records import ready, settle, settle_one


def names_of(batch: Batch) -> list[str]:
    return [group[0].key.task for group in batch.groups]


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
