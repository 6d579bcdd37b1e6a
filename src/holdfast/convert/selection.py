"""Groups samples into trajectories, and decides which of them go to a trainer.

A group is all samples of one task. Some trainers have one row for each trajectory, some count every
row in the baseline, and some always need n rows. The user chooses by name what happens to data that
a trainer cannot hold. Such data is never dropped silently.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TypeVar

from msgspec import Struct, structs

from holdfast.records.errors import NotTrainable, UsageError
from holdfast.records.samples.sample import Sample, TurnSpan, placeholder


class Branches(StrEnum):
    """What to do with a trajectory with several branches, in a format with one row per
    trajectory."""

    REFUSE = "refuse"
    LONGEST = "longest"
    """Keep only the longest branch. The other branches are counted as left out."""


class MissingReward(StrEnum):
    """What to do with a trajectory without a reward, in a format that needs one."""

    REFUSE = "refuse"
    LEAVE_OUT = "leave_out"
    """Leave the trajectory out, so that its group gets smaller. In groups of a fixed size, a
    placeholder stands for the trajectory."""


Word = TypeVar("Word", bound=StrEnum)


def chosen(choices: type[Word], name: str, value: str) -> Word:
    """Returns the user's choice for `name`, in Python's spelling or the command line's
    ("leave-out"). Raises `UsageError` for an unknown choice."""
    try:
        return choices(str(value).replace("-", "_"))
    except ValueError:
        raise UsageError(f"{name} is one of {', '.join(choices)}, not {value!r:.100}") from None


class GroupMember(Struct, frozen=True):
    """One trajectory of a group, with its branches or its placeholder."""

    samples: tuple[Sample, ...]

    @property
    def first(self) -> Sample:
        return self.samples[0]

    @property
    def is_placeholder(self) -> bool:
        return self.first.remove_sample

    @property
    def reward(self) -> float | None:
        return self.first.reward

    @property
    def name(self) -> str:
        return f"task {self.first.task!r}, sample {self.first.sample}"

    def aborted(self) -> "GroupMember":
        """Returns the placeholder that stands for the trajectory."""
        first = self.first
        stand_in = placeholder(task=first.task, group=first.group, sample=first.sample)
        return GroupMember((stand_in,))


Group = tuple[GroupMember, ...]


def groups_of(samples: Iterable[Sample]) -> list[Group]:
    """Returns the samples by group and trajectory, in the order in which they come."""
    groups: dict[str, dict[int, list[Sample]]] = {}
    for sample in samples:
        groups.setdefault(sample.group, {}).setdefault(sample.sample, []).append(sample)
    return [
        tuple(GroupMember(tuple(branches)) for branches in members.values())
        for members in groups.values()
    ]


def real_members(group: Group) -> Group:
    """Returns the members that are not placeholders, for a trainer that would count placeholders in
    its baseline."""
    return tuple(member for member in group if not member.is_placeholder)


def rewarded_members(
    group: Group, missing: MissingReward, *, trainer: str, placeholders: bool = False
) -> Group:
    """Returns the members that have a reward. With `placeholders`, keeps placeholders and puts them
    in the place of members without a reward, so that the group keeps its size. Raises
    `NotTrainable` for a member without a reward if `missing` is `REFUSE`."""
    members = []
    for member in group:
        if member.is_placeholder:
            members += [member] if placeholders else []
        elif member.reward is not None:
            members.append(member)
        elif missing is MissingReward.REFUSE:
            raise NotTrainable(
                f"{member.name}: its reward is None, for which {trainer} has no place; score it, "
                "or leave such trajectories out (missing_reward='leave_out'; of an export, "
                "--missing-reward leave-out)"
            )
        elif placeholders:
            members.append(member.aborted())
    return tuple(members)


def single_branch(member: GroupMember, branches: Branches, *, trainer: str) -> tuple[Sample, int]:
    """Returns the sample that represents the trajectory, and the number of branches that are left
    out. Raises `NotTrainable` for several branches unless `branches` is `LONGEST`."""
    if len(member.samples) == 1:
        return member.first, 0
    if branches is not Branches.LONGEST:
        raise NotTrainable(
            f"{member.name}: it has {len(member.samples)} branches, and {trainer} has one row for "
            "a rollout; keep the longest one (branches='longest'; of an export, --branches "
            "longest), or train with what has a row for each (verl, slime, Tinker)"
        )
    longest = max(member.samples, key=lambda sample: len(sample.token_ids))
    return _unshared(longest, member.samples), len(member.samples) - 1


def _unshared(chosen: Sample, siblings: Sequence[Sample]) -> Sample:
    """Returns the chosen branch with more tokens marked as trained. A branch that is left out may
    train tokens that the chosen branch shares with it. These tokens are now trained in the chosen
    branch, because no branch would train them otherwise. The step rewards at shared tokens are also
    kept."""
    mask, steps = list(chosen.loss_mask), list(chosen.step_rewards)
    for sibling in siblings:
        if sibling is chosen:
            continue
        shared = _common(chosen.token_ids, sibling.token_ids)
        for place in range(shared):
            mask[place] |= sibling.loss_mask[place]
        steps += [step for step in sibling.step_rewards if step.place <= shared]
    turns = [_trained_as(turn, mask) for turn in chosen.turns]
    steps.sort(key=lambda step: step.place)
    return structs.replace(chosen, loss_mask=mask, turns=turns, step_rewards=steps)


def _trained_as(turn: TurnSpan, mask: Sequence[int]) -> TurnSpan:
    return structs.replace(turn, trained=bool(mask[turn.start]) if turn.start < turn.end else False)


def _common(ids: Sequence[int], other: Sequence[int]) -> int:
    length = min(len(ids), len(other))
    if ids[:length] == other[:length]:
        return length
    return next(place for place in range(length) if ids[place] != other[place])


def filled_group(group: Group, size: int, *, trainer: str, allowed: bool) -> Group:
    """Returns the group with `size` members. Missing members are replaced by placeholders. Raises
    `NotTrainable` if placeholders are needed and not `allowed`, because the trainer would count
    them in its baseline."""
    if len(group) > size:
        raise UsageError(
            f"group {group[0].first.group!r} has {len(group)} trajectories, and {trainer} expects "
            f"{size}: give the same number to both"
        )
    present = {member.first.sample for member in group}
    missing = [number for number in range(size) if number not in present]
    missing = missing[: size - len(group)]
    if (missing or any(member.is_placeholder for member in group)) and not allowed:
        raise NotTrainable(
            f"group {group[0].first.group!r} has {len(real_members(group))} valid trajectories of "
            f"{size}, and {trainer} cannot leave a placeholder out of its baseline: let Holdfast "
            "refill the group (GroupPolicy), or drop it"
        )
    task, name = group[0].first.task, group[0].first.group
    stand_ins = [
        GroupMember((placeholder(task=task, group=name, sample=number),)) for number in missing
    ]
    return tuple(sorted((*group, *stand_ins), key=lambda member: member.first.sample))


def response_start(sample: Sample) -> int:
    """Returns the position of the first sampled token. Everything before it is the prompt. Raises
    `NotTrainable` if there is no prompt."""
    start = sample.turns[0].start if sample.turns else _first_trained(sample)
    if not start and not sample.remove_sample:
        raise NotTrainable(
            f"task {sample.task!r}, sample {sample.sample}: it has no prompt, and no model gives "
            "its first token a logprob; begin the conversation with a message"
        )
    return start


def _first_trained(sample: Sample) -> int:
    return sample.loss_mask.index(1) if 1 in sample.loss_mask else len(sample.loss_mask)


def placed_rewards(sample: Sample, start: int) -> list[tuple[int, float]]:
    """Returns the sample's rewards with their positions in the response, which begins at token
    `start`. The reward of a step is at the last token before the step. The rest of the sample's
    reward is at the last token."""
    if sample.reward is None:
        return []
    rewards: dict[int, float] = {}
    rest = sample.reward
    for step in sample.step_rewards:
        place = max(step.place - 1, start) - start
        rewards[place] = rewards.get(place, 0.0) + step.reward
        rest -= step.reward
    last = len(sample.token_ids) - 1 - start
    rewards[last] = rewards.get(last, 0.0) + rest
    return sorted(rewards.items())
