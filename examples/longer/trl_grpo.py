"""TRL's `GRPOTrainer` on durable rollouts: the small model learns sums with a calculator.

Needs TRL (`pip install trl`), and nothing else: on a CPU, some minutes.

    python examples/longer/trl_grpo.py --out .learn/trl

Kill it, and give the same command again: TRL goes on from its newest checkpoint, and the steps
after that are answered from the journal.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import calculator
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

import holdfast
import holdfast.trl
from holdfast.embedded.model.files import TINY

EXAMPLES = Path(__file__).parents[1]


def rows(limit: int) -> Dataset:
    """Prompts as messages, and the answers that the scorer looks at."""
    lines = (EXAMPLES / "train.jsonl").read_text().splitlines()[:limit]
    return Dataset.from_list(
        [
            {
                "prompt": [{"role": "user", "content": row["prompt"]}],
                "ground_truth": row["ground_truth"],
            }
            for row in map(json.loads, lines)
        ]
    )


def train(args: argparse.Namespace) -> GRPOTrainer:
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    trainer = GRPOTrainer(
        model=str(TINY),
        args=GRPOConfig(
            output_dir=str(args.out),
            per_device_train_batch_size=args.groups * args.samples,
            num_generations=args.samples,
            max_steps=args.steps,
            save_steps=args.save_steps,
            learning_rate=args.learning_rate,
            lr_scheduler_type="constant",
            max_completion_length=160,
            logging_steps=1,
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
            seed=args.seed,
        ),
        processing_class=tokenizer,
        train_dataset=rows(args.limit),
        rollout_func=holdfast.trl.rollouts(
            calculator.solve,
            calculator.score,
            journal=args.journal or args.out.with_suffix(".db"),
            log_requests=args.log_requests,
        ),
        reward_funcs=holdfast.trl.reward,
    )
    trainer.train(resume_from_checkpoint=newest_checkpoint(args.out))
    return trainer


def newest_checkpoint(out: Path) -> str | None:
    """The newest whole one: a kill while transformers writes a checkpoint leaves part of it, and
    its own `get_last_checkpoint` would take that."""
    whole = [path.parent for path in out.glob("checkpoint-*/trainer_state.json")]
    whole.sort(key=lambda path: int(path.name.rpartition("-")[2]))
    return str(whole[-1]) if whole else None


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(".learn/trl"))
    parser.add_argument("--journal", type=Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--save-steps", type=int, default=2)
    parser.add_argument("--limit", type=int, default=512)
    parser.add_argument("--learning-rate", type=float, default=6e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-requests", action="store_true")
    return parser.parse_args(words)


if __name__ == "__main__":
    trainer = train(parse())
    rewards = [line["reward"] for line in trainer.state.log_history if "reward" in line]
    print("mean reward of each step:", " ".join(f"{reward:.2f}" for reward in rewards))
