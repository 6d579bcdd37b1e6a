"""TRL's `eval_dataset`: evaluations are a run of their own, which nobody trains on, and which a
resumed training is answered from."""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "longer"))

import calculator
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl_grpo import rows

import holdfast
import holdfast.trl
from holdfast.embedded.model.files import TINY

SAMPLES, EVAL_SAMPLES, EVAL_ROWS = 4, 2, 4


def train(folder: Path, *, steps: int, resume: str | None = None) -> GRPOTrainer:
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    trainer = GRPOTrainer(
        model=str(TINY),
        args=GRPOConfig(
            output_dir=str(folder / "out"),
            per_device_train_batch_size=SAMPLES,
            per_device_eval_batch_size=EVAL_SAMPLES,
            num_generations=SAMPLES,
            num_generations_eval=EVAL_SAMPLES,
            max_steps=steps,
            save_steps=1,
            eval_strategy="steps",
            eval_steps=1,
            max_completion_length=160,
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
        ),
        processing_class=tokenizer,
        train_dataset=rows(64),
        eval_dataset=rows(96).select(range(64, 64 + EVAL_ROWS)),
        rollout_func=holdfast.trl.rollouts(
            calculator.solve, calculator.score, journal=folder / "holdfast.db"
        ),
        reward_funcs=holdfast.trl.reward,
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def recorded(folder: Path) -> dict[str, list]:
    async def read():
        journal = holdfast.open_journal(folder / "holdfast.db", read_only=True)
        try:
            found = {}
            for row in await journal.runs():
                run = await journal.find_run(row.name)
                found[row.name] = [
                    (str(each.key), each.records) for each in await journal.trajectories(run)
                ]
            run = await journal.find_run("trl")
            ledger = await journal.ledger(run, "trainer")
            found["trained"] = [entry.task for entry in ledger if entry.end == "trained"]
            return found
        finally:
            await journal.close()

    return asyncio.run(read())


def test_an_evaluation_is_a_run_of_its_own_and_is_not_made_twice(tmp_path):
    trainer = train(tmp_path, steps=2)
    scores = [line["eval_reward"] for line in trainer.state.log_history if "eval_reward" in line]
    assert len(scores) == 2
    assert all(0 <= score <= 1 for score in scores)
    before = recorded(tmp_path)
    assert len(before["trl-eval"]) == 2 * EVAL_ROWS * EVAL_SAMPLES
    assert len(before["trl"]) == 2 * SAMPLES
    assert len(before["trained"]) == 2
    again = train(tmp_path, steps=2, resume=str(tmp_path / "out" / "checkpoint-1"))
    assert recorded(tmp_path) == before, "the journal answered"
    resumed = [line["eval_reward"] for line in again.state.log_history if "eval_reward" in line]
    assert resumed[-1] == scores[-1]
