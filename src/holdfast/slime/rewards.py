"""Normalizes rewards group by group, whatever the size of a group.

slime's own normalization reshapes rewards into a table of n columns. If groups differ in size, it
treats the whole batch as one group, and the 0 of each placeholder counts in every mean. This
normalization uses `group_index` and `rollout_id`: a trajectory counts once, however many branches
it has, and an aborted trajectory does not count.
"""

import math
from collections.abc import Sequence
from typing import Any

from holdfast.convert.checks import listed
from holdfast.records.errors import UsageError
from holdfast.training.advantages import ESTIMATORS, estimate

_GROUPED = ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")
_SCALED = ("grpo", "gspo", "cispo")


def post_process_rewards(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Returns the raw rewards and the rewards for training, for
    `--custom-reward-post-process-path`."""
    wants = "post_process_rewards wants the Samples of slime, as a list"
    samples = listed(samples, wants, lambda item: hasattr(item, "get_reward_value"))
    raw = [_reward(args, sample) for sample in samples]
    if args.advantage_estimator not in _GROUPED or not args.rewards_normalization:
        return raw, [0.0 if _is_out(s) else reward for s, reward in zip(samples, raw, strict=True)]
    scales = args.advantage_estimator in _SCALED and args.grpo_std_normalization
    groups: dict[Any, dict[Any, float | None]] = {}
    for sample, reward in zip(samples, raw, strict=True):
        members = groups.setdefault(sample.group_index, {})
        members[sample.rollout_id] = None if _is_out(sample) else reward
    estimated = estimate(
        [list(members.values()) for members in groups.values()],
        ESTIMATORS["grpo" if scales else "dr_grpo"],
    )
    normalized: dict[Any, float] = {}
    for members, values in zip(groups.values(), estimated, strict=True):
        normalized |= {
            rollout: 0.0 if value is None else value
            for rollout, value in zip(members, values, strict=True)
        }
    return raw, [normalized[sample.rollout_id] for sample in samples]


def _reward(args: Any, sample: Any) -> float:
    value = sample.get_reward_value(args)
    try:
        reward = float(value)
    except (TypeError, ValueError):
        reward = math.nan
    if not math.isfinite(reward):
        raise UsageError(
            f"the reward of slime's sample {sample.index} is {value!r:.100}, which is not a finite "
            "number: it would be in the baseline of its whole group"
        )
    return reward


def _is_out(sample: Any) -> bool:
    return bool(sample.remove_sample)
