"""Recorded groups in NeMo-RL's buffer: each in the step that it is meant for, once."""

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import holdfast
from holdfast.records.errors import HoldfastError, NotTrainable, UsageError
from holdfast.records.group import GroupPolicy
from holdfast.records.step import Finished
from holdfast.records.trajectory import Status
from support.nemo.replay_buffer import Handle, ReplayBuffer
from support.paths import TESTS
from support.records import generated, joined, make_tasks, spec, started

PACKAGE = TESTS / "support" / "nemo" / "package"
STEPS, PROMPTS, SIZE = 3, 2, 2


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    """NeMo's documented shapes in place of the package; its actor answers in this process."""
    monkeypatch.syspath_prepend(str(PACKAGE))
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get=lambda answer, timeout: answer))


async def fill(path: Path, *, failed: bool) -> None:
    journal = holdfast.open_journal(path)
    tasks = make_tasks(*(f"task-{number}" for number in range(STEPS * PROMPTS)))
    run = await journal.create_run(spec(samples=SIZE, group=GroupPolicy()), tasks)
    worker = await joined(journal, run)
    for number, claim in enumerate(await journal.claim(worker, groups=len(tasks))):
        for lease in claim.open:
            fails = failed and number == 0 and lease.key.sample == 1
            status = Status.FAILED if fails else Status.COMPLETED
            end = Finished(status, "", float(lease.key.sample), 2.0)
            records = [started(), generated("0"), end]
            await journal.append(lease, records, status=status, settled=True)
    await journal.leave(worker)
    await journal.close()


@pytest.fixture
def journal(tmp_path):
    asyncio.run(fill(tmp_path / "holdfast.db", failed=False))
    return tmp_path / "holdfast.db"


def feed(delivery, buffer, **more):
    from holdfast.nemo import BufferFeed

    more = {"weight_version": lambda samples: 0, "max_age_steps": STEPS} | more
    return BufferFeed(delivery, Handle(buffer), num_generations=SIZE, **more)


def delivery(journal, **more):
    return holdfast.Delivery(journal, "run", groups=PROMPTS, **more)


def train(buffer: ReplayBuffer, step: int) -> list[str]:
    found = buffer.sample(PROMPTS, step, STEPS)
    assert found is not None, f"step {step} is not whole"
    return [name for entry in found["trajectories"] for name in set(entry["batch"]["task_name"])]


def test_a_step_of_nemo_is_a_step_of_the_ledger(journal):
    buffer = ReplayBuffer(max_size=100)
    with delivery(journal) as found:
        feed(found, buffer).run()
        trained = [train(buffer, step) for step in range(STEPS)]
        found.commit(STEPS)
        ledger = {entry.task: (str(entry.end), entry.step) for entry in found.ledger()}
    assert ledger == {
        task: ("trained", step + 1) for step, tasks in enumerate(trained) for task in tasks
    }
    assert len(ledger) == STEPS * PROMPTS


def test_batches_have_the_columns_that_nemo_trains_on(journal):
    from nemo_rl.distributed.batched_data_dict import BatchedDataDict

    buffer = ReplayBuffer(max_size=100)
    with delivery(journal) as found:
        feed(found, buffer).run(steps=1)
    assert len(buffer.entries) == PROMPTS
    batch = BatchedDataDict.from_batches([entry["batch"] for entry, _, _ in buffer.entries])
    assert batch["total_reward"].tolist() == [0.0, 1.0, 0.0, 1.0]
    assert batch["loss_multiplier"].tolist() == [1.0] * 4
    assert batch["truncated"].tolist() == [False] * 4
    for log, length in zip(batch["message_log"], batch["length"], strict=True):
        assert len(log[0]["token_ids"]) == length, "NeMo finds the prompt by its length"
        assert len(log[1]["token_ids"]) == len(log[1]["generation_logprobs"])


@pytest.mark.parametrize("held", [0, 1, 2])
def test_what_the_restored_buffer_holds_is_not_added_again(journal, held):
    buffer = ReplayBuffer(max_size=100)
    with delivery(journal) as found:
        feed(found, buffer).run(steps=2)
        trained = [train(buffer, 0)]
        found.commit(1)
    restored = ReplayBuffer(max_size=100)
    restored.entries = buffer.entries[:held]  # As the checkpoint of step 1 has it.
    with delivery(journal, checkpoint=1) as found:
        feed(found, restored).run()
    trained += [train(restored, step) for step in range(1, STEPS)]
    names = sorted(name for step in trained for name in step)
    assert names == [f"task-{n}" for n in range(STEPS * PROMPTS)]
    assert not restored.entries


def test_it_waits_while_the_buffer_is_full(journal, monkeypatch):
    buffer, trained = ReplayBuffer(max_size=PROMPTS), []

    def wait(seconds):
        trained.append(train(buffer, len(trained)))

    with delivery(journal) as found:
        fed = feed(found, buffer)
        clock = SimpleNamespace(sleep=wait, time=float, monotonic=float)
        monkeypatch.setattr("holdfast.nemo.buffer.time", clock)
        fed.run()
    assert len(trained) == STEPS - 1
    assert len(buffer.entries) == PROMPTS


def test_what_nemo_would_evict_or_wait_for_in_vain_is_refused(journal, tmp_path):
    with (
        delivery(journal) as found,
        pytest.raises(NotTrainable, match="more than 1 steps older than step 2"),
    ):
        feed(found, ReplayBuffer(100), max_age_steps=1).run()
    asyncio.run(fill(tmp_path / "failed.db", failed=True))
    with (
        delivery(tmp_path / "failed.db") as found,
        pytest.raises(NotTrainable, match=r"it has 1 valid members.*shortfall='drop'"),
    ):
        feed(found, ReplayBuffer(100)).run()


def test_what_is_no_feed_is_named(journal):
    with pytest.raises(UsageError, match="delivery must be a Delivery, not 3"):
        feed(3, ReplayBuffer(max_size=8))
    with pytest.raises(UsageError, match="weight_version must be a function, not 0"):
        feed(delivery(journal), ReplayBuffer(max_size=8), weight_version=0)
    with pytest.raises(UsageError, match="max_age_steps must be a whole number, not '1'"):
        feed(delivery(journal), ReplayBuffer(max_size=8), max_age_steps="1")


def test_a_buffer_that_stays_full_is_waited_for_no_longer_than_was_said(journal, monkeypatch):
    monkeypatch.setattr("holdfast.nemo.buffer.FULL_SECONDS", 0.01)
    with delivery(journal) as found:
        feeding = feed(found, ReplayBuffer(max_size=1), wait=0.05)
        with pytest.raises(HoldfastError, match=r"full, and took no group of step 0 within wait"):
            feeding.run()


def test_a_buffer_that_does_not_answer_is_an_error(journal, monkeypatch):
    def get(answer, timeout):
        raise TimeoutError(f"after {timeout} seconds")

    with delivery(journal) as found:
        feeding = feed(found, ReplayBuffer(max_size=100))
        monkeypatch.setattr("holdfast.nemo.buffer.ray", SimpleNamespace(get=get))
        with pytest.raises(HoldfastError, match="does not answer: get_trajectories_needed"):
            feeding.run()
