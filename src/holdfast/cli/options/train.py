"""The options of `holdfast train`."""

import argparse

from holdfast.cli.options.parser import Parser
from holdfast.cli.options.run import CLUSTER
from holdfast.embedded.arguments import add_vllm
from holdfast.engine import options
from holdfast.engine.option_kinds import POSITIVE, SECONDS, Number, Whole
from holdfast.engine.options import KEEP_INTERRUPTED, Option, add_group, switch
from holdfast.pipeline.settings import TooOld
from holdfast.training.objective.objective import CORRECTIONS, PRESETS
from holdfast.training.settings import (
    DTYPES,
    WEIGHT_SYNC,
    OnGap,
    RateSchedule,
    TruncationPolicy,
)

_RATE = Number("above 0 and below 1", lambda value: 0 < value < 1)
LEARNING = (
    Option(
        "loss",
        "minimize this loss, or your own function (default: {})",
        None,
        "grpo",
        "NAME|FILE.py:NAME",
    ),
    Option("steps", "train for N steps (default: {})", Whole(1), 40, "N"),
    Option("groups", "roll out N tasks per step (default: {})", Whole(1), 16, "N"),
    Option("samples", "roll out each task N times (default: {})", Whole(1), 8, "N"),
    Option(
        "learning-rate",
        "set AdamW's rate (default: tiny model 3e-4, LoRA 1e-5, others 1e-6)",
        _RATE,
        metavar="R",
    ),
    Option(
        "schedule",
        "keep the learning rate, or lower it like this (default: {})",
        None,
        "constant",
        choices=tuple(RateSchedule),
    ),
    Option(
        "warmup-steps",
        "raise the learning rate over the first N steps (default: {})",
        Whole(0),
        0,
        "N",
    ),
    Option("weight-decay", "set AdamW's weight decay (default: {})", POSITIVE, 0.0, "W"),
    Option("max-norm", "scale gradients down to this norm (default: {})", POSITIVE, 1.0, "X"),
    Option("updates", "update the weights N times per step (default: {})", Whole(1), 1, "N"),
    Option(
        "seed",
        "derive task order and requests' seeds from N (default: {})",
        Whole(0),
        0,
        "N",
    ),
)
OBJECTIVE = (
    Option("clip-low", "clip ratios below 1 - E (default: the loss's own)", POSITIVE, metavar="E"),
    Option("clip-high", "clip ratios above 1 + E (default: the loss's own)", POSITIVE, metavar="E"),
    Option(
        "kl", "add C times the KL divergence from a reference (default: {})", POSITIVE, 0.0, "C"
    ),
    Option(
        "kl-estimate",
        "use this estimate of the KL divergence (default: {})",
        None,
        "k3",
        choices=("k1", "k2", "k3"),
    ),
    switch("kl-in-reward", "subtract the KL term from rewards instead of adding it to the loss"),
    Option(
        "reference", "take this model as the reference (default: the initial one)", metavar="DIR"
    ),
    Option(
        "entropy", "add an entropy bonus with this coefficient (default: {})", POSITIVE, 0.0, "C"
    ),
    Option(
        "correction",
        "correct for logprobs that differ between engine and trainer",
        None,
        choices=tuple(CORRECTIONS),
    ),
    switch(
        "recompute-old",
        "compute old logprobs at each step; do not use the recorded ones",
    ),
    switch(
        "dynamic",
        "replace groups whose rewards are all equal (as --loss dapo does)",
    ),
    Option(
        "max-draws",
        "with --dynamic, draw at most N × --groups tasks (default: {})",
        Whole(1),
        3,
        "N",
    ),
    Option(
        "truncation",
        "train on truncated trajectories or mask them (default: {})",
        None,
        "keep",
        choices=tuple(TruncationPolicy),
    ),
    KEEP_INTERRUPTED,
    Option(
        "overlong-length",
        "lower the reward of trajectories of about N sampled tokens or more",
        Whole(1),
        metavar="N",
    ),
    Option(
        "overlong-margin",
        "begin N tokens before --overlong-length (default: a fifth of it)",
        Whole(1),
        metavar="N",
    ),
    Option(
        "overlong-penalty", "limit the penalty for length to X (default: {})", POSITIVE, 1.0, "X"
    ),
    Option(
        "discount",
        "discount later rewards by G per turn (default: add them up)",
        Number("0 to 1", lambda value: 0 <= value <= 1),
        metavar="G",
    ),
)
SAMPLED = (
    Option(
        "temperature",
        "sample and train at this temperature (default: {})",
        Number("above 0", lambda value: value > 0),
        1.0,
        "T",
    ),
    Option(
        "max-tokens",
        "limit each reply to N tokens (default: {})",
        Whole(1),
        1024,
        "N",
    ),
    options.STOP_TOKEN_IDS,
    options.REASONING_EFFORT,
    options.CHAT_TEMPLATE_KWARGS,
    options.SCORER,
)
MACHINE = (
    Option("device", "train on this device: cpu, cuda, cuda:1 (default: {})", None, "cpu", "NAME"),
    Option(
        "ranks",
        "train in N processes with one GPU each (default: 1)",
        Whole(1),
        metavar="N",
    ),
    Option(
        "dtype",
        "hold the model's weights in this type (default: {})",
        None,
        "float32",
        choices=DTYPES,
    ),
    Option(
        "row-tokens", "put up to N tokens into a micro-batch (default: {})", Whole(2), 8192, "N"
    ),
    switch("gradient-checkpointing", "compute activations again to save memory"),
    Option(
        "weight-sync",
        "send weights to engines in this way (default: {}, the fastest)",
        None,
        "auto",
        choices=WEIGHT_SYNC,
    ),
    Option(
        "weight-dir",
        "let engines read weights from this folder (default: OUT/weights)",
        metavar="DIR",
    ),
    Option(
        "on-gap",
        "stop or warn if engine and trainer logprobs differ (default: {})",
        None,
        "stop",
        choices=tuple(OnGap),
    ),
    Option(
        "lora-rank",
        "train a LoRA adapter of this rank (default: train all weights)",
        Whole(1),
        metavar="N",
    ),
    Option("lora-alpha", "set the adapter's scale (default: {})", Whole(1), 32, "N"),
    Option(
        "lora-targets",
        "adapt these modules: q_proj,v_proj (default: all linear modules)",
        metavar="NAMES",
    ),
)
KEPT = (
    Option("checkpoint-every", "save a checkpoint every N steps (default: {})", Whole(1), 1, "N"),
    Option("keep-checkpoints", "keep the newest N checkpoints (default: {})", Whole(1), 3, "N"),
    Option("eval-every", "evaluate every N steps (default: {})", Whole(1), 10, "N"),
    Option("eval-samples", "evaluate each held-out task N times (default: {})", Whole(1), 1, "N"),
    Option(
        "eval-deadline",
        "give up an evaluation after S seconds (default: never)",
        SECONDS,
        metavar="S",
    ),
    Option(
        "eval-max-tokens",
        "limit replies in evaluations to N tokens (default: as in training)",
        Whole(1),
        metavar="N",
    ),
    switch("log-requests", "let the embedded engine log each request in OUT/engine.log"),
    Option(
        "track",
        "also log to wandb, trackio or tensorboard; repeatable",
        None,
        [],
        "NAME",
        action="append",
    ),
)

PIPELINE = (
    Option(
        "max-staleness",
        "train on tokens at most N versions old (default: 1; 0 where needed)",
        Whole(0),
        metavar="N",
    ),
    Option(
        "straggler-wait",
        "wait S seconds for a late group, then leave it out (default: 600)",
        POSITIVE,
        metavar="S",
    ),
    Option(
        "too-old",
        "train on groups older than --max-staleness, or dismiss them",
        None,
        choices=tuple(TooOld),
    ),
    Option(
        "epochs",
        "stop after N passes over the tasks (default: after the last step)",
        Whole(1),
        metavar="N",
    ),
    Option(
        "restarts",
        "give up after N crashes of a process in ten minutes (default: 5)",
        Whole(0),
        metavar="N",
    ),
    Option(
        "metrics-port",
        "serve Prometheus metrics on this port of 127.0.0.1",
        Whole(0, 65535),
        metavar="PORT",
    ),
    Option(
        "watch",
        "show this live training; repeat its --journal and --out",
        metavar="RUN",
    ),
    Option(
        "only",
        "run only this process; start the other one with another command",
        None,
        choices=("rollouter", "trainer"),
    ),
)

TRAINED = (
    Option("eval-tasks", "evaluate on these held-out tasks", metavar="SOURCE"),
    options.RUN._replace(help="name the training (default: the file's name: agent-training-1)"),
    Option(
        "out",
        "write checkpoints, weights and metrics to this folder",
        metavar="DIR",
    ),
    Option(
        "model",
        "train this folder, or ORG/NAME on the hub (default: our tiny model)",
        metavar="DIR",
    ),
)
NO_BUDGETS = (
    options.FAIL_ON_PERMANENT_FAILURE,
    options.MAX_COST,
    options.PRICE,
    options.SCORER,
    options.FULL_TRACEBACKS,
)
"""Options of `holdfast run` that are left out of the options that a training shares with a run. A
trained model is the user's own, and has no price by the token. The scorer is part of a training's
identity."""


COMMON = (
    *("tasks", "eval-tasks", "model", "policy", "run", "out"),
    *("steps", "groups", "samples", "learning-rate"),
)


def add_train(train: Parser) -> None:
    train.common = COMMON
    train.usage = "holdfast train FILE.py[:NAME] --tasks SOURCE [options]"
    train.description = (
        "Trains a model on a rollout. Repeat the command to continue from the last "
        "checkpoint.\n\n"
        "  holdfast train agent.py --tasks train.jsonl --eval-tasks held_out.jsonl \\\n"
        "      --run first --out runs/first --model DIR\n\n"
        "Without --run and --out, the training and its folder are named after the file:\n"
        "agent-training-1. After a change of code, data or settings, agent-training-2 begins.\n\n"
        "Without --policy, the embedded engine samples. An engine at --policy must serve the same\n"
        "model and accept new weights (see docs/weights.md).\n\n"
        f"Losses: {', '.join(PRESETS)}."
    )
    _what_is_trained(train)
    for title, listed in (
        ("change how it learns (part of the training's identity)", LEARNING),
        ("change the loss (part of the training's identity)", OBJECTIVE),
        ("change how replies are sampled", SAMPLED),
        ("use the machine", MACHINE),
        ("save, evaluate and log", KEPT),
    ):
        add_group(train, title, listed)
    _beside_rollouts(train)
    own = (*options.SAMPLING, *options.GROUPS, *NO_BUDGETS)
    for subject, shared in options.SUBJECTS.items():
        if left := [option for option in shared if option not in own]:
            add_group(train, subject, left)
    add_group(train, CLUSTER, options.CLUSTER_PROCESSES)


def _what_is_trained(train: argparse.ArgumentParser) -> None:
    train.add_argument(
        "rollout", nargs="?", metavar="FILE.py[:NAME]", help="the rollout, as for `run`"
    )
    for option in (options.TASKS, *TRAINED, options.POLICY, options.JOURNAL):
        option.add_to(train)
    add_vllm(train)
    add_group(train, "check the command", (options.DRY_RUN,))
    add_group(train, "choose the tasks", (options.COLUMNS, options.SYSTEM, options.LIMIT))
    add_group(train, "continue an existing training", (options.RETRY_FAILED,))


def _beside_rollouts(train: argparse.ArgumentParser) -> None:
    """Adds the options for a training whose parts are separate processes."""
    group = train.add_argument_group("roll out and train at the same time")
    group.add_argument(
        "--async",
        action="store_true",
        dest="is_async",
        help="roll out and train at the same time, in separate processes",
    )
    for option in PIPELINE:
        option.add_to(group)
    train.add_argument("--until-stdin-closes", action="store_true", help=argparse.SUPPRESS)
