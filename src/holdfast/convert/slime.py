"""Converts samples to slime's `Sample` and back. Written for slime's main of August 2026.

A sample is a dict as `Sample.to_dict` writes it, and a batch is a list of groups of trajectories.
If one trajectory has several branches (a fan-out), every trajectory of the batch, including
placeholders, is a list of samples. The reason is that slime looks only at the shape of the first
trajectory, and mixed shapes crash it. Branches of a trajectory share a `rollout_id`, so that
slime's loss counts the trajectory once.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.convert.checks import listed, read_back, samples_for
from holdfast.convert.experts import check_experts, rows_of
from holdfast.convert.provenance import KEY, Fields, provenance_of, restored
from holdfast.convert.selection import (
    Group,
    MissingReward,
    chosen,
    filled_group,
    groups_of,
    response_start,
    rewarded_members,
)
from holdfast.records.encoding.bounds import check_whole
from holdfast.records.errors import UsageError
from holdfast.records.samples.sample import Sample
from holdfast.records.trajectory import Status

if TYPE_CHECKING:
    from holdfast.convert.experts import Experts

Decode = Callable[[Sequence[int]], str]
SlimeMember = Fields | list[Fields]
"""A sample, or the list of samples into which a trajectory fans out."""
_TRAINER = "slime"
_STATUS = {
    Status.COMPLETED: "completed",
    Status.TRUNCATED: "truncated",
    Status.ABORTED: "aborted",
}


def to_slime(
    samples: Iterable[Sample],
    *,
    group_size: int | None = None,
    placeholders: bool = False,
    fan_out: bool | None = None,
    missing_reward: str = MissingReward.REFUSE,
    first_group: int = 0,
    first_index: int = 0,
    decode: Decode | None = None,
    experts: "Experts | None" = None,
    layers: int | None = None,
) -> list[list[SlimeMember]]:
    """Returns the groups, each a list of trajectories. With a fan-out, a trajectory is a list of
    samples.

    If `group_size` is given, each group has that many trajectories. Missing trajectories become
    placeholders if `placeholders` says that the trainer leaves placeholders out of its baseline, as
    `holdfast.slime.post_process_rewards` does; otherwise the group is refused. Without
    `group_size`, groups keep their size. With `missing_reward="leave_out"`, a trajectory without a
    reward becomes a placeholder if `group_size` or `placeholders` is given, and is left out
    otherwise. `fan_out` says whether trajectories are lists; None means that they are lists if any
    trajectory has branches. `experts` (`load_experts`) are written as `rollout_routed_experts`.
    `layers` is the model's number of layers, needed if its engine did not report it.
    """
    check_whole("first_group", first_group, least=0)
    check_whole("first_index", first_index, least=0)
    check_experts(experts)
    missing = chosen(MissingReward, "missing_reward", missing_reward)
    # With a fixed size, a left-out sample counts as a missing reward, and is refused.
    sized = placeholders or group_size is not None
    groups = [
        rewarded_members(group, missing, trainer=_TRAINER, placeholders=sized)
        for group in groups_of(samples_for("to_slime", samples))
    ]
    if group_size is not None:
        check_whole("group_size", group_size, least=1)
        groups = [
            filled_group(group, group_size, trainer=_TRAINER, allowed=placeholders)
            for group in groups
        ]
    as_lists = _as_lists(groups, fan_out)
    by_group: list[list[SlimeMember]] = []
    index = first_index
    for number, group in enumerate((g for g in groups if g), first_group):
        members: list[SlimeMember] = []
        for member in group:
            rows = [
                _sample(sample, group_index=number, index=index, decode=decode)
                for sample in member.samples
            ]
            if experts is not None:
                for sample, row in zip(member.samples, rows, strict=True):
                    row["rollout_routed_experts"] = _routes(experts, sample, layers)
            members.append(rows if as_lists else rows[0])
            index += 1
        by_group.append(members)
    return by_group


def _as_lists(groups: Sequence[Group], fan_out: bool | None) -> bool:
    branching = next((m for group in groups for m in group if len(m.samples) > 1), None)
    if fan_out is False and branching is not None:
        raise UsageError(
            f"{branching.name}: it has {len(branching.samples)} branches, and fan_out=False says "
            "that a trajectory is one sample; leave fan_out to be found out"
        )
    return branching is not None if fan_out is None else fan_out


def _sample(sample: Sample, *, group_index: int, index: int, decode: Decode | None) -> Fields:
    start = 1 if sample.remove_sample else response_start(sample)
    placed = sample.loss_mask if sample.remove_sample else sample.loss_mask[start:]
    return {
        "group_index": group_index,
        "index": index,
        "rollout_id": index,
        "prompt": ""
        if decode is None or sample.remove_sample
        else decode(sample.token_ids[:start]),
        "tokens": list(sample.token_ids),
        "response": ""
        if decode is None or sample.remove_sample
        else decode(sample.token_ids[start:]),
        "response_length": len(sample.token_ids) - start,
        "label": None,
        "reward": sample.reward,
        "loss_mask": list(placed),
        "weight_versions": _versions(sample),
        "rollout_log_probs": sample.logprobs[-len(placed) :] if placed else [],
        "remove_sample": sample.remove_sample,
        "status": _STATUS[Status[sample.status]],
        "metadata": {KEY: provenance_of(sample)},
    }


def _routes(experts: "Experts", sample: Sample, layers: int | None) -> object:
    """Returns the sample's routed experts. A placeholder is in no loss, but slime needs an array of
    the right shape for it, so it gets the experts of one token of another sample."""
    if not sample.remove_sample:
        return rows_of(experts, sample, layers=layers)
    for rows in experts.values():
        return rows[:1] if rows.ndim == 3 else rows[:1].reshape(1, layers or 1, -1)
    return None


def _versions(sample: Sample) -> list[str]:
    """Returns the weight version of each turn, or of each part of a turn if the version changed in
    it. slime has one version for each engine call."""
    return [span.version for span in sample.version_spans]


def from_slime(groups: Iterable[Sequence[Any]]) -> list[Sample]:
    """Returns the samples that `to_slime` converted. The groups may hold dicts or slime's own
    samples."""
    wants = (
        "from_slime wants the groups of to_slime, each a list of samples (of an export, all "
        "lines as one group: from_slime([rows]))"
    )
    samples = []
    for number, group in enumerate(
        listed(groups, wants, lambda item: isinstance(item, list | tuple))
    ):
        for member in group:
            for row in member if isinstance(member, list) else [member]:
                with read_back(wants, f"a sample of group {number}"):
                    samples.append(_restored(row if isinstance(row, Mapping) else row.to_dict()))
    return samples


def _restored(row: Mapping[str, Any]) -> Sample:
    tokens, mask = row["tokens"], row["loss_mask"]
    prompt = 0 if row["remove_sample"] else len(tokens) - len(mask)
    return restored(
        row["metadata"].get(KEY),
        token_ids=tokens,
        loss_mask=[0] * prompt + mask,
        logprobs=[0.0] * prompt + row["rollout_log_probs"],
        reward=row["reward"],
    )


def is_placeholder(row: Mapping[str, object]) -> bool:
    """Returns whether the row stands for a trajectory that failed. Such a row is in no loss and no
    baseline, and is never sent to an engine."""
    return row.get("status") == "aborted" and bool(row.get("remove_sample"))
