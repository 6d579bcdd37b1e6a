"""What `holdfast.trl.rollouts` refuses with TRL's own `GRPOTrainer`, before anything is trained
wrongly: rewards of others than the scorer, and samples of other weights than the trainer's."""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "longer"))

import calculator
import pytest
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl_grpo import newest_checkpoint, rows

import holdfast
import holdfast.trl
from holdfast.embedded.model.files import TINY
from holdfast.records.errors import UsageError

SAMPLES = 4


def train(
    folder: Path,
    out: str = "out",
    *,
    steps: int = 2,
    learning_rate: float = 1e-3,
    save: str = "no",
    reward_funcs=None,
    **options,
) -> GRPOTrainer:
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    trainer = GRPOTrainer(
        model=str(TINY),
        args=GRPOConfig(
            output_dir=str(folder / out),
            per_device_train_batch_size=SAMPLES,
            num_generations=SAMPLES,
            max_steps=steps,
            save_strategy=save,
            save_steps=1,
            learning_rate=learning_rate,
            lr_scheduler_type="constant",
            max_completion_length=160,
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
            seed=0,
        ),
        processing_class=tokenizer,
        train_dataset=rows(64),
        rollout_func=holdfast.trl.rollouts(
            options.pop("rollout", calculator.solve),
            options.pop("scorer", constant),
            **{"journal": folder / "holdfast.db", **options},
        ),
        reward_funcs=reward_funcs or holdfast.trl.reward,
    )
    trainer.train(resume_from_checkpoint=newest_checkpoint(folder / out))
    return trainer


def constant(trajectory) -> float:
    """Differs within each group, so that each step changes the weights."""
    return float(trajectory.key.sample % 2)


def weights(trainer: GRPOTrainer) -> list:
    return [tensor.clone() for tensor in trainer.model.state_dict().values()]


def are_equal(one: list, other: list) -> bool:
    return all(a.equal(b) for a, b in zip(one, other, strict=True))


def recorded(folder: Path) -> tuple[list, list]:
    """Trajectories with the number of their records, and the ledger."""

    async def read():
        journal = holdfast.open_journal(folder / "holdfast.db", read_only=True)
        try:
            run = await journal.find_run("trl")
            if run is None:
                return [], []
            found = [(str(row.key), row.records) for row in await journal.trajectories(run)]
            return found, await journal.ledger(run, "trainer")
        finally:
            await journal.close()

    return asyncio.run(read())


def form(completions, **columns) -> list[float]:
    return [0.5] * len(completions)


@pytest.mark.parametrize("found", [[holdfast.trl.reward, form], [form]])
def test_rewards_come_from_the_scorer_alone(tmp_path, found):
    with pytest.raises(UsageError, match="not form: TRL would give a reward to rollouts that fail"):
        train(tmp_path, reward_funcs=found)
    assert not (tmp_path / "holdfast.db").exists(), "nothing was sampled"


def test_a_training_that_begins_does_not_get_the_samples_of_another(tmp_path):
    train(tmp_path, save="steps")
    before = recorded(tmp_path)
    with pytest.raises(UsageError, match="trained up to step 2, and the trainer begins anew"):
        train(tmp_path, "other", learning_rate=3e-3)
    assert recorded(tmp_path) == before
    train(tmp_path, "other", learning_rate=3e-3, run="other")
    train(tmp_path, steps=3, save="steps")
    after, ledger = recorded(tmp_path)
    assert after[: len(before[0])] == before[0]
    assert [(str(entry.end), entry.step) for entry in ledger] == [
        ("trained", step) for step in (1, 2, 3)
    ]


def test_a_trainer_that_trains_again_commits_its_checkpoints(tmp_path):
    trainer = train(tmp_path, save="steps")
    trainer.args.max_steps = 4
    trainer.train(resume_from_checkpoint=newest_checkpoint(tmp_path / "out"))
    ends = [(str(entry.end), entry.step) for entry in recorded(tmp_path)[1]]
    assert ends == [("trained", step) for step in (1, 2, 3, 4)]
    trainer.rollout_func.commit(4)  # Between two trainings, there is nothing to commit to.


async def unrewarded(t) -> None:
    t.add(*t.task.messages)
    await t.generate()


def test_a_training_that_nothing_can_reward_is_refused(tmp_path):
    with pytest.raises(UsageError, match="nothing gives the trajectories of run 'trl' a reward"):
        train(tmp_path, rollout=unrewarded, scorer=None)
    assert not (tmp_path / "holdfast.db").exists(), "nothing was sampled"


def test_a_step_is_answered_where_the_same_weights_sampled_it(tmp_path):
    """No checkpoint is written: each training begins at the first step."""
    first = weights(train(tmp_path))
    before = recorded(tmp_path)
    with pytest.raises(UsageError, match=r"step-2-.* other weights \(step-1\) than the trainer's"):
        train(tmp_path, learning_rate=3e-3)
    assert recorded(tmp_path)[0] == before[0], "nothing was sampled"
    assert are_equal(weights(train(tmp_path, "again")), first), "the journal answered"
    assert recorded(tmp_path)[0] == before[0]
    other = weights(train(tmp_path, learning_rate=3e-3, other_weights="accept"))
    assert recorded(tmp_path)[0] == before[0], "accepted by name"
    assert not are_equal(other, first)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"policy": 5}, "policy is of type int, and no policy; give the engine's address"),
        ({"policy": ["http://127.0.0.1:1", 5]}, "policy: an address is a text, not 5"),
        ({"branches": "zzz"}, "branches is one of refuse, longest, not 'zzz'"),
        ({"other_weights": 1}, "other_weights is one of refuse, accept, not 1"),
        ({"journal": None}, "journal is the path of a file"),
        ({"scorer": 5}, "scorer is a function"),
    ],
)
def test_bad_options(tmp_path, option, message):
    with pytest.raises(UsageError, match=message):
        train(tmp_path, **option)
