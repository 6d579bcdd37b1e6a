"""The options of `holdfast train`."""

import argparse
from collections.abc import Sequence
from typing import Any

from holdfast.engine import options
from holdfast.engine.options import POSITIVE, Number, Option, Whole
from holdfast.training.objective.objective import CORRECTIONS, PRESETS
from holdfast.training.settings import DTYPES, RateSchedule, TruncationPolicy

_RATE = Number("between 0 and 1", lambda value: 0 < value < 1)
LEARNING = (
    Option(
        "loss",
        f"{', '.join(PRESETS)}, or a function of your own ({{}})",
        None,
        "grpo",
        "NAME|FILE.py:NAME",
    ),
    Option("steps", "optimizer steps ({})", Whole(1), 40, "N"),
    Option("groups", "tasks per step ({})", Whole(1), 16, "N"),
    Option("samples", "trajectories per task ({})", Whole(1), 8, "N"),
    Option(
        "learning-rate",
        "3e-4 for the small model of ours, 1e-5 with LoRA, else 1e-6",
        _RATE,
        metavar="R",
    ),
    Option("schedule", "after the warm-up ({})", None, "constant", choices=tuple(RateSchedule)),
    Option("warmup-steps", "in which the rate grows ({})", Whole(0), 0, "N"),
    Option("weight-decay", "of AdamW ({})", POSITIVE, 0.0, "W"),
    Option("max-norm", "gradients are scaled down to it ({})", POSITIVE, 1.0, "X"),
    Option("updates", "optimizer updates per step ({})", Whole(1), 1, "N"),
    Option("seed", "of the tasks' order and of every request ({})", Whole(0), 0, "N"),
)
OBJECTIVE = (
    Option("clip-low", "how far a ratio may fall below 1 (the loss's own)", POSITIVE, metavar="E"),
    Option("clip-high", "how far it may rise above 1 (the loss's own)", POSITIVE, metavar="E"),
    Option("kl", "coefficient of the KL term to a reference ({})", POSITIVE, 0.0, "C"),
    Option("kl-estimate", "how it is estimated ({})", None, "k3", choices=("k1", "k2", "k3")),
    Option("kl-in-reward", "take it off the rewards instead", None, action="store_true"),
    Option("reference", "the model to stay near to (the one that is trained)", metavar="DIR"),
    Option("entropy", "coefficient of an entropy bonus ({})", POSITIVE, 0.0, "C"),
    Option(
        "correction",
        "of the gap between engine and trainer (none)",
        None,
        choices=tuple(CORRECTIONS),
    ),
    Option(
        "recompute-old",
        "compute the old policy's logprobs at the beginning of a step, instead of the recorded",
        None,
        action="store_true",
    ),
    Option(
        "dynamic",
        "dismiss and replace groups in which all rewards are equal (with --loss dapo, always)",
        None,
        action="store_true",
    ),
    Option("max-draws", "then, at most N times the groups of a step ({})", Whole(1), 3, "N"),
    Option(
        "truncation",
        "whether trajectories that reached a limit are trained, or only in the baseline ({})",
        None,
        "keep",
        choices=tuple(TruncationPolicy),
    ),
)
SAMPLED = (
    Option("temperature", "({})", Number("above 0", lambda value: value > 0), 1.0, "T"),
    Option("max-tokens", "per reply ({})", Whole(1), 1024, "N"),
    Option(
        "scorer", "the function that rewards (`score` beside the rollout)", metavar="[FILE.py:]NAME"
    ),
)
MACHINE = (
    Option("device", "cpu, cuda, cuda:1 ({})", None, "cpu", "NAME"),
    Option("dtype", "of the model ({})", None, "float32", choices=DTYPES),
    Option("row-tokens", "the token budget of a micro-batch ({})", Whole(2), 8192, "N"),
    Option("gradient-checkpointing", "less memory, more time", None, action="store_true"),
    Option("lora-rank", "train a LoRA adapter of this rank (none)", Whole(1), metavar="N"),
    Option("lora-alpha", "its scale ({})", Whole(1), 32, "N"),
    Option("lora-targets", "its modules, comma-separated (all linear ones)", metavar="NAMES"),
)
KEPT = (
    Option("checkpoint-every", "steps ({})", Whole(1), 1, "N"),
    Option("keep-checkpoints", "how many ({})", Whole(1), 3, "N"),
    Option("eval-every", "steps between evaluations ({})", Whole(1), 10, "N"),
    Option("eval-samples", "trajectories per held-out task ({})", Whole(1), 1, "N"),
    Option("track", "to wandb, trackio or tensorboard, too", None, [], "NAME", action="append"),
)


def add_train(commands: Any) -> None:
    train = commands.add_parser(
        "train",
        help="train a model on a rollout, or go on with a training that was interrupted",
        description="Trains a model on a rollout. The same command again goes on from the last "
        "checkpoint.\n\n"
        "  holdfast train agent.py --tasks train.jsonl --eval-tasks held_out.jsonl \\\n"
        "      --run first --out runs/first --model DIR\n\n"
        "Without --policy, the embedded engine samples. With it, the engine has to serve the same\n"
        "model and to take weights from disk (/update_weights_from_disk).",
    )
    train.add_argument("rollout", metavar="FILE.py[:NAME]", help="the rollout, as for `run`")
    train.add_argument("--tasks", required=True, metavar="FILE", help="JSONL, one task per line")
    train.add_argument("--eval-tasks", metavar="FILE", help="held-out tasks")
    train.add_argument("--run", required=True, metavar="NAME", help="what this training is called")
    train.add_argument("--out", required=True, metavar="DIR", help="for checkpoints and weights")
    train.add_argument(
        "--model", metavar="DIR", help="a Hugging Face folder (a small model of ours)"
    )
    options.POLICY.add_to(train)
    options.JOURNAL.add_to(train)
    _group(train, "learning (part of the training's identity)", LEARNING)
    _group(train, "the objective (part of its identity, too)", OBJECTIVE)
    _group(train, "what is sampled", SAMPLED)
    _group(train, "the machine", MACHINE)
    _group(train, "what is kept and shown", KEPT)
    budgets = [o for o in options.BUDGETS if o is not options.FAIL_ON_PERMANENT_FAILURE]
    _group(train, "budgets of rollouts", budgets)
    _group(train, "deadlines of rollouts, in seconds", options.DEADLINES)
    train.add_argument("--json", action="store_true", help="print the report as JSON")


def _group(parser: argparse.ArgumentParser, title: str, listed: Sequence[Option]) -> None:
    group = parser.add_argument_group(title)
    for option in listed:
        option.add_to(group)
