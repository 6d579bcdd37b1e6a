"""TRL's advantages and loss on converted samples equal ours, a failed member among them."""

import sys
import warnings
from pathlib import Path

import pytest
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

import holdfast.trl
from holdfast.convert import to_trl
from holdfast.embedded.model.files import TINY
from holdfast.training.objective.objective import PRESETS

sys.path.insert(0, str(Path(__file__).parents[1] / "oracles"))

from test_trl import GROUP, LONGEST, groups_of, moved, our_step, rollouts, shares


def theirs(folder, samples, rows):
    """(advantages, loss) of `GRPOTrainer` over the columns that `to_trl` gives it."""
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    columns = dict(to_trl(samples, num_generations=GROUP).columns)
    columns.pop("holdfast")
    trainer = GRPOTrainer(
        model=str(TINY),
        args=GRPOConfig(
            output_dir=str(folder),
            per_device_train_batch_size=rows,
            num_generations=GROUP,
            max_completion_length=LONGEST,
            use_cpu=True,
            bf16=False,
            report_to=[],
            gradient_checkpointing=False,
            loss_type="grpo",
        ),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list([{"prompt": "?"}]),
        reward_funcs=holdfast.trl.reward,
        rollout_func=lambda prompts, _: columns,
    )
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    batch = trainer._generate_and_score_completions([{"prompt": "?"} for _ in range(rows)])
    batch["old_per_token_logps"] = batch["sampling_per_token_logps"]
    moved(trainer.model)
    loss = trainer._compute_loss(trainer.model, batch)
    return batch["advantages"].tolist(), loss.item()


@pytest.mark.parametrize("seed", range(2))
def test_the_loss_of_converted_samples(tmp_path, seed):
    found = rollouts(seed, 1.0)
    groups = groups_of(found, 1.0)
    samples = [s for group in groups for t in group.trajectories for s in t.samples]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        advantages, loss = theirs(tmp_path, samples, len(found))
    ours, own_loss, _ = our_step(found, PRESETS["grpo"], temperature=1.0)
    assert ours == pytest.approx(advantages, abs=2e-3)
    assert own_loss == pytest.approx(shares(found, PRESETS["grpo"]) * loss, abs=1e-4, rel=1e-3)
