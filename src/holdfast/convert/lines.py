"""Writes a run in one of the formats, row by row, for files. Trainers get only whole groups.

A format's converter is imported when it is used.
"""

from collections.abc import AsyncIterator, Iterable
from enum import StrEnum

from msgspec import Struct

from holdfast.convert.provenance import KEY, Fields
from holdfast.convert.selection import Branches, MissingReward, groups_of, rewarded_members
from holdfast.convert.sft import SftLayout, sft_row
from holdfast.engine.export.export import group_samples, history_of
from holdfast.engine.export.export import groups_of as task_groups
from holdfast.journal.sql.journal import Journal
from holdfast.records.run import Run
from holdfast.records.samples.logprobs import Accepted
from holdfast.records.samples.sample import Sample
from holdfast.records.samples.version import WeightVersion
from holdfast.records.view import TrajectoryView


class Format(StrEnum):
    """The format in which data is written."""

    VERL = "verl"
    SLIME = "slime"
    TRL = "trl"
    NEMO = "nemo"
    TINKER = "tinker"
    SFT = "sft"
    ATIF = "atif"
    INSPECT = "inspect"


CONVERSATIONS = (Format.SFT, Format.ATIF, Format.INSPECT)
"""Formats that have one row per trajectory. The other formats are converted group by group."""


class FormatOptions(Struct, frozen=True, kw_only=True):
    """Options of a format, and the treatment of data that the format cannot hold."""

    fixed_groups: bool = False
    logprobs: Accepted = Accepted.PROCESSED
    trains_shared: bool = False
    branches: Branches = Branches.REFUSE
    missing_reward: MissingReward = MissingReward.REFUSE
    min_reward: float | None = None
    layout: SftLayout = SftLayout.MESSAGES


async def format_lines(
    journal: Journal, run: Run, form: Format, options: FormatOptions
) -> AsyncIterator[Fields]:
    """Yields the lines in the order of tasks and samples. Raises `NotTrainable` for data that the
    format cannot hold."""
    if form in CONVERSATIONS:
        async for view in _settled(journal, run):
            if (row := _conversation(view, form, options)) is not None:
                yield row
        return
    versions = await journal.versions(run)
    place = _Place()
    for _, members in await task_groups(journal, run):
        samples = [
            sample
            async for sample in group_samples(
                journal,
                run,
                members,
                fixed=options.fixed_groups,
                logprobs=options.logprobs,
                trains_shared=options.trains_shared,
            )
        ]
        for row in _converted(samples, form, options, versions, place):
            yield row


async def _settled(journal: Journal, run: Run) -> AsyncIterator[TrajectoryView]:
    for task, members in await task_groups(journal, run):
        for member in members:
            if member.settled:
                yield TrajectoryView(member.key, task, await history_of(journal, member))


def _conversation(view: TrajectoryView, form: Format, options: FormatOptions) -> Fields | None:
    """Returns the trajectory's row, or None if the format has no row for the trajectory."""
    if form is Format.SFT:
        return sft_row(view, layout=options.layout, min_reward=options.min_reward)
    if form is Format.ATIF:
        from holdfast.convert.atif import atif_document

        return atif_document(view)
    from holdfast.convert.inspect_log import inspect_sample

    return inspect_sample(view)


class _Place:
    """The number of groups and trajectories that were written so far."""

    def __init__(self) -> None:
        self.groups = 0
        self.trajectories = 0


def _converted(
    samples: list[Sample],
    form: Format,
    options: FormatOptions,
    versions: list[WeightVersion],
    place: _Place,
) -> Iterable[Fields]:
    if not samples:
        return []
    if form is Format.VERL:
        return _verl(samples, options, versions)
    if form is Format.SLIME:
        return _slime(samples, options, place)
    if form is Format.TRL:
        from holdfast.convert.trl import to_trl

        columns = to_trl(samples, branches=options.branches).columns
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if form is Format.NEMO:
        from holdfast.convert.nemo import to_nemo

        return to_nemo(samples, branches=options.branches, missing_reward=options.missing_reward)
    from holdfast.convert import tinker

    return [tinker.line(datum) for datum in tinker.to_tinker(samples)]


def _verl(
    samples: list[Sample], options: FormatOptions, versions: list[WeightVersion]
) -> Iterable[Fields]:
    from holdfast.convert.verl import to_agent_loop_output

    for group in groups_of(samples):
        for member in rewarded_members(group, options.missing_reward, trainer="verl"):
            for sample in member.samples:
                output = to_agent_loop_output(sample, versions=versions)
                yield {"uid": sample.group, **output}


def _slime(samples: list[Sample], options: FormatOptions, place: _Place) -> Iterable[Fields]:
    from holdfast.convert.slime import to_slime

    leaves_out = options.missing_reward is MissingReward.LEAVE_OUT
    if leaves_out and all(sample.remove_sample or sample.reward is None for sample in samples):
        return  # A group of only placeholders has nothing to train.
    groups = to_slime(
        samples,
        placeholders=options.fixed_groups,
        fan_out=True,
        missing_reward=options.missing_reward,
        first_group=place.groups,
        first_index=place.trajectories,
    )
    for group in groups:
        place.groups += 1
        place.trajectories += len(group)
        for member in group:
            yield from member if isinstance(member, list) else [member]


def mode_of(row: Fields) -> str | None:
    """Returns the logprobs mode of the sample from which the row was made, or None if the row has
    no provenance."""
    for holder in (row, row.get("metadata"), row.get("extra_fields"), row.get("extra_env_info")):
        provenance = holder.get(KEY) if isinstance(holder, dict) else None
        if isinstance(provenance, dict):
            return str(provenance["logprobs_mode"])
    return None
