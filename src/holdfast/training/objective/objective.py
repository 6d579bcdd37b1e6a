"""An objective says what a training step minimizes, as one frozen value of five choices.

The choices are the level of the ratio, the clip, the mean, the penalty for the distance from a
reference (KL), and the correction of the gap between engine and trainer. Presets have the names
that papers use. `losses` turns an objective into numbers; nothing here needs torch.
"""

import math
from enum import StrEnum

from msgspec import Struct

from holdfast.records.encoding.declared import check_fields
from holdfast.records.errors import UsageError
from holdfast.training.advantages import ESTIMATORS, Estimator


def _check_at_least(name: str, value: float, least: float) -> None:
    if not least <= value < math.inf:
        raise UsageError(f"{name}={value!r} is not a number from {least} on")


class Level(StrEnum):
    """The span of tokens for which one ratio of probabilities is computed."""

    TOKEN = "token"  # noqa: S105 - no password
    SEQUENCE = "sequence"
    """The geometric mean over the sampled tokens of one sequence (GSPO)."""


class Mean(StrEnum):
    """How the losses of tokens become one number. The mean is always over the whole optimizer
    step."""

    TOKENS = "tokens"
    """Every token weighs the same (DAPO)."""
    TRAJECTORIES = "trajectories"
    """Every trajectory weighs the same, and all tokens of a trajectory weigh the same (GRPO)."""
    CONSTANT = "constant"
    """The sum over each trajectory is divided by `Objective.constant` (Dr.GRPO)."""


class Clip(Struct, frozen=True, tag=True):
    """The clip of PPO. A ratio outside of [1 - low, 1 + high] gives no further gain. With `dual`, a
    ratio above `dual` gives no further loss if the advantage is negative."""

    low: float = 0.2
    high: float = 0.2
    dual: float | None = None

    def __post_init__(self) -> None:
        check_fields(self, "clip ")
        _check_at_least("clip low", self.low, 0)
        _check_at_least("clip high", self.high, 0)
        if self.low > 1:
            raise UsageError(f"clip low={self.low!r} is above 1: a ratio is never below 0")
        if self.dual is not None and not self.dual > 1:
            raise UsageError(f"clip dual={self.dual!r} is not above 1")


class Cap(Struct, frozen=True, tag=True):
    """The clip of CISPO. The ratio, bounded to [1 - low, 1 + high], is a weight without a gradient,
    so that every token keeps its gradient. With `low` = 1, there is no lower bound."""

    low: float = 1.0
    high: float = 0.2

    def __post_init__(self) -> None:
        check_fields(self, "cap ")
        _check_at_least("cap low", self.low, 0)
        _check_at_least("cap high", self.high, 0)


class Gate(Struct, frozen=True, tag=True):
    """The clip of SAPO is a sigmoid around a ratio of 1, in place of a hard bound. Larger values
    make the sigmoid steeper."""

    positive: float = 1.0
    negative: float = 1.05

    def __post_init__(self) -> None:
        check_fields(self, "gate ")
        for name, value in (("positive", self.positive), ("negative", self.negative)):
            if not 0 < value < math.inf:
                raise UsageError(f"gate {name}={value!r} is not a number above 0")


class Unclipped(Struct, frozen=True, tag=True):
    """No clip: the ratio is used unchanged (REINFORCE)."""


class KlEstimate(StrEnum):
    """The estimate of the divergence from the logprobs of the sampled token, by Schulman's
    names."""

    K1 = "k1"
    K2 = "k2"
    K3 = "k3"


class KlPlace(StrEnum):
    LOSS = "loss"
    REWARD = "reward"
    """The penalty is subtracted from the trajectory's reward before advantages are estimated."""


class Kl(Struct, frozen=True):
    """A penalty for the distance from the reference model."""

    coefficient: float = 0.0
    """The factor of the penalty. With 0, no reference is needed or loaded."""
    estimate: KlEstimate = KlEstimate.K3
    place: KlPlace = KlPlace.LOSS
    weighted: bool = False
    """Whether the penalty is multiplied by the token's ratio. This makes its gradient unbiased when
    the policy has changed."""

    def __post_init__(self) -> None:
        check_fields(self, "kl ")
        _check_at_least("kl coefficient", self.coefficient, 0)


class BoundAction(StrEnum):
    TRUNCATE = "truncate"
    """A weight beyond the bound becomes the bound."""
    MASK = "mask"
    """A weight beyond the bound becomes 0."""


class Correction(Struct, frozen=True):
    """The correction of the gap between the engine, whose logprobs were recorded, and the trainer.

    Each token's loss is multiplied by the trainer's probability divided by the engine's, within
    bounds. If the recorded logprobs are used as the old policy's logprobs, the ratio already
    contains this factor. A mask then only has weights of 0 and 1, and truncation is refused.
    """

    action: BoundAction = BoundAction.TRUNCATE
    level: Level = Level.TOKEN
    """The span of the factor. At the level of sequences, the factor is the product over the tokens
    of a sequence."""
    high: float = 2.0
    low: float = 0.0
    """The lower bound. With 0, there is only an upper bound."""

    def __post_init__(self) -> None:
        check_fields(self, "correction ")
        _check_at_least("correction low", self.low, 0)
        if not self.high > max(self.low, 0):
            raise UsageError(f"correction high={self.high!r} is not above low={self.low!r}")


TIS = Correction(BoundAction.TRUNCATE, Level.TOKEN, high=2.0)
"""Truncated importance sampling."""
MIS = Correction(BoundAction.MASK, Level.SEQUENCE, high=2.0)
"""Masked importance sampling."""
ICEPOP = Correction(BoundAction.MASK, Level.TOKEN, high=5.0, low=0.5)
CORRECTIONS = {"tis": TIS, "mis": MIS, "icepop": ICEPOP}


class Objective(Struct, frozen=True):
    """The function that a step minimizes. docs/losses.md has the formulas."""

    estimator: Estimator = ESTIMATORS["grpo"]
    ratio: Level = Level.TOKEN
    clip: Clip | Cap | Gate | Unclipped = Clip()
    mean: Mean = Mean.TRAJECTORIES
    constant: int | None = None
    """The divisor of `Mean.CONSTANT`, for example the length of the longest possible reply."""
    kl: Kl = Kl()
    correction: Correction | None = None
    recompute_old: bool = False
    """Whether the trainer computes the old policy's logprobs at the beginning of the step. By
    default, the recorded logprobs are used."""
    stale_mask: float | None = None
    """The limit of the mean log(engine / new) over a sequence. A sequence above this limit is left
    out of the loss if its advantage is negative."""
    entropy: float = 0.0
    """The coefficient of an entropy bonus."""

    def __post_init__(self) -> None:
        check_fields(self)
        if (self.mean is Mean.CONSTANT) != (self.constant is not None):
            raise UsageError("constant= belongs to mean='constant', and is needed there")
        if self.constant is not None and not self.constant >= 1:
            raise UsageError(f"constant={self.constant!r} must be 1 or more")
        _check_at_least("entropy", self.entropy, 0)
        if self.stale_mask is not None:
            _check_at_least("stale_mask", self.stale_mask, 0)
        truncates = self.correction is not None and self.correction.action is BoundAction.TRUNCATE
        if truncates and not self.recompute_old:
            raise UsageError(
                "a truncating correction needs recompute_old=True (--recompute-old): with the "
                "recorded logprobs as the old policy, the ratio holds that factor already; or use "
                "a mask"
            )


PRESETS = {
    "grpo": Objective(),
    "dr_grpo": Objective(ESTIMATORS["dr_grpo"], mean=Mean.CONSTANT, constant=1024),
    "dapo": Objective(clip=Clip(0.2, 0.28), mean=Mean.TOKENS),
    "cispo": Objective(clip=Cap(1.0, 0.28), mean=Mean.TOKENS),
    "gspo": Objective(ratio=Level.SEQUENCE, clip=Clip(3e-4, 4e-4)),
    "sapo": Objective(clip=Gate()),
    "rloo": Objective(ESTIMATORS["rloo"], clip=Unclipped()),
    "reinforce++": Objective(ESTIMATORS["reinforce++"], mean=Mean.TOKENS),
    "reinforce++-baseline": Objective(ESTIMATORS["reinforce++-baseline"], mean=Mean.TOKENS),
    "maxrl": Objective(ESTIMATORS["maxrl"]),
}
"""The objectives by their names in papers."""


def objective_named(name: str) -> Objective:
    """Returns a preset by its name. Raises `UsageError`, which lists the names, for an unknown
    one."""
    if not isinstance(name, str):
        raise UsageError(
            f"a loss of ours is named by a text, not {name!r:.100}; a function of your own goes to "
            "holdfast.train(loss=…)"
        )
    if name not in PRESETS:
        raise UsageError(f"no loss is called {name!r}; there are {', '.join(PRESETS)}")
    return PRESETS[name]
