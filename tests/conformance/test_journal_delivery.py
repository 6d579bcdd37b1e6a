"""Every journal delivers groups whole, once, and again exactly when they were lost."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from msgspec import structs

from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import Batch, Consumer, LedgerEntry
from holdfast.records.errors import ConsumerHeld, LeaseLost, UsageError
from holdfast.records.group import Dismissal, GroupPolicy, Shortfall
from holdfast.records.trajectory import Status
from support.conformance.journals import Check, every_journal  # noqa: F401 - the fixture
from support.records import consuming, me, ready, settle, settle_one, someone_else, spec


def names_of(batch: Batch) -> list[str]:
    return [group[0].key.task for group in batch.groups]


def test_groups_are_delivered_whole_and_in_the_order_they_settled(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, "a", "b", "c")
        trainer = await consuming(journal, run)
        await settle(journal, claims[2])
        await settle(journal, claims[0])
        await settle_one(journal, claims[1].open[0])
        batch = await journal.next_batch(trainer, 1, groups=2)
        assert names_of(batch) == ["c", "a"]
        assert [len(group) for group in batch.groups] == [2, 2]
        await settle_one(journal, claims[1].open[1])
        assert names_of(await journal.next_batch(trainer, 2, groups=9)) == ["b"]
        assert names_of(await journal.next_batch(trainer, 3, groups=9)) == []

    check(body)


def test_a_batch_is_whole_or_nothing_until_the_run_is_over(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, *"abcde")
        trainer = await consuming(journal, run)
        await settle(journal, claims[0])
        early = await journal.next_batch(trainer, 1, groups=2)
        assert (early.groups, early.ended) == ((), False)
        await settle(journal, claims[1])
        assert names_of(await journal.next_batch(trainer, 1, groups=2)) == ["a", "b"]
        await settle(journal, claims[2])
        await settle(journal, claims[3])
        assert names_of(await journal.next_batch(trainer, 2, groups=3)) == []
        await settle(journal, claims[4])
        assert not (await journal.next_batch(trainer, 2, groups=2)).ended
        last = await journal.next_batch(trainer, 3, groups=2)
        assert (names_of(last), last.ended) == (["e"], True)
        assert await journal.next_batch(trainer, 3, groups=2) == last
        end = await journal.next_batch(trainer, 4, groups=2)
        assert (end.groups, end.ended) == ((), True)

    check(body)


def test_of_the_first_tasks_groups_are_delivered_in_the_order_of_tasks(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, *"abcde")
        trainer = await consuming(journal, run)
        for late in (4, 2, 1):
            await settle(journal, claims[late])
        early = await journal.next_batch(trainer, 1, groups=2, before=2)
        assert (early.groups, early.missing) == ((), 1)
        assert names_of(await journal.next_batch(trainer, 1, groups=2, before=3)) == ["b", "c"]
        await settle(journal, claims[0])
        assert names_of(await journal.next_batch(trainer, 2, groups=1, before=9)) == ["a"]
        await settle(journal, claims[3])
        last = await journal.next_batch(trainer, 3, groups=3, before=1)
        assert (names_of(last), last.ended) == (["d", "e"], True), "of an ended stream, any"

    check(body)


def test_a_wait_for_the_first_tasks_ends_when_they_are_settled(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, *"abc")
        trainer = await consuming(journal, run)
        await settle(journal, claims[2])
        waiting = asyncio.create_task(journal.next_batch(trainer, 1, groups=2, before=2, wait=60.0))
        await asyncio.sleep(0.01)
        await settle(journal, claims[1])
        await settle(journal, claims[0])
        assert names_of(await waiting) == ["a", "b"]

    check(body)


def test_a_ledger_is_listed_from_an_ordinal_on(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, _ = await ready(journal, *"abc")
        await consuming(journal, run)
        whole = await journal.ledger(run, "trainer")
        assert await journal.ledger(run, "trainer", since=1) == whole[1:]
        assert await journal.ledger(run, "trainer", since=9) == []

    check(body)


def test_the_same_step_gets_the_same_batch(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, "a", "b", "c")
        trainer = await consuming(journal, run)
        for claim in claims:
            await settle(journal, claim)
        first = await journal.next_batch(trainer, 1, groups=1)
        again = await journal.next_batch(trainer, 1, groups=1)
        assert first == again
        assert names_of(await journal.next_batch(trainer, 2, groups=1)) == ["b"]
        assert await journal.next_batch(trainer, 1, groups=1) == first

    check(body)


def test_consumers_do_not_share_their_deliveries(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, "a")
        await settle(journal, claims[0])
        for name in ("trainer", "judge"):
            consumer = await consuming(journal, run, name)
            assert names_of(await journal.next_batch(consumer, 1, groups=1)) == ["a"]

    check(body)


def test_an_earlier_step_than_the_last_is_refused(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, "a", "b")
        trainer = await consuming(journal, run)
        await settle(journal, claims[0])
        await journal.next_batch(trainer, 5, groups=1)
        await settle(journal, claims[1])
        with pytest.raises(UsageError, match="step 5"):
            await journal.next_batch(trainer, 4, groups=1)
        assert names_of(await journal.next_batch(trainer, 6, groups=1)) == ["b"]

    check(body)


def test_a_step_that_a_checkpoint_holds_gets_nothing_new(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, "a")
        trainer = await consuming(journal, run)
        await settle(journal, claims[0])
        await journal.commit(trainer, 7)
        # Delivered under step 7, a rewind to the checkpoint of step 7 would not give it back.
        with pytest.raises(UsageError, match="step 7"):
            await journal.next_batch(trainer, 7, groups=1)
        assert names_of(await journal.next_batch(trainer, 8, groups=1)) == ["a"]

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
        trainer = await consuming(journal, run)
        for number, lease in enumerate(claims[0].open):
            status = Status.FAILED if number < failed else Status.COMPLETED
            await settle_one(journal, lease, status=status)
        await settle(journal, claims[1])
        batch = await journal.next_batch(trainer, 1, groups=9)
        assert names_of(batch) == (["a", "b"] if kept else ["b"])
        assert names_of(await journal.next_batch(trainer, 2, groups=9)) == []

    check(body)


def test_rewinding_gives_back_exactly_what_came_later(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, *"abcd", samples=1)
        trainer = await consuming(journal, run)
        for claim in claims:
            await settle(journal, claim)
        for step in (1, 2, 3):
            await journal.next_batch(trainer, step, groups=1)
        await journal.commit(trainer, 1)
        assert await journal.rewind(trainer, 1) == 2
        assert names_of(await journal.next_batch(trainer, 1, groups=1)) == ["a"]
        assert names_of(await journal.next_batch(trainer, 2, groups=9)) == ["b", "c", "d"]
        assert await journal.rewind(trainer, 2) == 0

    check(body)


def test_rewinding_behind_a_commit_believes_the_restored_checkpoint(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, "a", samples=1)
        trainer = await consuming(journal, run)
        await settle(journal, claims[0])
        await journal.next_batch(trainer, 2, groups=1)
        await journal.commit(trainer, 2)
        assert await journal.rewind(trainer, 0) == 1
        assert names_of(await journal.next_batch(trainer, 1, groups=1)) == ["a"]

    check(body)


# --- what becomes of a group


def ends_of(entries: list[LedgerEntry]) -> dict[str, tuple[str, int | None, str]]:
    return {entry.task: (entry.end.value, entry.step, entry.reason) for entry in entries}


def test_the_ledger_says_how_each_group_ended(check: Check) -> None:
    async def body(journal: Journal) -> None:
        policy = GroupPolicy(at_least=2)
        run, _, claims = await ready(journal, *"abcdef", samples=2, group=policy)
        trainer = await consuming(journal, run)
        for claim in claims[:3]:
            await settle(journal, claim)
        await settle(journal, claims[3], status=Status.FAILED)
        await settle(journal, claims[4])
        await journal.next_batch(trainer, 1, groups=1)
        await journal.commit(trainer, 1)
        await journal.next_batch(trainer, 2, groups=2)
        await journal.dismiss(trainer, ["c"], reason=Dismissal.UNINFORMATIVE)
        assert names_of(await journal.next_batch(trainer, 2, groups=2)) == ["b", "e"]
        assert ends_of(await journal.ledger(run, "trainer")) == {
            "a": ("trained", 1, ""),
            "b": ("open", 2, "taken"),
            "c": ("dismissed", 2, "uninformative"),
            "d": ("dismissed", None, "too few valid members"),
            "e": ("open", 2, "taken"),
            "f": ("open", None, "rolling out"),
        }
        assert set(ends_of(await journal.ledger(run, "nobody")).values()) == {
            ("open", None, "ready"),
            ("open", None, "rolling out"),
        }
        assert await journal.consumers(run) == ["trainer"]

    check(body)


def test_dismissed_groups_are_replaced_in_their_step(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, *"abcde", samples=1)
        trainer = await consuming(journal, run)
        for claim in claims[:3]:
            await settle(journal, claim)
        await journal.next_batch(trainer, 1, groups=2)
        await journal.dismiss(trainer, ["a"], reason="too old")
        await journal.dismiss(trainer, ["a"], reason="too old")  # After a lost answer.
        filled = await journal.next_batch(trainer, 1, groups=2)
        assert names_of(filled) == ["b", "c"]
        await journal.dismiss(trainer, ["b", "c"], reason="too old")
        assert names_of(await journal.next_batch(trainer, 1, groups=2)) == []
        assert names_of(await journal.next_batch(trainer, 1, groups=1)) == []
        await settle(journal, claims[3])
        assert names_of(await journal.next_batch(trainer, 1, groups=1)) == ["d"]
        await journal.commit(trainer, 1)
        await settle(journal, claims[4])
        assert names_of(await journal.next_batch(trainer, 1, groups=2)) == ["d"]

    check(body)


def test_only_what_was_taken_can_be_dismissed(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, *"abc", samples=1)
        trainer = await consuming(journal, run)
        await settle(journal, claims[0])
        await settle(journal, claims[1])
        await journal.next_batch(trainer, 1, groups=1)
        await journal.commit(trainer, 1)
        for wrong in ("a", "b", "c", "nothing"):
            with pytest.raises(UsageError, match=repr(wrong)):
                await journal.dismiss(trainer, [wrong], reason="too old")
        with pytest.raises(UsageError, match="reason"):
            await journal.dismiss(trainer, ["b"], reason="")
        await journal.next_batch(trainer, 2, groups=1)
        await journal.dismiss(trainer, ["b"], reason="too old")
        with pytest.raises(UsageError, match="'b'"):
            await journal.dismiss(trainer, ["b"], reason="uninformative")

    check(body)


def test_a_rewind_gives_back_what_was_dismissed_later_in_the_same_order(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, *"abcdef", samples=1)
        trainer = await consuming(journal, run)
        for claim in claims:
            await settle(journal, claim)

        async def step(number: int, uninformative: str) -> list[str]:
            await journal.next_batch(trainer, number, groups=2)
            await journal.dismiss(trainer, [uninformative], reason="uninformative")
            return names_of(await journal.next_batch(trainer, number, groups=2))

        first = [await step(1, "a"), await step(2, "e")]
        assert first == [["b", "c"], ["d", "f"]]
        await journal.commit(trainer, 1)
        await journal.commit(trainer, 2)
        assert await journal.rewind(trainer, 1) == 3
        assert await step(2, "e") == first[1]
        assert await journal.rewind(trainer, 0) == 6
        assert [await step(1, "a"), await step(2, "e")] == first

    check(body)


def test_what_is_given_back_comes_before_what_waited_behind_it(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, *"abcd", samples=1)
        trainer = await consuming(journal, run)
        for claim in claims[:3]:
            await settle(journal, claim)
        assert names_of(await journal.take(trainer, groups=1)) == ["a"]
        assert names_of(await journal.take(trainer, groups=3)) == []  # It has looked at the rest.
        await journal.rewind(trainer, 0)
        assert names_of(await journal.take(trainer, groups=1)) == ["a"]
        assert names_of(await journal.take(trainer, groups=2)) == ["b", "c"]

    check(body)


# --- steps that are named afterwards


def test_groups_are_taken_first_and_named_when_they_are_committed(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, *"abcde", samples=1)
        trainer = await consuming(journal, run)
        for claim in claims[:4]:
            await settle(journal, claim)
        taken = await journal.take(trainer, groups=2)
        assert (names_of(taken), taken.step) == (["a", "b"], None)
        assert names_of(await journal.take(trainer, groups=1)) == ["c"]
        assert names_of(await journal.take(trainer, groups=2)) == []
        await journal.dismiss(trainer, ["b"], reason="too old")
        await journal.commit(trainer, 1, groups=["c"])
        await journal.commit(trainer, 1, groups=["c"])  # After a lost answer.
        assert ends_of(await journal.ledger(run, "trainer")) == {
            "a": ("open", None, "taken"),
            "b": ("dismissed", 1, "too old"),
            "c": ("trained", 1, ""),
            "d": ("open", None, "ready"),
            "e": ("open", None, "rolling out"),
        }
        assert await journal.rewind(trainer, 1) == 1
        assert names_of(await journal.take(trainer, groups=2)) == ["a", "d"]

    check(body)


def test_a_restored_checkpoint_keeps_the_groups_that_it_holds(check: Check) -> None:
    """Whether they were committed with it, or with a later one, or not at all."""

    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, *"abcdef", samples=1)
        trainer = await consuming(journal, run)
        for claim in claims:
            await settle(journal, claim)
        await journal.take(trainer, groups=5)
        await journal.commit(trainer, 1, groups=["a"])
        await journal.commit(trainer, 5, groups=["b"])
        await journal.dismiss(trainer, ["e"], reason="too old")
        held = {"a": 1, "b": 2, "c": 3}
        for _ in range(2):  # Again, after a lost answer.
            await journal.rewind(trainer, 3, trained=held)
            # A checkpoint that does not know the steps names its own: known steps stay.
            await journal.rewind(trainer, 3, trained=dict.fromkeys(held, 3))
            assert ends_of(await journal.ledger(run, "trainer")) == {
                **{name: ("trained", step, "") for name, step in held.items()},
                **dict.fromkeys("def", ("open", None, "ready")),
            }
        for wrong in ("d", "nothing"):
            with pytest.raises(UsageError, match=repr(wrong)):
                await journal.rewind(trainer, 3, trained=held | {wrong: 3})
        assert names_of(await journal.take(trainer, groups=3)) == ["d", "e", "f"]
        await journal.commit(trainer, 4, groups=["d"])
        assert await journal.rewind(trainer, 3, trained=held) == 3

    check(body)


def test_rewinding_to_a_checkpoint_that_was_not_committed_commits_it(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, *"abc", samples=1)
        trainer = await consuming(journal, run)
        for claim in claims:
            await settle(journal, claim)
        for step in (1, 2, 3):
            await journal.next_batch(trainer, step, groups=1)
        assert await journal.rewind(trainer, 2) == 1
        ends = ends_of(await journal.ledger(run, "trainer"))
        assert ends["b"] == ("trained", 2, "")
        assert ends["c"] == ("open", None, "ready")

    check(body)


def test_rewinding_to_the_beginning_leaves_step_0_to_a_consumer_that_committed_nothing(
    check: Check,
) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, "a")
        trainer = await consuming(journal, run)
        await settle(journal, claims[0])
        await journal.rewind(trainer, 0)
        assert names_of(await journal.next_batch(trainer, 0, groups=1)) == ["a"]

    check(body)


def test_committing_an_earlier_step_again_takes_no_later_commit_back(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, "a", "b")
        trainer = await consuming(journal, run)
        for step in (1, 2):
            await settle(journal, claims[step - 1])
            await journal.next_batch(trainer, step, groups=1)
            await journal.commit(trainer, step)
        await journal.commit(trainer, 1)
        await journal.unsubscribe(trainer)
        assert (await consuming(journal, run)).committed == 2

    check(body)


def test_a_group_is_in_one_step_only(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, *"abcd", samples=1)
        trainer = await consuming(journal, run)
        for claim in claims:
            await settle(journal, claim)
        await journal.take(trainer, groups=3)
        await journal.commit(trainer, 1, groups=["a"])
        for wrong in (["a"], ["d"], ["b", "nothing"]):
            with pytest.raises(UsageError, match=repr(wrong[-1])):
                await journal.commit(trainer, 2, groups=wrong)
        with pytest.raises(UsageError, match="step 1"):
            await journal.commit(trainer, 1, groups=["b"])  # A checkpoint of step 1 is there.
        assert ends_of(await journal.ledger(run, "trainer"))["b"] == ("open", None, "taken")

    check(body)


# --- the consumer's lease


def test_a_second_consumer_of_the_same_name_is_refused(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, _ = await ready(journal, "a")
        first = await journal.subscribe(run, "trainer", someone_else(), lease_seconds=600)
        assert await journal.is_held(run, "trainer")
        assert not await journal.is_held(run, "other")
        with pytest.raises(ConsumerHeld, match=r"process 1 on elsewhere .* for 600 s"):
            await consuming(journal, run)
        await journal.unsubscribe(first)
        assert not await journal.is_held(run, "trainer")
        await consuming(journal, run)

    check(body)


async def _actions(journal: Journal, consumer: Consumer) -> dict[str, Callable[[], Awaitable]]:
    return {
        "renew": lambda: journal.renew(consumer),
        "next_batch": lambda: journal.next_batch(consumer, 9, groups=1),
        "take": lambda: journal.take(consumer, groups=1),
        "dismiss": lambda: journal.dismiss(consumer, ["a"], reason="too old"),
        "commit": lambda: journal.commit(consumer, 9),
        "commit groups": lambda: journal.commit(consumer, 9, groups=["a"]),
        "rewind": lambda: journal.rewind(consumer, 0),
        "publish": lambda: journal.publish_version(
            consumer.run, "v", step=1, digest="d", consumer=consumer
        ),
    }


def test_a_consumer_that_lost_its_lease_changes_nothing(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, "a", "b", samples=1)
        for claim in claims:
            await settle(journal, claim)
        lost = await journal.subscribe(run, "trainer", someone_else(), lease_seconds=1e-6)
        while True:  # Its lease is over at once, but not before.
            try:
                trainer = await consuming(journal, run)
                break
            except ConsumerHeld:
                continue
        await journal.next_batch(trainer, 1, groups=1)
        before = await journal.ledger(run, "trainer")
        for name, action in (await _actions(journal, lost)).items():
            with pytest.raises(LeaseLost, match="trainer"):
                await action()
            assert await journal.ledger(run, "trainer") == before, name
        await journal.unsubscribe(lost)
        assert await journal.versions(run) == []
        await journal.commit(trainer, 1)

    check(body)


def test_a_consumer_whose_process_is_gone_is_taken_over_at_once(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, "a", samples=1)
        await settle(journal, claims[0])
        gone = structs.replace(me(), pid=2**22 + 1)
        lost = await journal.subscribe(run, "trainer", gone, lease_seconds=600)
        await journal.next_batch(lost, 1, groups=1)
        await journal.commit(lost, 1)
        trainer = await consuming(journal, run)
        assert (trainer.committed, trainer.epoch) == (1, lost.epoch + 1)
        with pytest.raises(LeaseLost):
            await journal.next_batch(lost, 1, groups=1)

    check(body)


# --- waiting


def test_a_batch_can_be_waited_for(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, "a", "b", samples=1)
        trainer = await consuming(journal, run)
        waiting = asyncio.create_task(journal.next_batch(trainer, 1, groups=2, wait=600))
        await settle(journal, claims[0])
        await asyncio.sleep(0)
        assert not waiting.done()
        await settle(journal, claims[1])
        assert names_of(await waiting) == ["a", "b"]
        assert (await journal.next_batch(trainer, 2, groups=2, wait=600)).ended

    check(body)


def test_waiting_has_a_deadline_and_keeps_the_lease(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run, _, _ = await ready(journal, "a", samples=1)
        trainer = await journal.subscribe(run, "trainer", someone_else(), lease_seconds=0.3)
        batch = await journal.take(trainer, groups=1, wait=0.6)
        assert (batch.groups, batch.ended) == ((), False)
        with pytest.raises(ConsumerHeld):
            await consuming(journal, run)

    check(body)


def test_the_end_of_the_stream_ends_the_wait(check: Check) -> None:
    async def body(journal: Journal) -> None:
        run = await journal.create_run(spec(samples=1), [], sealed=False)
        trainer = await consuming(journal, run)
        waiting = asyncio.create_task(journal.take(trainer, groups=2, wait=600))
        await asyncio.sleep(0)
        await journal.seal(run)
        assert (await waiting).ended

    check(body)


@pytest.mark.parametrize("step", [None, "1", 1.0, True, -3, 2**70], ids=repr)
def test_what_is_no_step_is_refused_and_not_written(check: Check, step: object) -> None:
    async def body(journal: Journal) -> None:
        run, _, claims = await ready(journal, "a")
        trainer = await consuming(journal, run)
        await settle(journal, claims[0])
        batch = await journal.next_batch(trainer, 1, groups=1)
        with pytest.raises(UsageError, match="step must"):
            await journal.commit(trainer, step)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="step must"):
            await journal.rewind(trainer, step)  # type: ignore[arg-type]
        assert await journal.next_batch(trainer, 1, groups=1) == batch

    check(body)
