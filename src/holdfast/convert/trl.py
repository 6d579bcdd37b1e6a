"""Converts samples to the columns of a TRL `rollout_func`, and to rows of its asynchronous trainer.

Written for TRL 1.16. A rollout has one row. A trajectory with several branches is refused, unless
the user chooses its longest branch. A reward of None stays None, because TRL leaves such a row out
of the baseline and gives it an advantage of 0. So a trajectory that failed has a row, but no token
of it is in the loss.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from holdfast.convert.checks import describe, narrowed, read_back, samples_for
from holdfast.convert.provenance import KEY, Fields, provenance_of, restored
from holdfast.convert.selection import (
    Branches,
    GroupMember,
    chosen,
    filled_group,
    groups_of,
    real_members,
    response_start,
    single_branch,
)
from holdfast.convert.versions import global_steps, steps_of
from holdfast.extras import needed_by
from holdfast.records.encoding.bounds import check_whole
from holdfast.records.errors import NotTrainable, UsageError
from holdfast.records.samples.sample import Sample
from holdfast.records.samples.version import WeightVersion
from holdfast.training.advantages import ESTIMATORS, Estimator, estimate

REWARD = "holdfast_reward"
"""The column in which `holdfast.trl.reward` finds the reward for TRL."""
_TRAINER = "TRL"
_COLUMNS = ("prompt_ids", "completion_ids", "logprobs", "env_mask", REWARD, KEY)


class TrlColumns(Struct, frozen=True):
    """The rows of all groups, one group after the other. If `num_generations` is given, each group
    has that many rows."""

    columns: dict[str, list[Any]]
    """`prompt_ids`, `completion_ids`, `logprobs`, `env_mask`, the reward, and the provenance."""
    left_out: int
    """The number of branches that `branches="longest"` left out."""
    placeholders: int


def to_trl(
    samples: Iterable[Sample],
    *,
    num_generations: int | None = None,
    branches: str = Branches.REFUSE,
    placeholder_prompts: Mapping[str, Sequence[int]] | None = None,
) -> TrlColumns:
    """Returns the samples as columns, one row for each trajectory.

    If `num_generations` is given, each group gets that many rows; otherwise, one for each member.
    `placeholder_prompts` are the prompt ids of each group, for groups that have only placeholders.
    A placeholder has the prompt of its siblings, else the prompt in `placeholder_prompts`, else
    `[0]`.
    """
    kept = chosen(Branches, "branches", branches)
    if num_generations is not None:
        check_whole("num_generations", num_generations, least=1)
    columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
    left_out = placeholders = 0
    for group in groups_of(samples_for("to_trl", samples)):
        if num_generations is not None:
            group = filled_group(group, num_generations, trainer=_TRAINER, allowed=True)
        prompt = _prompt(group, placeholder_prompts or {})
        for member in group:
            if member.is_placeholder:
                row = _placeholder(member, prompt)
                placeholders += 1
            else:
                sample, more = single_branch(member, kept, trainer=_TRAINER)
                row = _row(sample)
                left_out += more
            for name, value in row.items():
                columns[name].append(value)
    return TrlColumns(columns, left_out, placeholders)


def _prompt(group: tuple[GroupMember, ...], prompts: Mapping[str, Sequence[int]]) -> list[int]:
    for member in real_members(group):
        return member.first.token_ids[: response_start(member.first)]
    return list(prompts.get(group[0].first.group) or [0])


def _row(sample: Sample) -> Fields:
    start = response_start(sample)
    return {
        "prompt_ids": sample.token_ids[:start],
        "completion_ids": sample.token_ids[start:],
        "logprobs": sample.logprobs[start:],
        "env_mask": sample.loss_mask[start:],
        REWARD: sample.reward,
        KEY: provenance_of(sample),
    }


def _placeholder(member: GroupMember, prompt: list[int]) -> Fields:
    return {
        "prompt_ids": prompt,
        "completion_ids": [0],
        "logprobs": [0.0],
        "env_mask": [0],
        REWARD: None,
        KEY: provenance_of(member.first),
    }


def from_trl(columns: TrlColumns | Mapping[str, Sequence[Any]]) -> list[Sample]:
    """Returns the samples that `to_trl` converted. `columns` is its result, or the columns in
    it."""
    if isinstance(columns, TrlColumns):
        columns = columns.columns
    wants = (
        "from_trl wants the columns of to_trl (of an export, "
        "{name: [row[name] for row in rows] for name in rows[0]})"
    )
    if not isinstance(columns, Mapping):
        raise UsageError(f"{wants}, not {describe(columns)}")
    if missing := [name for name in _COLUMNS if name not in columns]:
        raise UsageError(f"{wants}; these have no {', '.join(missing)}")
    with read_back(wants, "a row"):
        return [_read(*row) for row in zip(*(columns[name] for name in _COLUMNS), strict=True)]


def _read(
    prompt: list[int],
    completion: list[int],
    logprobs: list[float],
    mask: list[int],
    reward: float | None,
    provenance: Mapping[str, object],
) -> Sample:
    if provenance.get("remove_sample"):
        tokens, mask, logprobs, reward = [0, *completion], mask, logprobs, 0.0
    else:
        tokens = prompt + completion
        mask, logprobs = [0] * len(prompt) + mask, [0.0] * len(prompt) + logprobs
    return restored(provenance, token_ids=tokens, loss_mask=mask, logprobs=logprobs, reward=reward)


def to_trl_async(
    samples: Iterable[Sample],
    *,
    versions: Sequence[WeightVersion],
    first_group: int = 0,
    estimator: Estimator = ESTIMATORS["grpo"],
    messages: Mapping[str, tuple[list[Any], list[Any]]] | None = None,
) -> list[Fields]:
    """Returns the fields of `RolloutSample`s for `AsyncGRPOTrainer`, which takes advantages instead
    of rewards. Every branch has a row, and a trajectory counts once in its baseline.

    A trajectory without a reward has no row. `versions` are the run's (`load_versions`). The
    version of a row is that of its oldest token, as TRL counts staleness. `messages` has the prompt
    and the completion of each trajectory.
    """
    with needed_by("to_trl_async"):
        import numpy as np

    check_whole("first_group", first_group, least=0)
    converted = samples_for("to_trl_async", samples)
    known = steps_of("to_trl_async", versions)
    rows: list[Fields] = []
    for number, group in enumerate(groups_of(converted), first_group):
        members = real_members(group)
        (advantages,) = estimate([[member.reward for member in members]], estimator)
        for member, advantage in zip(members, advantages, strict=True):
            if advantage is None:
                continue
            for sample in member.samples:
                version, _ = global_steps(sample, known)
                if version is None:
                    raise NotTrainable(
                        f"{member.name}: it was sampled by weights that are none of the run's, and "
                        "TRL counts how old they are: publish each version before it is served"
                    )
                prompt, completion = (messages or {}).get(sample.trajectory, ([], []))
                rows.append(
                    {
                        "prompt": prompt,
                        "completion": completion,
                        "input_ids": np.array(sample.token_ids, dtype=np.int64),
                        "completion_mask": np.array(sample.loss_mask, dtype=np.int64),
                        "old_log_probs": np.array(sample.logprobs, dtype=np.float32),
                        "advantage": narrowed(
                            advantage, sample, trainer=_TRAINER, what="advantage"
                        ),
                        "model_version": version,
                        "group_id": number,
                        "metrics": {"reward": member.reward},
                    }
                )
    return rows
