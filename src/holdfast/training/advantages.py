"""Computes how much better each trajectory was than expected (its advantage), in pure functions.

A group has the rewards of one task's trajectories. `None` stands for a trajectory without a valid
reward, because it failed or was not scored. Such a trajectory has no advantage, and counts in no
mean and no deviation. Groups may be of unequal size.
"""

import math
import statistics
from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from holdfast.records.encoding.bounds import check_whole
from holdfast.records.encoding.declared import as_declared, check_fields
from holdfast.records.errors import UsageError

Rewards = Sequence[float | None]
"""The rewards of one group."""
EPSILON = 1e-6
"""Keeps a division by a small deviation finite. verl has the same value (TRL: 1e-4)."""
Returns = Sequence[Sequence[float] | None]
"""The returns of one group. A member's returns are, for each turn, the reward from that turn to the
end; None stands for a member without a valid reward."""


class Baseline(StrEnum):
    """The value with which a reward is compared."""

    GROUP = "group"
    """The mean of its group."""
    LEAVE_ONE_OUT = "leave_one_out"
    """The mean of the other members of its group."""
    BATCH = "batch"
    """The mean of all rewards of the batch."""
    NONE = "none"


class Scale(StrEnum):
    """The number by which the difference between reward and baseline is divided."""

    NONE = "none"
    GROUP_DEVIATION = "group_deviation"
    BATCH_DEVIATION = "batch_deviation"
    """The deviation of the differences over the whole batch, around their mean."""
    GROUP_MEAN = "group_mean"
    """The mean reward of the group. If it is 0, the group's advantages are 0."""


class Estimator(Struct, frozen=True):
    """Names the baseline and the scale with which advantages are estimated."""

    baseline: Baseline = Baseline.GROUP
    scale: Scale = Scale.GROUP_DEVIATION

    def __post_init__(self) -> None:
        check_fields(self, "estimator ")

    @property
    def needs_groups(self) -> bool:
        """Whether a group with only one member always has advantage 0, because its baseline is
        computed from the group."""
        return self.baseline in (Baseline.GROUP, Baseline.LEAVE_ONE_OUT)


ESTIMATORS = {
    "grpo": Estimator(),
    "dr_grpo": Estimator(scale=Scale.NONE),
    "rloo": Estimator(Baseline.LEAVE_ONE_OUT, Scale.NONE),
    "reinforce++": Estimator(Baseline.BATCH, Scale.BATCH_DEVIATION),
    "reinforce++-baseline": Estimator(Baseline.GROUP, Scale.BATCH_DEVIATION),
    "maxrl": Estimator(Baseline.GROUP, Scale.GROUP_MEAN),
}
"""The estimators by their names in papers."""


def estimate(
    groups: Sequence[Rewards], estimator: Estimator = ESTIMATORS["grpo"]
) -> list[list[float | None]]:
    """Returns the advantage of each reward, in the shape of `groups`. Where the reward is None, the
    advantage is None.

    If the baseline is computed from the group, the only member of a group has advantage 0, because
    there is no other member to compare it with.
    """
    estimator = as_declared("estimator", estimator, Estimator)
    valid = _valid(groups)
    everything = [reward for group in valid for reward in group]
    batch_mean = statistics.fmean(everything) if everything else 0.0
    centred = [
        [_difference(reward, group, batch_mean, estimator.baseline) for reward in group]
        for group in valid
    ]
    divisors = _divisors(valid, centred, estimator.scale)
    results: list[list[float | None]] = []
    for group, differences, divisor in zip(groups, centred, divisors, strict=True):
        scaled = iter([difference / divisor if divisor else 0.0 for difference in differences])
        results.append([None if reward is None else next(scaled) for reward in group])
    return results


def _valid(groups: Sequence[Rewards]) -> list[list[float]]:
    """Returns the rewards that are not None, as floats. A group may be a list, an array or a
    tensor. Raises `UsageError` for rewards that are not finite numbers."""
    try:
        valid = [[0.0 + reward for reward in group if reward is not None] for group in groups]
        wrong = [reward for group in valid for reward in group if not math.isfinite(reward)]
    except TypeError:
        raise UsageError(
            "groups holds a list for each task, of its trajectories' rewards: numbers, or None; "
            f"not {groups!r:.100}"
        ) from None
    if wrong:
        raise UsageError(f"rewards are finite numbers, or None, not {wrong[0]}")
    return valid


def estimate_by_turn(
    groups: Sequence[Returns], estimator: Estimator = ESTIMATORS["grpo"]
) -> list[list[list[float] | None]]:
    """Returns the advantage of each turn, in the shape of `groups`. The returns of a group's
    members at the same turn number are compared as `estimate` compares rewards.

    After its last turn, a member takes part with its last return, so that every baseline has each
    member once. If all turns of every member have the same return, the result equals the result of
    `estimate`.
    """
    turns = max((len(member) for group in groups for member in group if member), default=0)
    results: list[list[list[float] | None]] = [
        [None if member is None else [] for member in group] for group in groups
    ]
    for turn in range(turns):
        values = [[member[min(turn, len(member) - 1)] if member else None for member in group]
                  for group in groups]  # fmt: skip
        for members, estimates, group in zip(
            groups, results, estimate(values, estimator), strict=True
        ):
            for member, listed, value in zip(members, estimates, group, strict=True):
                if member and listed is not None and value is not None and turn < len(member):
                    listed.append(value)
    return results


def _difference(reward: float, group: Sequence[float], batch_mean: float, kind: Baseline) -> float:
    if kind is Baseline.NONE:
        return reward
    if kind is Baseline.BATCH:
        return reward - batch_mean
    # Equal rewards must differ from their mean by exactly 0, without a rounding error.
    if len(group) == 1 or min(group) == max(group):
        return 0.0
    difference = reward - statistics.fmean(group)
    if kind is Baseline.LEAVE_ONE_OUT:
        return difference * len(group) / (len(group) - 1)
    return difference


def _divisors(
    valid: Sequence[Sequence[float]], centred: Sequence[Sequence[float]], scale: Scale
) -> list[float]:
    """Returns the divisor of each group's differences. A divisor of 0 means that the differences of
    the group become 0."""
    if scale is Scale.GROUP_DEVIATION:
        return [_deviation(group) + EPSILON for group in valid]
    if scale is Scale.GROUP_MEAN:
        return [statistics.fmean(group) if group else 0.0 for group in valid]
    if scale is Scale.BATCH_DEVIATION:
        spread = _deviation([value for group in centred for value in group])
        return [spread + EPSILON] * len(valid)
    return [1.0] * len(valid)


def _deviation(values: Sequence[float]) -> float:
    """Returns the standard deviation with n - 1 in the denominator, like torch.std. Returns 0 for a
    single value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def is_informative(rewards: Rewards) -> bool:
    """Returns whether the valid rewards of the group differ. If they are equal and the baseline is
    the mean of the group, the group has no gradient."""
    valid = [reward for reward in rewards if reward is not None]
    return len(valid) > 1 and min(valid) != max(valid)


def returns_to_go(rewards: Sequence[float], discount: float = 1.0) -> list[float]:
    """Returns, for each reward along a trajectory, the discounted sum of this reward and all later
    ones."""
    if not 0 <= discount <= 1:
        raise UsageError(f"discount={discount!r} is not a number from 0 to 1")
    total, sums = 0.0, []
    for reward in reversed(rewards):
        total = reward + discount * total
        sums.append(total)
    return sums[::-1]


class OverlongPenalty(Struct, frozen=True):
    """DAPO's soft penalty for long trajectories. A trajectory of up to `length - margin` sampled
    tokens has no penalty. For longer trajectories, the penalty grows linearly, up to `penalty` at
    `length` tokens."""

    length: int
    margin: int
    penalty: float = 1.0

    def __post_init__(self) -> None:
        check_fields(self, "overlong ")
        check_whole("overlong length", self.length, least=1)
        check_whole("overlong margin", self.margin, least=1)
        if self.margin > self.length:
            raise UsageError(f"overlong margin={self.margin} is above length={self.length}")
        if not self.penalty > 0:
            raise UsageError(f"overlong penalty={self.penalty!r} is not above 0")

    def apply(self, reward: float, tokens: int) -> float:
        """Returns the `reward` of a trajectory with `tokens` sampled tokens, less the penalty."""
        excess = tokens - (self.length - self.margin)
        return reward - self.penalty * min(max(excess / self.margin, 0.0), 1.0)
