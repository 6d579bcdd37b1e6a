"""The settings of a training run, as frozen values that are checked when made. Needs no torch."""

import math
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from msgspec import Struct, json, structs

from holdfast.records.encoding.bounds import check_whole
from holdfast.records.encoding.declared import check_fields, check_names
from holdfast.records.errors import UsageError
from holdfast.records.group import GroupPolicy
from holdfast.records.run import Run
from holdfast.training.advantages import OverlongPenalty
from holdfast.training.objective.objective import Objective, objective_named

DTYPES = ("float32", "bfloat16")
WEIGHT_SYNC = ("auto", "adapter", "ipc", "nccl", "gloo", "disk", "object-store")
"""The ways by which engines may get new weights."""
_COUNTS = (
    *("groups", "samples", "max_draws", "checkpoint_every", "keep_checkpoints", "eval_every"),
    *("eval_samples", "ranks"),
)


class OnGap(StrEnum):
    """What happens if the logprobs of engine and trainer differ by more than their data types
    explain."""

    STOP = "stop"
    WARN = "warn"
    """Training continues."""


class RateSchedule(StrEnum):
    """How the learning rate changes after the warm-up."""

    CONSTANT = "constant"
    LINEAR = "linear"
    """Falls to 0 at the last step."""
    COSINE = "cosine"


class OptimizerSettings(Struct, frozen=True):
    """AdamW and its schedule."""

    learning_rate: float = 1e-6
    schedule: RateSchedule = RateSchedule.CONSTANT
    warmup_steps: int = 0
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    max_norm: float = 1.0
    """Gradients with a larger norm are scaled down to this one."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 < self.learning_rate < 1:
            raise UsageError(
                f"learning_rate must be above 0 and below 1, not {self.learning_rate!r}"
            )
        if not self.max_norm > 0:
            raise UsageError(f"max_norm={self.max_norm!r} is not above 0")
        if self.warmup_steps < 0 or not 0 <= self.weight_decay < math.inf:
            raise UsageError("warmup_steps and weight_decay must be 0 or more")
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1 and self.epsilon > 0):
            raise UsageError("beta1 and beta2 lie between 0 and 1, epsilon above 0")

    def rate(self, step: int, *, steps: int) -> float:
        """Returns the learning rate of step number `step`, counted from 0, of a training of `steps`
        steps."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        if self.schedule is RateSchedule.CONSTANT:
            return self.learning_rate
        span = max(steps - self.warmup_steps, 1)
        done = min((step - self.warmup_steps) / span, 1.0)
        if self.schedule is RateSchedule.LINEAR:
            return self.learning_rate * (1 - done)
        return self.learning_rate * (1 + math.cos(math.pi * done)) / 2


class Lora(Struct, frozen=True):
    """A low-rank adapter. `targets` are names of modules. If there are none, every linear layer
    except the head is adapted."""

    rank: int = 16
    alpha: int = 32
    targets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self, "LoRA ")
        if self.rank < 1 or self.alpha < 1:
            raise UsageError(f"LoRA rank={self.rank} and alpha={self.alpha} must be 1 or more")


class TruncationPolicy(StrEnum):
    """How a trajectory that reached a limit is trained."""

    KEEP = "keep"
    MASK = "mask"
    """It counts in the baseline, but not in the loss."""


class TrainerSettings(Struct, frozen=True):
    """How groups become an optimizer step."""

    objective: Objective = Objective()
    optimizer: OptimizerSettings = OptimizerSettings()
    steps: int = 100
    """The steps of the whole training. The schedule of the learning rate ends with them."""
    updates: int = 1
    """Optimizer updates per step. The groups of a step are divided among them."""
    row_tokens: int = 8192
    """The token budget of a row, which is a micro-batch."""
    share_prefixes: bool = True
    truncation: TruncationPolicy = TruncationPolicy.KEEP
    overlong: OverlongPenalty | None = None
    discount: float | None = None
    """The factor of later rewards. A turn is credited with its own reward and all later rewards,
    and a later reward is multiplied by this factor once for each turn in between. With None, a turn
    is credited with the whole reward of its trajectory."""

    def __post_init__(self) -> None:
        if isinstance(self.objective, str):  # The name of a preset stands for its value.
            structs.force_setattr(self, "objective", objective_named(self.objective))
        check_fields(self)
        check_whole("steps", self.steps, least=1)
        check_whole("updates", self.updates, least=1)
        check_whole("row_tokens", self.row_tokens, least=2)
        if self.discount is not None and not 0 <= self.discount <= 1:
            raise UsageError(f"discount={self.discount!r} is not a number from 0 to 1")


class TrainingSettings(Struct, frozen=True, kw_only=True):
    """How a model is trained. A training resumes only with the same value of `identity`."""

    trainer: TrainerSettings = TrainerSettings()
    groups: int = 16
    """The number of tasks per step."""
    samples: int = 8
    """The number of trajectories per task."""
    seed: int = 0
    """The seed for the order of the tasks, for every request and for new parameters."""
    dynamic: bool = False
    """Whether groups whose rewards are all equal are dismissed and replaced (DAPO)."""
    keep_interrupted: bool = False
    """Whether to train on trajectories in which the model was told that a tool call was
    interrupted. By default, such a trajectory is rolled out again, as often as `GroupPolicy.refill`
    allows. After that, it counts in no loss and no baseline."""
    max_draws: int = 3
    """With `dynamic`, a step may draw `max_draws` times its number of groups before it trains on
    the groups that it has."""
    checkpoint_every: int = 1
    keep_checkpoints: int = 3
    eval_every: int = 10
    """Steps between evaluations on held-out tasks, if there are any. The untrained model is
    evaluated too."""
    eval_samples: int = 1
    eval_deadline: float | None = None
    """Seconds after which an evaluation is abandoned and training continues. With None, never."""
    eval_max_tokens: int | None = None
    """The most tokens in each reply of an evaluation. With None, as many as in training."""
    device: str = "cpu"
    ranks: int = 1
    """Processes of this machine that train together. On GPUs, each process has its own GPU."""
    dtype: str = "float32"
    lora: Lora | None = None
    reference: Path | None = None
    """A model folder as the reference of the KL term. With None, the reference is the untrained
    model. With LoRA, this is the model without its adapter."""
    gradient_checkpointing: bool = False
    loss: str = ""
    """The identity of a custom loss; "" for the loss of the objective."""
    weight_sync: str = "auto"
    """How engines get new weights: the name of a strategy, or "auto" for the best one that the
    engines offer."""
    weight_dir: Path | None = None
    """The folder from which engines read new weights, such as `/dev/shm/…`. With None, the folder
    of the training."""
    on_gap: OnGap = OnGap.STOP
    """What happens if the logprobs of engine and trainer differ too much."""
    log_requests: bool = False
    """Whether the embedded engine logs each request that it gets."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name in _COUNTS:
            check_whole(name, getattr(self, name), least=1)
        if self.eval_max_tokens is not None:
            check_whole("eval_max_tokens", self.eval_max_tokens, least=1)
        if self.eval_deadline is not None and not self.eval_deadline > 0:
            raise UsageError(f"eval_deadline={self.eval_deadline!r} is not above 0")
        if self.reference is not None and not self.trainer.objective.kl.coefficient:
            raise UsageError(
                "a reference model is given, but the KL coefficient is 0: give one (--kl), or "
                "leave the reference out"
            )
        if self.weight_sync not in WEIGHT_SYNC:
            raise UsageError(
                f"weight_sync={self.weight_sync!r} is none of {', '.join(WEIGHT_SYNC)}"
            )
        if self.dtype not in DTYPES:
            raise UsageError(f"dtype={self.dtype!r} is none of {', '.join(DTYPES)}")
        if self.samples == 1 and self.trainer.objective.estimator.needs_groups:
            raise UsageError(
                "samples=1 with a baseline of the group gives advantages of zero: sample 2 or more "
                "of each task, or use the loss reinforce++"
            )

    @classmethod
    def of(cls, loss: str = "grpo", **options: object) -> "TrainingSettings":
        """Makes settings from the name of a loss and options of any level: of the training
        (`groups`, `samples`, …), of a step (`steps`, `row_tokens`, …) and of the optimizer
        (`learning_rate`, `schedule`, …). Options that are structs (`lora`, `optimizer`, …) may be
        given as dicts. `objective` may be the name of a loss, like `loss`."""
        of_optimizer, of_step = _names(OptimizerSettings), _names(TrainerSettings)
        check_names(
            options, sorted({*of_optimizer, *of_step, *_names(cls)}), "TrainingSettings has no"
        )
        _check_once(options, "optimizer", of_optimizer)
        _check_once(options, "trainer", (*of_optimizer, *of_step))
        if "trainer" in options and loss != "grpo":
            raise UsageError(
                f"the trainer that is given has its objective: loss {loss!r} is too much"
            )
        if isinstance(options.get("objective"), str):
            loss = str(options.pop("objective"))
        options = {"objective": objective_named(loss), "dynamic": loss == "dapo", **options}
        optimizer = OptimizerSettings(**_fields(OptimizerSettings, options))
        trainer = TrainerSettings(**{"optimizer": optimizer, **_fields(TrainerSettings, options)})
        return cls(**{"trainer": trainer, **_fields(cls, options)})

    @property
    def group_policy(self) -> GroupPolicy:
        """The rule that decides which groups are trained. If the baseline is computed from the
        group, a group needs two valid members."""
        needed = 2 if self.trainer.objective.estimator.needs_groups else 1
        return GroupPolicy(at_least=needed, keep_interrupted=self.keep_interrupted)

    @property
    def identity(self) -> dict[str, object]:
        """The settings that must stay the same when the training is resumed. Settings that say how
        often it saves, evaluates or logs are not among them."""
        free = (
            *("checkpoint_every", "keep_checkpoints", "eval_every", "eval_samples", "device"),
            *(
                "log_requests",
                "on_gap",
                "eval_deadline",
                "eval_max_tokens",
                "weight_sync",
                "weight_dir",
            ),
            "ranks",
        )
        values = {name: value for name, value in structs.asdict(self).items() if name not in free}
        values["reference"] = str(self.reference) if self.reference else ""
        # In the form that a checkpoint returns: tuples are lists there.
        return json.decode(json.encode(values), type=dict[str, object])


class TrainingRecord(Struct, frozen=True):
    """The record that a run keeps of its training. It is written when a process begins to train the
    run, after each step that this process trains again, and when all those steps are trained
    again."""

    settings: dict[str, object]
    """The `identity` of the settings of the training."""
    folder: int = 1
    """The number of the folder in which the run is trained. If a run that was trained before is
    continued in a folder without checkpoints, that folder gets the next number."""
    is_catching_up: bool = False
    """Whether steps are being trained again from recorded rollouts. No new trajectories are sampled
    until the engines have the resulting version."""
    caught_up_to: int = 0
    """The last step that was trained again. From it, other processes see progress."""

    @property
    def text(self) -> str:
        return json.encode(self, order="deterministic").decode()


def training_of(run: Run) -> TrainingRecord | None:
    """Returns the recorded training of a run, or None if the run was never trained."""
    text = run.spec.training
    return json.decode(text, type=TrainingRecord) if text else None


def training_settings_from(
    value: TrainingSettings | Mapping[str, Any] | None,
) -> TrainingSettings:
    """Returns a `TrainingSettings`. A dict is read as the options of `TrainingSettings.of`."""
    if isinstance(value, Mapping):
        return TrainingSettings.of(**value)
    if value is not None and not isinstance(value, TrainingSettings):
        raise UsageError(f"settings is a TrainingSettings(…) or a dict, not {value!r:.100}")
    return value or TrainingSettings()


def _names(kind: type[Struct]) -> tuple[str, ...]:
    return kind.__struct_fields__


def _check_once(options: dict[str, object], whole: str, parts: tuple[str, ...]) -> None:
    """Raises `UsageError` if both `whole` and one of its parts are given, because one of them would
    be ignored."""
    if whole in options and (doubled := [name for name in options if name in parts]):
        raise UsageError(f"{doubled[0]} is part of {whole}, which is given too: give it in there")


def _fields(kind: type[Struct], options: dict[str, object]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name in _names(kind)}
