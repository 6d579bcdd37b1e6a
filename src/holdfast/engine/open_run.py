"""Opening a run: new, resumed, or refused because it is not the same run any more.

A change is reported, and recorded, by its contents: which tasks were added and removed, not which
digest became which. Nothing is changed while a live worker works by what is recorded.
"""

from collections.abc import Iterable, Sequence

from holdfast.engine.report import many
from holdfast.journal.journal import Journal
from holdfast.journal.process import this_process
from holdfast.records.errors import UsageError
from holdfast.records.group import GroupPolicy, Shortfall
from holdfast.records.run import Run, RunSpec
from holdfast.records.task import Task, content_digest

MAX_NAMED = 3
LEASE_SECONDS = 30.0


class RunChanged(UsageError):
    """The run is recorded with other tasks, settings or code.

    `objections` say why these changes would not be accepted either; "" if they would.
    """

    def __init__(self, name: str, differences: Sequence[str], *, objections: str = ""):
        listed = "\n".join(f"  {line}" for line in differences)
        advice = (
            f"this run cannot go on so, with --accept-changes neither: {objections}"
            if objections
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
    described = await describe_differences(journal, run, tasks, differences)
    objections = await _find_objections(journal, run, spec, tasks=tasks)
    if objections or not accept_changes:
        raise RunChanged(spec.name, described, objections=objections)
    if spec.group != run.spec.group:
        _check(spec.group)
    worker = await journal.join(run, this_process(), lease_seconds=LEASE_SECONDS, share=False)
    try:
        return await journal.amend_run(run, spec, tasks, differences=described)
    finally:
        await journal.leave(worker)


def _check(group: GroupPolicy) -> None:
    """Of a new policy only: a run that is recorded so goes on as it began."""
    if group.shortfall is Shortfall.DROP and group.at_least > 1:
        raise UsageError(
            f"group shortfall drop keeps whole groups only, so that at least {group.at_least} is "
            f"never asked: leave one of the two out (partial with at least {group.at_least} drops "
            "the groups that have fewer)"
        )


async def _find_objections(
    journal: Journal, run: Run, spec: RunSpec, *, tasks: Sequence[Task]
) -> str:
    """Why the changes cannot be accepted, and what to do instead; "" if they can."""
    reasons = []
    if spec.samples < run.spec.samples:
        reasons.append(
            f"the samples of run {spec.name!r} can grow, not shrink: {run.spec.samples} or more"
        )
    if changed := await _find_rewritten(journal, run, tasks):
        has, it = ("has", "it another id") if len(changed) == 1 else ("have", "them other ids")
        verb = "asks" if len(changed) == 1 else "ask"
        reasons.append(
            f"{many(len(changed), 'task')} {has} been worked on and now {verb} something else "
            f"({_list_ids(changed)}): give {it}"
        )
    if not reasons:
        return ""
    return f"{'; '.join(reasons)}, or use --new to start another run (from Python: another name)"


async def _find_rewritten(journal: Journal, run: Run, tasks: Sequence[Task]) -> list[str]:
    """Tasks that were worked on and have another content now. Records refer to a task's messages:
    with other messages, they would be wrong."""
    started = {row.key.task for row in await journal.trajectories(run) if row.records}
    recorded = {task.id: content_digest(task) for task in await journal.tasks(run)}
    return [
        task.id
        for task in tasks
        if task.id in started and recorded[task.id] != content_digest(task)
    ]


async def free_name(journal: Journal, name: str) -> str:
    """`name`, or `name-2`, `name-3`, … when it is taken."""
    candidate, number = name, 1
    while await journal.find_run(candidate) is not None:
        number += 1
        candidate = f"{name}-{number}"
    return candidate


async def describe_differences(
    journal: Journal, run: Run, tasks: Sequence[Task], differences: Sequence[str]
) -> list[str]:
    """The differences of two specs, with their tasks named instead of their digests."""
    inactive = {row.ordinal for row in await journal.trajectories(run) if row.resting}
    listed = enumerate(await journal.tasks(run))
    recorded = [task for ordinal, task in listed if ordinal not in inactive]
    tasks_line = _compare_tasks(recorded, tasks)
    return [tasks_line if line.startswith("tasks:") else line for line in differences]


def _compare_tasks(recorded: Iterable[Task], now: Iterable[Task]) -> str:
    before = {task.id: content_digest(task) for task in recorded}
    after = {task.id: content_digest(task) for task in now}
    changes = {
        "added": [task_id for task_id in after if task_id not in before],
        "removed": [task_id for task_id in before if task_id not in after],
        "changed": [
            task_id for task_id in after if task_id in before and after[task_id] != before[task_id]
        ],
    }
    listed = [f"{len(ids)} {what} ({_list_ids(ids)})" for what, ids in changes.items() if ids]
    return f"tasks: {', '.join(listed) or 'in another order'}"


def _list_ids(ids: Sequence[str]) -> str:
    return ", ".join(
        [
            *(_on_one_line(task_id) for task_id in ids[:MAX_NAMED]),
            *(["…"] if len(ids) > MAX_NAMED else []),
        ]
    )


def _on_one_line(name: str) -> str:
    """An id on one line, whatever it holds."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in name
    )
