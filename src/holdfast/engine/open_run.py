"""Opening a run: new, resumed, or refused because it is not the same run any more.

A change is told, and recorded, in words: which tasks came and went, not which digest became which.
Nothing is changed while a live worker goes by what is recorded.
"""

from collections.abc import Iterable, Sequence

from holdfast.engine.report import many
from holdfast.journal.journal import Journal
from holdfast.journal.process import this_process
from holdfast.records.errors import UsageError
from holdfast.records.group import GroupPolicy, Shortfall
from holdfast.records.run import Run, RunSpec
from holdfast.records.task import Task, content_digest

NAMED = 3
LEASE_SECONDS = 30.0


class RunChanged(UsageError):
    """The run is recorded with other tasks, settings or code.

    `refused` says why these changes would not be accepted either; "" if they would.
    """

    def __init__(self, name: str, differences: Sequence[str], *, refused: str = ""):
        listed = "\n".join(f"  {line}" for line in differences)
        advice = (
            f"this run cannot go on so, with --accept-changes neither: {refused}"
            if refused
            else "use --new to start another run, or --accept-changes to go on with this one "
            "(from Python: another name, or accept_changes=True)"
        )
        super().__init__(f"run {name!r} is recorded differently:\n{listed}\n{advice}")
        self.differences = tuple(differences)


async def open_run(
    journal: Journal, spec: RunSpec, tasks: Sequence[Task], *, accept_changes: bool = False
) -> Run:
    """Creates the run, or finds it and makes sure that it is the same."""
    run = await journal.find_run(spec.name)
    if run is None:
        _check(spec.group)
        try:
            return await journal.create_run(spec, tasks)
        except UsageError:
            # Another worker that shares the run may have created it at the same moment.
            run = await journal.find_run(spec.name)
            if run is None:
                raise
    differences = run.spec.differences(spec)
    if not differences:
        return run
    told = await in_words(journal, run, tasks, differences)
    refused = await _refused(journal, run, spec, tasks=tasks)
    if refused or not accept_changes:
        raise RunChanged(spec.name, told, refused=refused)
    if spec.group != run.spec.group:
        _check(spec.group)
    worker = await journal.join(run, this_process(), lease_seconds=LEASE_SECONDS, share=False)
    try:
        return await journal.amend_run(run, spec, tasks, differences=told)
    finally:
        await journal.leave(worker)


def _check(group: GroupPolicy) -> None:
    """Not a run that is recorded so: it goes on as it began."""
    if group.shortfall is Shortfall.DROP and group.at_least > 1:
        raise UsageError(
            f"group shortfall drop keeps whole groups only, so that at least {group.at_least} is "
            f"never asked: leave one of the two out (partial with at least {group.at_least} drops "
            "the groups that have fewer)"
        )


async def _refused(journal: Journal, run: Run, spec: RunSpec, *, tasks: Sequence[Task]) -> str:
    """Why the changes cannot be accepted, and what to do instead; "" if they can."""
    reasons = []
    if spec.samples < run.spec.samples:
        reasons.append(
            f"the samples of run {spec.name!r} can grow, not shrink: {run.spec.samples} or more"
        )
    if changed := await _rewritten(journal, run, tasks):
        has, it = ("has", "it another id") if len(changed) == 1 else ("have", "them other ids")
        asks = "asks" if len(changed) == 1 else "ask"
        reasons.append(
            f"{many(len(changed), 'task')} {has} been worked on and now {asks} something else "
            f"({_listed(changed)}): give {it}"
        )
    if not reasons:
        return ""
    return f"{'; '.join(reasons)}, or use --new to start another run (from Python: another name)"


async def _rewritten(journal: Journal, run: Run, tasks: Sequence[Task]) -> list[str]:
    """Records refer to the task's messages: under another text they would tell what never was."""
    begun = {row.key.task for row in await journal.trajectories(run) if row.records}
    recorded = {task.id: content_digest(task) for task in await journal.tasks(run)}
    return [
        task.id for task in tasks if task.id in begun and recorded[task.id] != content_digest(task)
    ]


async def free_name(journal: Journal, name: str) -> str:
    """`name`, or `name-2`, `name-3`, … when it is taken."""
    candidate, number = name, 1
    while await journal.find_run(candidate) is not None:
        number += 1
        candidate = f"{name}-{number}"
    return candidate


async def in_words(
    journal: Journal, run: Run, tasks: Sequence[Task], differences: Sequence[str]
) -> list[str]:
    """The differences of two specs, with their tasks named instead of their digests."""
    resting = {row.ordinal for row in await journal.trajectories(run) if row.resting}
    listed = enumerate(await journal.tasks(run))
    recorded = [task for ordinal, task in listed if ordinal not in resting]
    told = _compared(recorded, tasks)
    return [told if line.startswith("tasks:") else line for line in differences]


def _compared(recorded: Iterable[Task], now: Iterable[Task]) -> str:
    before = {task.id: content_digest(task) for task in recorded}
    after = {task.id: content_digest(task) for task in now}
    parts = {
        "added": [one for one in after if one not in before],
        "removed": [one for one in before if one not in after],
        "changed": [one for one in after if one in before and after[one] != before[one]],
    }
    told = [f"{len(ids)} {what} ({_listed(ids)})" for what, ids in parts.items() if ids]
    return f"tasks: {', '.join(told) or 'in another order'}"


def _listed(ids: Sequence[str]) -> str:
    return ", ".join([*(_shown(one) for one in ids[:NAMED]), *(["…"] if len(ids) > NAMED else [])])


def _shown(name: str) -> str:
    """An id on one line, whatever it holds."""
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in name
    )
