"""`Delivery`: batches for a loop of one's own, exactly once, also where the loop dies."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec import structs

import holdfast
from holdfast.engine.open_run import TRAINED_MODEL, TRAINER, is_training, open_run
from holdfast.journal import opened_journal
from holdfast.journal.process import this_process
from holdfast.journal.sqlite.journal import MemoryJournal, SqliteJournal
from holdfast.journal.types import Consumer, LedgerEntry
from holdfast.records.errors import ConsumerHeld, JournalError, UsageError
from holdfast.records.group import GroupPolicy
from holdfast.records.step import Finished
from holdfast.records.trajectory import Status
from support.exhaustive import points
from support.paths import TESTS
from support.records import generated, joined, make_tasks, someone_else, spec, started

GROUPS = 6


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A run of six groups of two, one of them with a member that failed."""
    path = tmp_path / "holdfast.db"
    asyncio.run(fill(path, sealed=True))
    return path


async def fill(path: Path, *, sealed: bool, model: str = "model") -> None:
    journal = holdfast.open_journal(path)
    tasks = make_tasks(*(f"task-{number}" for number in range(GROUPS)))
    made = structs.replace(spec(samples=2, group=GroupPolicy()), model=model)
    run = await journal.create_run(made, tasks, sealed=sealed)
    worker = await joined(journal, run)
    for number, claim in enumerate(await journal.claim(worker, groups=GROUPS)):
        for lease in claim.open:
            failed = number == 2 and lease.key.sample == 1
            status = Status.FAILED if failed else Status.COMPLETED
            end = Finished(status, "", float(lease.key.sample), 2.0)
            records = [started(), generated("0"), end]
            await journal.append(lease, records, status=status, settled=True)
    await journal.leave(worker)
    await journal.close()


def tasks_of(batch: holdfast.DeliveredBatch) -> list[str]:
    return [group.task for group in batch.groups]


def trained(path: Path) -> dict[str, tuple[str, int | None]]:
    async def read() -> dict[str, tuple[str, int | None]]:
        journal = holdfast.open_journal(path, read_only=True)
        try:
            run = await journal.find_run("run")
            assert run is not None
            return dict_of_entries(await journal.ledger(run, "trainer"))
        finally:
            await journal.close()

    return asyncio.run(read())


def dict_of_entries(entries: Sequence[LedgerEntry]) -> dict[str, tuple[str, int | None]]:
    return {entry.task: (str(entry.end), entry.step) for entry in entries}


def test_each_group_is_in_one_batch(journal: Path) -> None:
    seen: list[str] = []
    with holdfast.Delivery(journal, "run", groups=2) as delivery:
        for step, batch in delivery:
            assert step == batch.step
            seen += tasks_of(batch)
            delivery.commit(step)
    assert sorted(seen) == [f"task-{number}" for number in range(GROUPS)]
    assert {step for _, step in trained(journal).values()} == {1, 2, 3}


def test_a_failed_member_is_in_no_sample(journal: Path) -> None:
    with holdfast.Delivery(journal, "run", groups=6) as delivery:
        ((_, batch),) = delivery
        assert len(batch.samples) == 11


def test_what_no_checkpoint_holds_comes_again(journal: Path) -> None:
    with holdfast.Delivery(journal, "run", groups=2) as delivery:
        batches = dict(delivery)
        delivery.commit(1)
    with holdfast.Delivery(journal, "run", groups=2, checkpoint=1) as delivery:
        again = dict(delivery)
    assert again == {step: batches[step] for step in (2, 3)}


def test_a_kill_between_checkpoint_and_commit_trains_nothing_twice(journal: Path) -> None:
    with holdfast.Delivery(journal, "run", groups=2) as delivery:
        batches = dict(delivery)
    with holdfast.Delivery(journal, "run", groups=2, checkpoint=2) as delivery:
        assert dict(delivery) == {3: batches[3]}
    assert [end for end, _ in trained(journal).values()].count("trained") == 4


@pytest.mark.parametrize("handed_out", [0, 3])
def test_a_checkpoint_of_a_step_that_was_never_handed_out_is_refused(
    journal: Path, handed_out: int
) -> None:
    if handed_out:
        with holdfast.Delivery(journal, "run", groups=2) as delivery:
            assert len(list(delivery)) == handed_out
    with (
        pytest.raises(UsageError, match=f"checkpoint=99: the last step .* is {handed_out};"),
        holdfast.Delivery(journal, "run", groups=2, checkpoint=99),
    ):
        pass
    assert "trained" not in {end for end, _ in trained(journal).values()}
    with holdfast.Delivery(journal, "run", groups=2) as delivery:
        assert len(list(delivery)) == 3


def test_a_loop_that_never_commits_has_trained_nothing(journal: Path) -> None:
    with holdfast.Delivery(journal, "run", groups=2) as delivery:
        list(delivery)
    assert {end for end, _ in trained(journal).values()} == {"open"}
    with holdfast.Delivery(journal, "run", groups=2) as delivery:
        assert len(list(delivery)) == 3


def test_groups_that_are_too_old_are_dismissed_with_their_reason(journal: Path) -> None:
    with holdfast.Delivery(journal, "run", groups=2) as delivery:
        step, batch = next(iter(delivery))
        delivery.dismiss(tasks_of(batch)[:1], reason="too old")
        delivery.commit(step)
        (entry,) = [e for e in delivery.ledger() if e.task == tasks_of(batch)[0]]
    assert (entry.end, entry.reason) == ("dismissed", "too old")


def test_a_group_that_is_split_over_two_steps_is_in_the_later_one(journal: Path) -> None:
    with holdfast.Delivery(journal, "run", groups=2) as delivery:
        first, second = delivery.take(2)
        delivery.commit(1, groups=[first.task])
        assert dict_of(delivery)[second.task] == ("open", None), "half of it is not trained yet"
        delivery.commit(2, groups=[second.task])
        assert dict_of(delivery)[second.task] == ("trained", 2)


# --- groups that are taken before their step is known


def test_a_kill_between_checkpoint_and_commit_gives_taken_groups_to_nobody_again(
    journal: Path,
) -> None:
    with holdfast.Delivery(journal, "run", groups=1) as delivery:
        first = [group.task for group in delivery.take(2)]
        delivery.commit(1, groups=first)
        saved = [group.task for group in delivery.take(2)]
        delivery.take(1)
    for _ in range(2):  # And a kill after that.
        with holdfast.Delivery(journal, "run", groups=1, checkpoint=2, trained=saved) as delivery:
            assert {dict_of(delivery)[task] for task in saved} == {("trained", 2)}
            again = [group.task for group in delivery.take(2)]
            assert not {*again} & {*first, *saved}
            assert delivery.take(1) == ()
            delivery.commit(2, groups=[])


async def test_the_same_awaited_and_by_the_groups_themselves(journal: Path) -> None:
    async def ledger() -> list[LedgerEntry]:
        async with holdfast.Delivery(journal, "run", groups=1) as delivery:
            return await delivery.ledger_async()

    async with holdfast.Delivery(journal, "run", groups=1) as delivery:
        saved = await delivery.take_async(4)
    async with holdfast.Delivery(journal, "run", groups=1, checkpoint=1, trained=saved) as delivery:
        left = await delivery.take_async(2)
        assert not {group.task for group in saved} & {group.task for group in left}
        await delivery.commit_async(2, groups=left)
    assert {end for end, _ in dict_of_entries(await ledger()).values()} == {"trained"}


@pytest.mark.parametrize("checkpoint", [1, 99])
def test_a_checkpoint_whose_groups_nobody_has_named_is_refused(
    journal: Path, checkpoint: int
) -> None:
    with holdfast.Delivery(journal, "run", groups=2) as delivery:
        delivery.take(4)
    with (
        pytest.raises(UsageError, match=r"4 groups that were taken.*give them, trained=\[…\]"),
        holdfast.Delivery(journal, "run", groups=2, checkpoint=checkpoint),
    ):
        pass
    with holdfast.Delivery(journal, "run", groups=2, checkpoint=checkpoint, trained=[]) as delivery:
        assert len(delivery.take(6)) == 6, "it holds none of them"


def test_groups_that_were_taken_beside_a_named_step_are_asked_for(journal: Path) -> None:
    """The loop has batches step by step, and takes groups as well."""
    with holdfast.Delivery(journal, "run", groups=1) as delivery:
        next(iter(delivery))
        delivery.take(1)
    with (
        pytest.raises(UsageError, match="1 group that were taken"),
        holdfast.Delivery(journal, "run", groups=1, checkpoint=1),
    ):
        pass


def test_a_checkpoint_that_was_committed_only_with_a_later_one_is_refused_without_its_groups(
    journal: Path,
) -> None:
    with holdfast.Delivery(journal, "run", groups=2) as delivery:
        held, later = delivery.take(2)
        delivery.commit(2, groups=[held, later])
    with (
        pytest.raises(UsageError, match="2 groups that were taken"),
        holdfast.Delivery(journal, "run", groups=2, checkpoint=1),
    ):
        pass
    with holdfast.Delivery(journal, "run", groups=2, checkpoint=1, trained=[held]) as delivery:
        ends = dict_of(delivery)
        assert (ends[held.task], ends[later.task]) == (("trained", 1), ("open", None))


def test_a_checkpoint_that_was_committed_needs_no_names(journal: Path) -> None:
    with holdfast.Delivery(journal, "run", groups=2) as delivery:
        held, later = delivery.take(2)
        delivery.commit(1, groups=[held])
    with holdfast.Delivery(journal, "run", groups=2, checkpoint=1) as delivery:
        assert later in delivery.take(5)


@pytest.mark.parametrize(
    ("held", "checkpoint", "message"),
    [
        (["task-5"], 1, "does not have 'task-5'"),
        (["nothing"], 1, "does not have 'nothing'"),
        (["task-0"], None, "give its step, checkpoint=…"),
        ("task-0", 1, "trained is a list of groups"),
        (5, 1, "trained is a list of groups"),
        ([5], 1, "by its task, a text"),
    ],
)
def test_what_is_no_list_of_groups_that_were_taken_was_not_trained(
    journal: Path, held: list[str], checkpoint: int | None, message: str
) -> None:
    with holdfast.Delivery(journal, "run", groups=2) as delivery:
        delivery.take(2)
        before = delivery.ledger()
    with (
        pytest.raises(UsageError, match=message),
        holdfast.Delivery(journal, "run", groups=2, checkpoint=checkpoint, trained=held),
    ):
        pass
    assert dict_of_entries(before) == trained(journal)


def test_a_commit_names_the_groups_that_were_taken(journal: Path) -> None:
    with holdfast.Delivery(journal, "run", groups=2) as delivery:
        first, second, third, fourth = delivery.take(4)
        with pytest.raises(UsageError, match=r"4 groups that no commit .* commit\(1, groups=\[…\]"):
            delivery.commit(1)
        delivery.commit(1, groups=[first, second.task])
        delivery.dismiss([third], reason="too old")
        with pytest.raises(UsageError, match="take gave 1 group"):
            delivery.commit(2)
        delivery.commit(2, groups=[])
        delivery.commit(3, groups=[fourth])
        delivery.commit(4)
        assert [dict_of(delivery)[group.task] for group in (first, second, third, fourth)] == [
            ("trained", 1),
            ("trained", 1),
            ("dismissed", 2),
            ("trained", 3),
        ]


# --- several who ask at once


def test_each_of_several_who_ask_at_once_gets_a_step_of_its_own(journal: Path) -> None:
    async def loop() -> list[holdfast.DeliveredBatch | None]:
        async with holdfast.Delivery(journal, "run", groups=2) as delivery:
            return await asyncio.gather(*(delivery.next_async() for _ in range(4)))

    *batches, end = asyncio.run(loop())
    results = [(batch.step, tasks_of(batch)) for batch in batches if batch is not None]
    assert [step for step, _ in results] == [1, 2, 3]
    assert len({task for _, tasks in results for task in tasks}) == GROUPS
    assert end is None


def test_one_that_was_closed_is_opened_again_on_another_loop(journal: Path) -> None:
    delivery = holdfast.Delivery(journal, "run", groups=1)

    async def two_at_once() -> list[list[str]]:
        async with delivery:
            batches = await asyncio.gather(delivery.next_async(), delivery.next_async())
            return [tasks_of(batch) for batch in batches if batch is not None]

    first = asyncio.run(two_at_once())
    assert len(first) == 2
    assert asyncio.run(two_at_once()) == first


def test_each_of_several_threads_gets_steps_of_its_own(journal: Path) -> None:
    def consume(delivery: holdfast.Delivery) -> list[str]:
        return [task for _, batch in delivery for task in tasks_of(batch)]

    with (
        holdfast.Delivery(journal, "run", groups=1) as delivery,
        ThreadPoolExecutor(4) as threads,
    ):
        results = [*threads.map(consume, [delivery] * 4)]
    assert sorted(task for tasks in results for task in tasks) == sorted(trained(journal))


def test_who_gives_up_waiting_takes_no_step_from_the_next_one(journal: Path) -> None:
    async def loop() -> int:
        async with holdfast.Delivery(journal, "run", groups=2) as delivery:
            first, second = (asyncio.ensure_future(delivery.next_async()) for _ in range(2))
            await asyncio.sleep(0)
            first.cancel()
            batch = await second
            assert batch is not None
            return batch.step

    assert asyncio.run(loop()) == 1


def dict_of(delivery: holdfast.Delivery) -> dict[str, tuple[str, int | None]]:
    return dict_of_entries(delivery.ledger())


async def test_the_same_in_a_loop_of_ones_own(journal: Path) -> None:
    steps = []
    async with holdfast.Delivery(journal, "run", groups=2) as delivery:
        async for step, _ in delivery:
            steps.append(step)
            await delivery.commit_async(step)
    assert (steps) == [1, 2, 3]


def test_a_data_set_of_torch(journal: Path) -> None:
    from torch.utils.data import DataLoader

    from holdfast.convert import to_verl
    from holdfast.delivery.dataset import DeliveryDataset

    with holdfast.Delivery(journal, "run", groups=2) as delivery:
        data = DeliveryDataset(delivery, lambda batch: to_verl(batch.samples))
        for number, batch in enumerate(DataLoader(data, batch_size=None), 1):
            assert data.step == number
            delivery.commit(number)
            assert len(batch.tensors["input_ids"]) in (3, 4)
    assert {end for end, _ in trained(journal).values()} == {"trained"}


# --- bad input


def test_bad_input(journal: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no journal"), holdfast.Delivery("x.db", "run", groups=1):
        pass
    with pytest.raises(UsageError, match="other"), holdfast.Delivery(journal, "other", groups=1):
        pass
    with pytest.raises(UsageError, match="groups"):
        holdfast.Delivery(journal, "run", groups=0)
    with pytest.raises(UsageError, match="with"):
        next(iter(holdfast.Delivery(journal, "run", groups=1)))
    with pytest.raises(UsageError, match="path"), holdfast.Delivery(MemoryJournal(), "r", groups=1):
        pass
    with pytest.raises(UsageError, match="named by its name, a text, not None"):
        holdfast.Delivery(journal, None, groups=1).__enter__()  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a journal is the path of a file"):
        holdfast.Delivery(None, "run", groups=1)  # type: ignore[arg-type]
    for name, wrong in {"lease_seconds": "60", "consumer": 3}.items():
        with pytest.raises(UsageError, match=f"{name} must be a .*, not "):
            holdfast.Delivery(journal, "run", groups=1, **{name: wrong})  # type: ignore[arg-type]
    for run in (5, []):
        with pytest.raises(UsageError, match="named by its name, a text"):
            holdfast.Delivery(journal, run, groups=1).__enter__()  # type: ignore[arg-type]


@pytest.mark.parametrize("arguments", [{"run": "\ud800"}, {"run": "run", "consumer": "\ud800"}])
def test_names_are_of_whole_characters(journal: Path, arguments: dict[str, str]) -> None:
    with (
        pytest.raises(UsageError, match="half of a character"),
        holdfast.Delivery(journal, groups=1, **arguments),  # type: ignore[arg-type]
    ):
        pass
    with holdfast.Delivery(journal, "run", groups=1) as delivery:
        (group,) = delivery.take(1)
        with pytest.raises(UsageError, match="half of a character"):
            delivery.dismiss([group], reason="\ud800")


def test_after_its_block_it_says_that_it_is_used_in_one(journal: Path) -> None:
    with holdfast.Delivery(journal, "run", groups=2) as delivery:
        with pytest.raises(UsageError, match="open already"):
            delivery.__enter__()
        assert next(iter(delivery))[0] == 1
    for use in (lambda: next(iter(delivery)), lambda: delivery.commit(1), delivery.ledger):
        with pytest.raises(UsageError, match="used in a `with` block"):
            use()
    with delivery:
        assert next(iter(delivery))[0] == 1, "it may be opened again"


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ("task-0", "a list of groups, or of their tasks, not 'task-0'"),
        ("", "a list of groups, or of their tasks, not ''"),
        (5, "a list of groups, or of their tasks, not 5"),
        (None, "a list of groups, or of their tasks, not None"),
        ([None], "by its task"),
        (["\ud800"], "half of a character"),
    ],
)
def test_groups_are_named_by_their_tasks(journal: Path, groups: list[str], message: str) -> None:
    with holdfast.Delivery(journal, "run", groups=2) as delivery:
        delivery.take(1)
        with pytest.raises(UsageError, match=message):
            delivery.dismiss(groups, reason="too old")
        with pytest.raises(
            UsageError, match=message if groups is not None else "take gave 1 group"
        ):
            delivery.commit(1, groups=groups)
        assert {entry.reason for entry in delivery.ledger()} == {"taken", "ready"}


async def test_two_trainers_as_one_consumer(journal: Path) -> None:
    opened = holdfast.open_journal(journal)
    run = await opened.find_run("run")
    assert run is not None
    await opened.subscribe(run, "trainer", someone_else(), lease_seconds=600)
    await opened.close()
    with pytest.raises(ConsumerHeld), holdfast.Delivery(journal, "run", groups=1):
        pass


# --- SIGKILL

PROGRAM = TESTS / "support" / "delivery" / "loop.py"
POINTS: Sequence[str] = [
    f"{point}:{number}"
    for number in (2, 1, 3)
    for point in ("delivery.reserved", "delivery.commit", "delivery.committed")
]


TAKING: Sequence[str] = [
    f"{point}:{number}"
    for number in (2, 1, 3)
    for point in ("delivery.commit", "delivery.committed")
]
KILLS = [
    *(("steps", point) for point in POINTS[: points(3, len(POINTS))]),
    *(("take", point) for point in TAKING[: points(2, len(TAKING))]),
]


@pytest.mark.parametrize(("way", "point"), KILLS)
def test_a_killed_loop_has_each_group_once(
    journal: Path, tmp_path: Path, way: str, point: str
) -> None:
    """The loop's checkpoint is a file with everything that it was trained on."""
    checkpoint = tmp_path / "checkpoint.json"
    command = [sys.executable, str(PROGRAM), str(journal), str(checkpoint), way]
    killed = subprocess.run(command, env=os.environ | {"HOLDFAST_CRASH": point}, check=False)
    assert killed.returncode == -signal.SIGKILL
    subprocess.run(command, check=True)
    history = json.loads(checkpoint.read_text())["history"]
    assert sorted(history) == [f"task-{number}" for number in range(GROUPS)]
    assert {end for end, _ in trained(journal).values()} == {"trained"}


@pytest.mark.parametrize("step", [None, "1", 1.5, True, -3, 2, 6], ids=repr)
def test_a_step_that_nobody_was_given_is_not_committed(journal: Path, step: int) -> None:
    with holdfast.Delivery(journal, "run", groups=2) as delivery:
        _, batch = next(iter(delivery))
        with pytest.raises(UsageError, match="step"):
            delivery.commit(step)
    with holdfast.Delivery(journal, "run", groups=2) as delivery:
        again, same = next(iter(delivery))
    assert (again, tasks_of(same)) == (1, tasks_of(batch))


def test_whole_numbers_of_other_libraries_are_steps(journal: Path) -> None:
    numpy = pytest.importorskip("numpy")
    with holdfast.Delivery(journal, "run", groups=2) as delivery:
        next(iter(delivery))
        delivery.commit(numpy.int64(1))
    with holdfast.Delivery(journal, "run", groups=2) as delivery:
        assert next(iter(delivery))[0] == 2


def test_a_run_that_a_loop_takes_from_is_no_training_and_lists_the_rewards_of_its_rollouts(
    journal: Path,
) -> None:
    with holdfast.Delivery(journal, "run", groups=2) as delivery:
        next(iter(delivery))

    async def go_on() -> list[float]:
        opened = holdfast.open_journal(journal)
        try:
            run = await opened.find_run("run")
            assert run is not None
            tasks = await opened.tasks(run)
            more = structs.replace(run.spec, samples=3)
            assert not await is_training(opened, run)
            assert (await open_run(opened, more, tasks, accept_changes=True)).spec.samples == 3
            return [reward for _, reward in await opened.rewards(run)]
        finally:
            await opened.close()

    assert sorted(asyncio.run(go_on())) == [0.0] * 6 + [1.0] * 5


def test_a_training_of_ours_is_consumed_by_nobody_else_under_its_name(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.db"
    asyncio.run(fill(path, sealed=True, model=TRAINED_MODEL))

    async def train() -> None:
        async with opened_journal(path) as journal:
            run = await journal.find_run("run")
            assert run is not None
            consumer = await journal.subscribe(run, TRAINER, this_process(), lease_seconds=30.0)
            await journal.publish_version(run, "step-0", step=0, digest="sha256:0")
            await journal.next_batch(consumer, step=1, groups=2)
            await journal.commit(consumer, 1)
            await journal.unsubscribe(consumer)

    asyncio.run(train())
    before = trained(path)
    with pytest.raises(UsageError, match=r"is a training of `holdfast train`.* consumer="):
        holdfast.Delivery(path, "run", groups=1, checkpoint=0).__enter__()
    assert trained(path) == before
    with holdfast.Delivery(path, "run", groups=2, consumer="mine") as mine:
        assert len(tasks_of(next(iter(mine))[1])) == 2
    assert trained(path) == before


def test_a_journal_is_closed_also_where_the_lease_cannot_be_given_back(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[SqliteJournal] = []
    close = SqliteJournal.close

    async def noted_close(self: SqliteJournal) -> None:
        closed.append(self)
        await close(self)

    async def broken(self: SqliteJournal, consumer: Consumer) -> None:
        raise JournalError("no space left")

    monkeypatch.setattr(SqliteJournal, "close", noted_close)
    monkeypatch.setattr(SqliteJournal, "unsubscribe", broken)
    delivery = holdfast.Delivery(journal, "run", groups=2)
    with pytest.raises(JournalError, match="no space left"), delivery:
        pass
    assert len(closed) == 1
    monkeypatch.undo()
    with pytest.raises(ConsumerHeld), delivery:
        pass


def test_an_opening_that_fails_gives_the_lease_back_and_closes_the_journal(journal: Path) -> None:
    with (
        pytest.raises(UsageError, match="checkpoint=9"),
        holdfast.Delivery(journal, "run", groups=2, checkpoint=9),
    ):
        pass
    with holdfast.Delivery(journal, "run", groups=2):
        pass
