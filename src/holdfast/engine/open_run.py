"""Opens a run: creates it, resumes it, or refuses it because it has changed.

A change is reported and recorded by its contents and not by digests, for example by the tasks that
were added and removed. The recorded run is not changed while a live worker works on it.
"""

import logging
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, structs

from holdfast.engine.meant import Meant
from holdfast.engine.report import escape_text, many
from holdfast.journal.process import this_process
from holdfast.journal.rules import give_back, held_text, two_scorers
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import GroupEnd
from holdfast.records.errors import UsageError
from holdfast.records.exit_codes import Exit
from holdfast.records.group import GroupPolicy, Shortfall
from holdfast.records.history import History
from holdfast.records.run import Run, RunSpec
from holdfast.records.samples.summary import Summary
from holdfast.records.task import Task, content_digest

MAX_NAMED = 3
_CORRECTABLE = "ground_truth"
"""A field that may change in a task with records, because only scorers read it."""
LEASE_SECONDS = 30.0
TRAINER = "trainer"
"""The consumer name of a training, and of any other loop that gives no name."""
TRAINED_MODEL = "policy"
"""The name under which a training's engines serve the model, in every version."""
_log = logging.getLogger("holdfast.engine")


class RunChanged(UsageError):
    """The run is recorded with other tasks, settings or code.

    `objections` says why the changes cannot be accepted; "" if they can.
    """

    exit_code = Exit.CHANGED

    def __init__(self, name: str, differences: Sequence[str], *, objections: str = ""):
        listed = "\n".join(f"  {line}" for line in differences)
        advice = (
            f"the run cannot go on with these changes, not even with --accept-changes: {objections}"
            if objections
            else "use --new to start another run, or --accept-changes to go on with this one "
            "(from Python: new=True or another name, or accept_changes=True)"
        )
        super().__init__(f"run {name!r} is recorded differently:\n{listed}\n{advice}")
        self.differences = tuple(differences)


async def open_run(
    journal: Journal, spec: RunSpec, tasks: Sequence[Task], *, accept_changes: bool = False
) -> Run:
    """Creates the run, or finds it and checks that it is the same.

    Raises `RunChanged` if it differs, unless `accept_changes` is set and the changes can be
    accepted. Accepted changes are recorded.
    """
    run = await journal.find_run(spec.name)
    if run is None:
        check_new(spec.group)
        try:
            return await journal.create_run(spec, tasks)
        except UsageError:
            # Another worker of the run may have created it at the same moment.
            run = await journal.find_run(spec.name)
            if run is None:
                raise
    if not run.spec.differences(spec):
        return run
    change = await _read_change(journal, run, spec, tasks)
    described = await _accepted(journal, change, accept_changes=accept_changes)
    if spec.group != run.spec.group:
        check_new(spec.group)
    worker = await journal.join(run, this_process(), lease_seconds=LEASE_SECONDS, share=False)
    try:
        amended = await journal.amend_run(run, spec, tasks, differences=described)
    finally:
        await journal.leave(worker)
    for note in change.notes.values():
        _log.warning("run %r: %s", spec.name, note)
    return amended


async def check_same(
    journal: Journal,
    spec: RunSpec,
    tasks: Sequence[Task],
    *,
    meant: Meant,
    accept_changes: bool,
) -> None:
    """Raises the errors of `open_run`, before an engine is started.

    This is possible only if the recorded model and renderer are the intended ones (`meant`). The
    check is also skipped if the run has a judge, because the judge's model is not known yet.
    """
    run = await journal.find_run(spec.name)
    if run is None or run.spec.judge or not meant.accepts(run.spec):
        return
    same = with_engine_of(run, spec)
    if run.spec.differences(same):
        change = await _read_change(journal, run, same, tasks)
        await _accepted(journal, change, accept_changes=accept_changes)


def with_engine_of(run: Run, spec: RunSpec) -> RunSpec:
    """Returns the spec with the model and the renderer of the recorded run. Otherwise, they would
    be known only after asking an engine."""
    return structs.replace(spec, model=run.spec.model, renderer=run.spec.renderer)


class _Change(Struct, frozen=True):
    """A recorded run, the requested change, and the records that the change affects."""

    run: Run
    spec: RunSpec
    tasks: Sequence[Task]
    worked_on: int
    """How many trajectories have records."""
    held: Mapping[str, Sequence[str]]
    """For each consumer, the tasks of the groups that it holds."""
    rewritten: Mapping[str, Sequence[str]]
    """The tasks that were worked on and whose content has changed since, by the names of the
    changed fields. Tasks whose messages or tools changed have the key "" (the task asks something
    else)."""

    @property
    def notes(self) -> dict[str, str]:
        """Returns, for each changed field, what the change means for consumers' groups and for
        finished trajectories."""
        now = {task.id for task in self.tasks}
        staying = {name: [task for task in had if task in now] for name, had in self.held.items()}
        notes = {}
        if self.spec.samples > self.run.spec.samples and (who := held_text(staying)):
            notes["samples"] = f"{who}, which get no more samples"
        if self.run.spec.tasks != self.spec.tasks and (about := "; ".join(self._about_tasks(now))):
            notes["tasks"] = about
        return notes

    def _about_tasks(self, now: Container[str]) -> Iterator[str]:
        removed = {
            name: [task for task in had if task not in now] for name, had in self.held.items()
        }
        if who := held_text(removed):
            yield f"{who} of tasks that are removed: they stay in its ledger"
        if corrected := self.rewritten.get(_CORRECTABLE):
            ids = _list_ids(corrected)
            yield f"another {_CORRECTABLE} of {ids}: what is finished is scored anew"


async def _read_change(journal: Journal, run: Run, spec: RunSpec, tasks: Sequence[Task]) -> _Change:
    worked_on = [row for row in await journal.trajectories(run) if row.records]
    started = {row.key.task for row in worked_on}
    recorded = {task.id: task for task in await journal.tasks(run)}
    rewritten: dict[str, list[str]] = {}
    for task in tasks:
        if task.id in started and content_digest(recorded[task.id]) != content_digest(task):
            rewritten.setdefault(_other_fields(recorded[task.id], task), []).append(task.id)
    return _Change(run, spec, tasks, len(worked_on), await journal.held_groups(run), rewritten)


async def _accepted(journal: Journal, change: _Change, *, accept_changes: bool) -> list[str]:
    """Returns the differences in words. Raises `RunChanged` if they are not accepted or cannot be
    accepted.
    """
    run, spec, notes = change.run, change.spec, change.notes
    differences = run.spec.differences(spec)
    described = await describe_differences(journal, run, change.tasks, differences)
    described = [_with_note(line, notes) for line in described]
    objections = await _find_objections(journal, change)
    if objections or not accept_changes:
        raise RunChanged(spec.name, described, objections=objections)
    return described


def _with_note(line: str, notes: Mapping[str, str]) -> str:
    note = notes.get(line.partition(":")[0])
    return f"{line} ({note})" if note else line


def check_new(group: GroupPolicy) -> None:
    """Raises `UsageError` for a new group policy that contradicts itself. A recorded run with such
    a policy continues as it began.
    """
    if group.shortfall is Shortfall.DROP and group.at_least > 1:
        raise UsageError(
            f"group shortfall drop keeps whole groups only, so that at least {group.at_least} is "
            f"never asked: leave one of the two out (partial with at least {group.at_least} drops "
            "the groups that have fewer)"
        )


async def _find_objections(journal: Journal, change: _Change) -> str:
    """Returns why the changes cannot be accepted, and what to do instead; "" if they can be
    accepted.
    """
    run, spec, held = change.run, change.spec, change.held
    if await is_training(journal, run):
        another = "to sample otherwise, give another --run (from Python: another name)"
        return f"it is a training, and its trainer goes on with it; {another}"
    reasons = []
    if spec.samples < run.spec.samples:
        reasons.append(
            f"the samples of run {spec.name!r} can grow, not shrink: {run.spec.samples} or more"
        )
    for field in ("model", "renderer"):
        then, now = getattr(run.spec, field), getattr(spec, field)
        if then != now and change.worked_on:
            sampled = many(change.worked_on, "trajectory")
            reasons.append(f"{sampled} came from {field} {then!r}, and {now!r} would sample others")
    if held and run.spec.has_other_scorer(spec):
        reasons.append(two_scorers(held))
    if scored := await find_left_unscored(journal, run, spec):
        reasons.append(scored)
    for fields, changed in change.rewritten.items():
        if reason := _why_not_rewritten(fields, changed, scorer=spec.scorer, held=held):
            reasons.append(reason)
    if not reasons:
        return ""
    return f"{'; '.join(reasons)}, or use --new to start another run (from Python: another name)"


async def is_training(journal: Journal, run: Run) -> bool:
    """Returns whether a Holdfast trainer made the run.

    The run of a trainer gets its tasks one after the other, and has recorded versions of weights
    once it is sealed. The consumer's name proves nothing, because any other loop may use it.
    """
    return bool(await journal.versions(run)) or not (await journal.progress(run)).sealed


async def find_left_unscored(journal: Journal, run: Run, spec: RunSpec) -> str:
    """Returns why the run cannot go on without its scorer; "" if it can.

    The run cannot go on if trajectories already have rewards, because it would mix scored and
    unscored trajectories.
    """
    if spec.scorer or not run.spec.scorer:
        return ""
    scored = 0
    for row in await journal.trajectories(run):
        if row.status.is_outcome and not row.resting:
            # A trajectory that is to be scored again still has the previous scorer's score.
            scored += row.settled or History(await journal.history(row.id)).scored is not None
    if not scored:
        return ""
    has = "has its reward" if scored == 1 else "have their rewards"
    return (
        f"{many(scored, 'trajectory')} {has} from a recorded scorer, and nothing would score the "
        "others: give that scorer (or another one, which scores all of them anew)"
    )


def _other_fields(recorded: Task, now: Task) -> str:
    """Returns the names of the fields that changed. Returns "" if the messages or tools changed,
    because the task then asks something else."""

    def differs(name: str) -> bool:
        changed = structs.replace(recorded, **{name: getattr(now, name)})
        return content_digest(changed) != content_digest(recorded)

    if differs("messages") or differs("tools"):
        return ""
    return " and ".join(filter(differs, ("ground_truth", "metadata")))


def _why_not_rewritten(
    fields: str, changed: Sequence[str], *, scorer: str, held: Mapping[str, Sequence[str]]
) -> str:
    """Returns why these changed tasks cannot be accepted; "" if they can.

    Records refer to a task's messages, and rollouts read its metadata. If these change, the
    recorded replies no longer belong to the task. Rewards depend on the ground truth. If only the
    ground truth changes, a scorer can compute the rewards anew, unless a consumer already has the
    old rewards.
    """
    having = {name: [task for task in had if task in set(changed)] for name, had in held.items()}
    if fields == _CORRECTABLE and scorer and not (who := held_text(having)):
        return ""
    is_single = len(changed) == 1
    has, its, asks = ("has", "its", "asks") if is_single else ("have", "their", "ask")
    how = f", and {its} {fields} changed" if fields else f" and now {asks} something else"
    what = f"{many(len(changed), 'task')} {has} been worked on{how} ({_list_ids(changed)})"
    other_ids = f"give {'it another id' if is_single else 'them other ids'}"
    if fields != _CORRECTABLE:
        return f"{what}: {other_ids}"
    if not scorer:
        return f"{what}, with no scorer that would give the rewards anew: {other_ids}"
    first = next(name for name, tasks in having.items() if tasks)
    return f"{what}, and {who} of that: give it back first, {give_back(first)}, or {other_ids}"


async def finished_run(journal: Journal, spec: RunSpec) -> Run | None:
    """Returns the recorded run of the spec if nothing is left to do for it, or None.

    All its trajectories must be settled, and no worlds may be left to remove. Returns None as well
    if its scorer made judges itself, because their verdicts have to be checked first.
    """
    run = await journal.find_run(spec.name)
    if run is None or not (await journal.progress(run)).is_over:
        return None
    same = with_engine_of(run, spec)
    if run.spec.differences(same) or await has_made_judges(journal, run):
        return None
    return None if await journal.worlds(run=run) else run


async def has_made_judges(journal: Journal, run: Run) -> bool:
    """Returns whether the run has a verdict of a judge that the scoring function made itself."""
    summaries = [summary async for _, summary in journal.summaries(run)]
    return any(isinstance(each, Summary) and each.made_judge for each in summaries)


async def rolled_out_run(
    journal: Journal, spec: RunSpec, tasks: Sequence[Task], *, accept_changes: bool
) -> Run | None:
    """Returns the recorded run of the spec if nothing is left to sample, or None.

    With `accept_changes`, the run's scorer or ground truth may differ from the spec. The scoring of
    the run may be unfinished.
    """
    run = await journal.find_run(spec.name)
    if run is None:
        return None
    same = with_engine_of(run, spec)
    if run.spec.differences(same):
        if not accept_changes:
            return None
        if await _asks_the_same(journal, run, tasks):
            same = structs.replace(same, tasks=run.spec.tasks)
        if run.spec.differences(same) and not run.spec.differs_by_code(same):
            return None
    return run if await journal.is_rolled_out(run, retries_failed=False) else None


async def is_trained(journal: Journal, run: Run) -> bool:
    """Returns whether a training step used some of the run's groups."""
    ledger = await journal.ledger(run, TRAINER)
    return any(entry.end is GroupEnd.TRAINED for entry in ledger)


async def free_name(journal: Journal, name: str) -> str:
    """Returns `name`, or `name-2`, `name-3`, … if it is taken."""
    candidate, number = name, 1
    while await journal.find_run(candidate) is not None:
        number += 1
        candidate = f"{name}-{number}"
    return candidate


async def describe_differences(
    journal: Journal, run: Run, tasks: Sequence[Task], differences: Sequence[str]
) -> list[str]:
    """Returns the differences of two specs. The line about tasks names the tasks instead of their
    digests.
    """
    about_tasks = f"tasks: {await describe_tasks(journal, run, tasks)}"
    return [about_tasks if line.startswith("tasks:") else line for line in differences]


async def describe_tasks(journal: Journal, run: Run, tasks: Sequence[Task]) -> str:
    """Describes how the given tasks differ from the run's tasks."""
    return _compare_tasks(await _current_tasks(journal, run), tasks)


async def _current_tasks(journal: Journal, run: Run) -> list[Task]:
    """Returns the tasks that the run had when it was last worked on."""
    inactive = {row.ordinal for row in await journal.trajectories(run) if row.resting}
    listed = enumerate(await journal.tasks(run))
    return [task for ordinal, task in listed if ordinal not in inactive]


async def _asks_the_same(journal: Journal, run: Run, tasks: Sequence[Task]) -> bool:
    """Returns whether these are the run's tasks, apart from their ground truth."""
    recorded = {task.id: task for task in await _current_tasks(journal, run)}
    return list(recorded) == [task.id for task in tasks] and all(
        content_digest(recorded[task.id]) == content_digest(task)
        or _other_fields(recorded[task.id], task) == _CORRECTABLE
        for task in tasks
    )


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
    return ", ".join(listed) or "in another order"


def _list_ids(ids: Sequence[str]) -> str:
    return ", ".join(
        [
            *(escape_text(task_id) for task_id in ids[:MAX_NAMED]),
            *(["…"] if len(ids) > MAX_NAMED else []),
        ]
    )
