"""The options of `holdfast train`."""

import argparse
from collections.abc import Sequence

from holdfast.engine import options
from holdfast.engine.options import (
    KEEP_INTERRUPTED,
    POSITIVE,
    SECONDS,
    Number,
    Option,
    Whole,
    switch,
)
from holdfast.pipeline.settings import TooOld
from holdfast.training.objective.objective import CORRECTIONS, PRESETS
from holdfast.training.settings import DTYPES, WEIGHT_SYNC, RateSchedule, TruncationPolicy

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
        "of AdamW (3e-4 for the small model of ours, 1e-5 with LoRA, else 1e-6)",
        _RATE,
        metavar="R",
    ),
    Option(
        "schedule",
        "of the learning rate, after the warm-up ({})",
        None,
        "constant",
        choices=tuple(RateSchedule),
    ),
    Option("warmup-steps", "in which the learning rate grows ({})", Whole(0), 0, "N"),
    Option("weight-decay", "of AdamW ({})", POSITIVE, 0.0, "W"),
    Option("max-norm", "gradients are scaled down to it ({})", POSITIVE, 1.0, "X"),
    Option("updates", "optimizer updates per step ({})", Whole(1), 1, "N"),
    Option("seed", "of the order of tasks, and of every request ({})", Whole(0), 0, "N"),
)
OBJECTIVE = (
    Option("clip-low", "how far a ratio may fall below 1 (the loss's own)", POSITIVE, metavar="E"),
    Option("clip-high", "how far it may rise above 1 (the loss's own)", POSITIVE, metavar="E"),
    Option("kl", "coefficient of the KL term to a reference ({})", POSITIVE, 0.0, "C"),
    Option("kl-estimate", "how it is estimated ({})", None, "k3", choices=("k1", "k2", "k3")),
    switch("kl-in-reward", "take it off the rewards instead"),
    Option("reference", "the model to stay near to (the one that is trained)", metavar="DIR"),
    Option("entropy", "coefficient of an entropy bonus ({})", POSITIVE, 0.0, "C"),
    Option(
        "correction",
        "of the gap between engine and trainer (none)",
        None,
        choices=tuple(CORRECTIONS),
    ),
    switch(
        "recompute-old",
        "compute the old policy's logprobs at the beginning of a step, instead of the recorded",
    ),
    switch(
        "dynamic",
        "dismiss and replace groups in which all rewards are equal (with --loss dapo, always)",
    ),
    Option(
        "max-draws",
        "with --dynamic, draw at most N times the groups of a step ({})",
        Whole(1),
        3,
        "N",
    ),
    Option(
        "truncation",
        "whether trajectories that reached a limit are trained, or only in the baseline ({})",
        None,
        "keep",
        choices=tuple(TruncationPolicy),
    ),
    KEEP_INTERRUPTED,
    Option(
        "overlong-length",
        "take a penalty off the reward of trajectories near or above N sampled tokens (none)",
        Whole(1),
        metavar="N",
    ),
    Option(
        "overlong-margin",
        "over how many tokens before that it grows (a fifth of them)",
        Whole(1),
        metavar="N",
    ),
    Option("overlong-penalty", "what it grows to ({})", POSITIVE, 1.0, "X"),
    Option(
        "discount",
        "credit each turn with the rewards from it on, times G per turn (each with the whole)",
        Number("0 to 1", lambda value: 0 <= value <= 1),
        metavar="G",
    ),
)
SAMPLED = (
    Option(
        "temperature",
        "of the distribution that is sampled and trained ({})",
        Number("above 0", lambda value: value > 0),
        1.0,
        "T",
    ),
    Option("max-tokens", "per reply ({})", Whole(1), 1024, "N"),
    options.STOP_TOKEN_IDS,
    options.REASONING_EFFORT,
    options.CHAT_TEMPLATE_KWARGS,
    Option(
        "scorer", "the function that rewards (`score` beside the rollout)", metavar="[FILE.py:]NAME"
    ),
)
MACHINE = (
    Option("device", "cpu, cuda, cuda:1 ({})", None, "cpu", "NAME"),
    Option(
        "ranks",
        "processes that train together, on GPUs with one each (1; under torchrun, all of them)",
        Whole(1),
        metavar="N",
    ),
    Option(
        "dtype",
        "of the model; with bfloat16, the optimizer keeps float32 ({})",
        None,
        "float32",
        choices=DTYPES,
    ),
    Option("row-tokens", "the token budget of a micro-batch ({})", Whole(2), 8192, "N"),
    switch("gradient-checkpointing", "less memory, more time"),
    Option(
        "weight-sync",
        "how engines get new weights: by the best way that they offer, or by this one ({})",
        None,
        "auto",
        choices=WEIGHT_SYNC,
    ),
    Option(
        "weight-dir",
        "where engines read them, for instance /dev/shm/holdfast (OUT/weights)",
        metavar="DIR",
    ),
    Option("lora-rank", "train a LoRA adapter of this rank (none)", Whole(1), metavar="N"),
    Option("lora-alpha", "its scale ({})", Whole(1), 32, "N"),
    Option("lora-targets", "its modules, comma-separated (all linear ones)", metavar="NAMES"),
)
KEPT = (
    Option("checkpoint-every", "steps between checkpoints ({})", Whole(1), 1, "N"),
    Option("keep-checkpoints", "the newest N ({})", Whole(1), 3, "N"),
    Option("eval-every", "steps between evaluations ({})", Whole(1), 10, "N"),
    Option("eval-samples", "trajectories per held-out task ({})", Whole(1), 1, "N"),
    Option(
        "eval-deadline",
        "seconds after which an evaluation is given up (none)",
        SECONDS,
        metavar="S",
    ),
    Option("eval-max-tokens", "per reply of an evaluation (as in training)", Whole(1), metavar="N"),
    switch("log-requests", "the embedded engine writes the id of each request into OUT/engine.log"),
    Option(
        "track",
        "log to wandb, trackio or tensorboard, too; again for more",
        None,
        [],
        "NAME",
        action="append",
    ),
)

PIPELINE = (
    Option(
        "max-staleness",
        "how many versions a token may be behind the weights that are trained (1; 0 where the "
        "training is too short for that, or its loss needs fresh samples)",
        Whole(0),
        metavar="N",
    ),
    Option(
        "straggler-wait",
        "seconds that a step waits for a group that is due, when it could go on without (600)",
        POSITIVE,
        metavar="S",
    ),
    Option(
        "too-old",
        "what becomes of a group that is older than that all the same (train)",
        None,
        choices=tuple(TooOld),
    ),
    Option("epochs", "end the stream after so many (with the last step)", Whole(1), metavar="N"),
    Option("restarts", "how often a part may crash within ten minutes (5)", Whole(0), metavar="N"),
    Option(
        "metrics-port", "serve Prometheus metrics at 127.0.0.1", Whole(0, 65535), metavar="PORT"
    ),
    Option(
        "only",
        "run this part alone, beside the other one in a process of its own; needs --policy",
        None,
        choices=("rollouter", "trainer"),
    ),
)

NO_BUDGETS = (options.FAIL_ON_PERMANENT_FAILURE, options.MAX_COST, options.PRICE)
"""What only a run has: a trained model is the user's own, and has no price by the token."""


def add_train(train: argparse.ArgumentParser) -> None:
    train.usage = "holdfast train FILE.py[:NAME] --tasks SOURCE --run NAME --out DIR [options]"
    train.description = (
        "Trains a model on a rollout. The same command again goes on from the last "
        "checkpoint.\n\n"
        "  holdfast train agent.py --tasks train.jsonl --eval-tasks held_out.jsonl \\\n"
        "      --run first --out runs/first --model DIR\n\n"
        "Without --policy, the embedded engine samples. With it, the engine has to serve the same\n"
        "model and to take weights (docs/weights.md says how)."
    )
    _what_is_trained(train)
    for title, listed in (
        ("learning (part of the training's identity)", LEARNING),
        ("the objective (part of its identity, too)", OBJECTIVE),
        ("what is sampled", SAMPLED),
        ("the machine", MACHINE),
        ("what is kept and shown", KEPT),
    ):
        _group(train, title, listed)
    _beside_rollouts(train)
    budgets = [option for option in options.BUDGETS if option not in NO_BUDGETS]
    _group(train, "budgets of rollouts", budgets)
    _group(train, "deadlines of rollouts, in seconds", options.DEADLINES)
    train.add_argument("--json", action="store_true", help="print the report as JSON")
    train.add_argument(
        "--quiet", action="store_true", help="no progress, only the line of each step"
    )


def _what_is_trained(train: argparse.ArgumentParser) -> None:
    train.add_argument(
        "rollout", nargs="?", metavar="FILE.py[:NAME]", help="the rollout, as for `run`"
    )
    options.TASKS.add_to(train, help=f"what is trained on: {options.TASKS.help}")
    options.LIMIT.add_to(train)
    train.add_argument(
        "--eval-tasks", metavar="SOURCE", help="held-out tasks, evaluated as it goes"
    )
    options.COLUMNS.add_to(train)
    options.SYSTEM.add_to(train)
    train.add_argument("--run", metavar="NAME", help="what this training is called")
    train.add_argument(
        "--out", metavar="DIR", help="the folder for checkpoints, weights and numbers"
    )
    train.add_argument(
        "--model",
        metavar="DIR",
        help="a Hugging Face folder, or ORG/NAME on the hub (a small model of ours)",
    )
    options.POLICY.add_to(train)
    options.JOURNAL.add_to(train)
    options.RETRY_FAILED.add_to(train)


def _beside_rollouts(train: argparse.ArgumentParser) -> None:
    """The parts of a training in processes of their own, here and on a cluster."""
    pipeline = train.add_argument_group("rollouts and training at the same time")
    pipeline.add_argument(
        "--async",
        action="store_true",
        dest="is_async",
        help="roll out while the model is trained, in processes of their own",
    )
    for option in PIPELINE:
        option.add_to(pipeline)
    pipeline.add_argument(
        "--watch", metavar="RUN", help="look at a training that runs, with its --journal and --out"
    )
    _group(train, "scorers and a cluster", (
        options.SCORE_WORKERS, options.SCORE_CONCURRENCY, *options.CLUSTER_PROCESSES
    ))  # fmt: skip
    train.add_argument("--until-stdin-closes", action="store_true", help=argparse.SUPPRESS)


def _group(parser: argparse.ArgumentParser, title: str, listed: Sequence[Option]) -> None:
    group = parser.add_argument_group(title)
    for option in listed:
        option.add_to(group)
