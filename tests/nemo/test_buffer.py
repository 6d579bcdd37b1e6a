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


def config(*, max_age=STEPS, temperature=1.0, **more):
    """The sections of NeMo's `MasterConfig` that a feed looks at."""
    return {
        "grpo": {
            "num_prompts_per_step": PROMPTS,
            "num_generations_per_prompt": SIZE,
            "async_grpo": {"enabled": True, "max_trajectory_age_steps": max_age},
            "max_num_steps": 1000000,
            **more.pop("grpo", {}),
        },
        "policy": {"generation": {"temperature": temperature, "top_p": 1.0, "vllm_cfg": {"x": 1}}},
        **more,
    }


def feed(delivery, buffer, settings=None, **more):
    from holdfast.nemo import BufferFeed

    more = {"weight_version": lambda samples: 0} | more
    return BufferFeed(delivery, Handle(buffer), settings or config(), **more)


def delivery(journal, **more):
    return holdfast.Delivery(journal, "run", groups=PROMPTS, **more)


def train(buffer: ReplayBuffer, step: int) -> list[str]:
    completion = buffer.sample(PROMPTS, step, STEPS)
    assert completion is not None, f"step {step} is not whole"
    return [
        name for entry in completion["trajectories"] for name in set(entry["batch"]["task_name"])
    ]


def test_a_step_of_nemo_is_a_step_of_the_ledger(journal):
    buffer = ReplayBuffer(max_size=100)
    with delivery(journal) as result:
        feed(result, buffer).run()
        trained = [train(buffer, step) for step in range(STEPS)]
        result.commit(STEPS)
        ledger = {entry.task: (str(entry.end), entry.step) for entry in result.ledger()}
    assert ledger == {
        task: ("trained", step + 1) for step, tasks in enumerate(trained) for task in tasks
    }
    assert len(ledger) == STEPS * PROMPTS


def test_batches_have_the_columns_that_nemo_trains_on(journal):
    from nemo_rl.distributed.batched_data_dict import BatchedDataDict

    buffer = ReplayBuffer(max_size=100)
    with delivery(journal) as result:
        feed(result, buffer).run(steps=1)
    assert len(buffer.entries) == PROMPTS
    batch = BatchedDataDict.from_batches([entry["batch"] for entry, _, _ in buffer.entries])
    assert batch["total_reward"].tolist() == [0.0, 1.0, 0.0, 1.0]
    assert batch["loss_multiplier"].tolist() == [1.0] * 4
    assert batch["truncated"].tolist() == [False] * 4
    for log, length in zip(batch["message_log"], batch["length"], strict=True):
        assert len(log[0]["token_ids"]) == length, "NeMo finds the prompt by its length"
        assert len(log[1]["token_ids"]) == len(log[1]["generation_logprobs"])


def fed_and_restored(journal, *places):
    """The names of step 0, and the buffer as a checkpoint after it brings it back: of the two
    groups of step 1 those at these places."""
    buffer = ReplayBuffer(max_size=100)
    with delivery(journal) as result:
        feed(result, buffer).run(steps=2)
        trained = train(buffer, 0)
        result.commit(1)
    restored = ReplayBuffer(max_size=100)
    restored.entries = [buffer.entries[place] for place in places]
    return trained, restored


@pytest.mark.parametrize("places", [(), (0,), (1,), (0, 1), (1, 0)])
def test_whatever_the_restored_buffer_holds_every_group_is_trained_once(journal, places):
    names, restored = fed_and_restored(journal, *places)
    with delivery(journal, checkpoint=1) as result:
        feed(result, restored).run()
    names += [name for step in range(1, STEPS) for name in train(restored, step)]
    assert sorted(names) == [f"task-{n}" for n in range(STEPS * PROMPTS)]
    assert not restored.entries


def test_a_restored_buffer_of_another_training_is_refused(journal):
    _, restored = fed_and_restored(journal, 0)
    _, version, target = restored.entries[0]
    restored.entries.append(({"batch": {"task_name": ["another"]}}, version, target))
    refused = pytest.raises(NotTrainable, match="'another' for step 1, which is not of this step")
    with delivery(journal, checkpoint=1) as result, refused:
        feed(result, restored).run()


def test_a_group_that_the_restored_buffer_holds_twice_is_refused(journal):
    _, restored = fed_and_restored(journal, 0, 0)
    refused = pytest.raises(NotTrainable, match="for step 1, twice: resume from a checkpoint")
    with delivery(journal, checkpoint=1) as result, refused:
        feed(result, restored).run()


def test_it_waits_while_the_buffer_is_full(journal, monkeypatch):
    buffer, trained = ReplayBuffer(max_size=PROMPTS), []

    def wait(seconds):
        trained.append(train(buffer, len(trained)))

    with delivery(journal) as result:
        fed = feed(result, buffer)
        clock = SimpleNamespace(sleep=wait, time=float, monotonic=float)
        monkeypatch.setattr("holdfast.nemo.buffer.time", clock)
        fed.run()
    assert len(trained) == STEPS - 1
    assert len(buffer.entries) == PROMPTS


def test_what_nemo_would_evict_or_wait_for_in_vain_is_refused(journal, tmp_path):
    with (
        delivery(journal) as result,
        pytest.raises(NotTrainable, match="more than 1 steps older than step 2"),
    ):
        feed(result, ReplayBuffer(100), config(max_age=1)).run()
    asyncio.run(fill(tmp_path / "failed.db", failed=True))
    with (
        delivery(tmp_path / "failed.db") as result,
        pytest.raises(NotTrainable, match=r"it has 1 valid members.*shortfall='drop'"),
    ):
        feed(result, ReplayBuffer(100)).run()


def test_what_is_no_feed_is_named(journal):
    with pytest.raises(UsageError, match="delivery must be a Delivery, not 3"):
        feed(3, ReplayBuffer(max_size=8))
    with pytest.raises(UsageError, match="weight_version must be a function, not 0"):
        feed(delivery(journal), ReplayBuffer(max_size=8), weight_version=0)
    with pytest.raises(UsageError, match="max_trajectory_age_steps must be a whole number, not '"):
        feed(delivery(journal), ReplayBuffer(max_size=8), config(max_age="1"))


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"grpo": {"use_dynamic_sampling": True}}, r"grpo.use_dynamic_sampling \(True\): a step"),
        ({"grpo": {"reward_scaling": {"enabled": True}}}, "let the scorer do it"),
        ({"reward_penalties": {"penalize_unwanted_tokens": True}}, "let the scorer do it"),
        ({"policy": {"generation": {"temperature": 1.0, "top_p": 0.9}}}, r"top_p \(0.9\): NeMo"),
    ],
)
def test_settings_of_nemo_that_a_feed_cannot_follow_are_refused(journal, more, why):
    with pytest.raises(UsageError, match=why):
        feed(delivery(journal), ReplayBuffer(max_size=8), config(**more))


def test_a_setting_that_no_table_has_is_named(journal):
    with pytest.warns(UserWarning, match=r"leaves them to it: grpo\.of_a_later_nemo;"):
        feed(delivery(journal), ReplayBuffer(8), config(grpo={"of_a_later_nemo": 2}))


def test_groups_that_nemo_would_train_otherwise_are_refused(journal):
    for settings, why in (
        (config(temperature=0.5), "sampled at temperature 1, and the trainer .* at 0.5"),
        (config(grpo={"num_prompts_per_step": 3}), r"step 0 has 2 groups, and NeMo-RL waits for 3"),
    ):
        with delivery(journal) as result, pytest.raises(NotTrainable, match=why):
            feed(result, ReplayBuffer(max_size=8), settings).run()


def test_a_buffer_that_stays_full_is_waited_for_no_longer_than_was_said(journal, monkeypatch):
    monkeypatch.setattr("holdfast.nemo.buffer.FULL_SECONDS", 0.01)
    with delivery(journal) as result:
        feeding = feed(result, ReplayBuffer(max_size=1), wait=0.05)
        with pytest.raises(HoldfastError, match=r"full, and took no group of step 0 within wait"):
            feeding.run()


def test_a_buffer_that_does_not_answer_is_an_error(journal, monkeypatch):
    def get(answer, timeout):
        raise TimeoutError(f"after {timeout} seconds")

    with delivery(journal) as result:
        feeding = feed(result, ReplayBuffer(max_size=100))
        monkeypatch.setattr("holdfast.nemo.buffer.ray", SimpleNamespace(get=get))
        with pytest.raises(HoldfastError, match="does not answer: size"):
            feeding.run()
