"""The settings of a training run, as frozen values; each is checked when it is made. No torch."""

import math
from enum import StrEnum
from pathlib import Path

from msgspec import Struct, structs, to_builtins

from holdfast.records.encoding.bounds import check_whole
from holdfast.records.errors import UsageError
from holdfast.records.group import GroupPolicy
from holdfast.training.advantages import OverlongPenalty
from holdfast.training.objective.objective import Objective

DTYPES = ("float32", "bfloat16")


class RateSchedule(StrEnum):
    """How the learning rate goes on after the warm-up."""

    CONSTANT = "constant"
    LINEAR = "linear"
    """Down to 0 at the last step."""
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
    """Gradients are scaled down to it."""

    def __post_init__(self) -> None:
        try:
            structs.force_setattr(self, "schedule", RateSchedule(self.schedule))
        except ValueError:
            known = ", ".join(RateSchedule)
            raise UsageError(f"schedule={self.schedule!r} is none of {known}") from None
        if not 0 < self.learning_rate < 1:
            raise UsageError(f"learning_rate={self.learning_rate!r} is no number between 0 and 1")
        if not self.max_norm > 0:
            raise UsageError(f"max_norm={self.max_norm!r} is not above 0")
        if self.warmup_steps < 0 or self.weight_decay < 0:
            raise UsageError("warmup_steps and weight_decay must be 0 or more")
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1 and self.epsilon > 0):
            raise UsageError("beta1 and beta2 lie between 0 and 1, epsilon above 0")

    def rate(self, step: int, *, steps: int) -> float:
        """The learning rate of step `step` (from 0 on) of `steps`."""
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
    """A low-rank adapter. `targets` are module names; none: every linear layer but the head."""

    rank: int = 16
    alpha: int = 32
    targets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.rank < 1 or self.alpha < 1:
            raise UsageError(f"LoRA rank={self.rank} and alpha={self.alpha} must be 1 or more")


class TruncationPolicy(StrEnum):
    """What becomes of a trajectory that reached a limit."""

    KEEP = "keep"
    MASK = "mask"
    """It stays in the baseline, and is not in the loss."""


class TrainerSettings(Struct, frozen=True):
    """How groups become a step."""

    objective: Objective = Objective()
    optimizer: OptimizerSettings = OptimizerSettings()
    steps: int = 100
    """Of the whole training; the schedule ends with it."""
    updates: int = 1
    """Optimizer updates per step: the groups of a step are divided among them."""
    row_tokens: int = 8192
    """The token budget of a row, which is a micro-batch."""
    share_prefixes: bool = True
    truncation: TruncationPolicy = TruncationPolicy.KEEP
    overlong: OverlongPenalty | None = None

    def __post_init__(self) -> None:
        check_whole("steps", self.steps, least=1)
        check_whole("updates", self.updates, least=1)
        check_whole("row_tokens", self.row_tokens, least=2)


class TrainingSettings(Struct, frozen=True, kw_only=True):
    """How a model is trained. A resume with another value of `identity` is refused."""

    trainer: TrainerSettings = TrainerSettings()
    groups: int = 16
    """Tasks per step."""
    samples: int = 8
    """Trajectories per task."""
    seed: int = 0
    """Of the order of the tasks, of every request, and of new parameters."""
    dynamic: bool = False
    """Whether groups in which all rewards are equal are dismissed and replaced (DAPO)."""
    max_draws: int = 3
    """With `dynamic`: how often its number of groups a step may draw, before it trains on what
    there is."""
    checkpoint_every: int = 1
    keep_checkpoints: int = 3
    eval_every: int = 10
    """Steps between evaluations on held-out tasks, if there are any; also before the first."""
    eval_samples: int = 1
    device: str = "cpu"
    dtype: str = "float32"
    lora: Lora | None = None
    reference: Path | None = None
    """A model folder for the KL term; None: the model as it was, or without its adapter."""
    gradient_checkpointing: bool = False
    loss: str = ""
    """What identifies a loss of your own; "" for that of the objective."""

    def __post_init__(self) -> None:
        check_whole("groups", self.groups, least=1)
        check_whole("samples", self.samples, least=1)
        check_whole("max_draws", self.max_draws, least=1)
        check_whole("checkpoint_every", self.checkpoint_every, least=1)
        check_whole("keep_checkpoints", self.keep_checkpoints, least=1)
        check_whole("eval_every", self.eval_every, least=1)
        check_whole("eval_samples", self.eval_samples, least=1)
        if self.reference is not None and not self.trainer.objective.kl.coefficient:
            raise UsageError("a reference model is given, but the KL coefficient is 0")
        if self.dtype not in DTYPES:
            raise UsageError(f"dtype={self.dtype!r} is none of {', '.join(DTYPES)}")
        if self.samples == 1 and self.trainer.objective.estimator.needs_groups:
            raise UsageError(
                "samples=1 with a baseline of the group gives advantages of zero: sample 2 or more "
                "of each task, or use the loss reinforce++"
            )

    @property
    def group_policy(self) -> GroupPolicy:
        """Which groups are trained: with a baseline of the group, one valid member is too few."""
        needed = 2 if self.trainer.objective.estimator.needs_groups else 1
        return GroupPolicy(at_least=needed)

    @property
    def identity(self) -> dict[str, object]:
        """What makes another training; how often is saved or evaluated does not."""
        free = ("checkpoint_every", "keep_checkpoints", "eval_every", "eval_samples", "device")
        values = {name: value for name, value in structs.asdict(self).items() if name not in free}
        values["reference"] = str(self.reference) if self.reference else ""
        found = to_builtins(values)
        assert isinstance(found, dict)
        return found
