"""Names runs that the user did not name: `agent-1`, `agent-2`, ….

If code, tasks and settings are the same, the newest such run continues. Anything else begins the
next run, which reuses trajectories that it would otherwise sample again (`reuse`).
"""

from collections.abc import Sequence

from msgspec import structs

from holdfast.engine.meant import Meant
from holdfast.engine.open_run import check_new, describe_tasks, with_engine_of
from holdfast.engine.running.reuse import count_reusable
from holdfast.journal.sql.journal import Journal
from holdfast.records.errors import UsageError
from holdfast.records.run import Run, RunSpec
from holdfast.records.task import Task


async def name_in_series(
    journal: Journal,
    spec: RunSpec,
    *,
    meant: Meant,
    accept_changes: bool = False,
) -> str:
    """Returns the name of the run to continue, or else the next free name.

    No engine has been asked yet. If `meant` accepts a recorded run, its model and renderer are
    taken as those of the new one. With `accept_changes`, continues the newest run of the series.
    """
    for run in reversed(await journal.find_series(spec.series)):
        if accept_changes or (
            not spec.fresh and meant.accepts(run.spec) and is_same(run, with_engine_of(run, spec))
        ):
            return run.spec.name
    return await _next_name(journal, spec.series)


async def run_with_all(journal: Journal, spec: RunSpec, tasks: Sequence[Task]) -> Run | None:
    """Returns the newest run of the series that can be reused, if it and older runs have all
    trajectories that the new run needs. Otherwise returns None.

    With such a run, no engine is started or asked.
    """
    for run in reversed(await journal.find_series(spec.series)) if not spec.fresh else ():
        same = with_engine_of(run, spec)
        if same.may_reuse(run.spec):
            reusable = await count_reusable(journal, same, tasks)
            return run if reusable.total() == len(tasks) * spec.samples else None
    return None


async def _next_name(journal: Journal, series: str) -> str:
    names = [run.spec.name for run in await journal.find_series(series) if run.spec.is_unnamed]
    number = max((int(name.rpartition("-")[2]) for name in names), default=0) + 1
    # The user has given a run this name.
    while await journal.find_run(f"{series}-{number}") is not None:
        number += 1
    return f"{series}-{number}"


async def open_in_series(
    journal: Journal, spec: RunSpec, tasks: Sequence[Task], *, code: str
) -> tuple[Run, str]:
    """Opens the newest run that is the same as `spec`, or else creates the next run of the series.
    Also returns a line about the changes since the last run. The line is "" for an old run and for
    the first run.

    `code` names the user's file in that line.
    """
    known = await journal.find_series(spec.series)
    for run in reversed(known) if not spec.fresh else ():
        if is_same(run, spec):
            return run, ""
    check_new(spec.group)
    name = await _next_name(journal, spec.series)
    try:
        run = await journal.create_run(structs.replace(spec, name=name), tasks)
    except UsageError:
        if await journal.find_run(name) is None:
            raise
        # Another process has just created it.
        return await open_in_series(journal, spec, tasks, code=code)
    return run, await _why_another(journal, known[-1], run, tasks, code) if known else ""


def is_same(run: Run, spec: RunSpec) -> bool:
    return not run.spec.differences(structs.replace(spec, name=run.spec.name))


async def _why_another(
    journal: Journal, before: Run, run: Run, tasks: Sequence[Task], code: str
) -> str:
    name, old = run.spec.name, before.spec.name
    changes = await changes_of(journal, before, run.spec, tasks, code)
    why = "; ".join(changes) or f"everything is sampled anew (as {old} asks the same)"
    return f"{why}: this is {name}; compare {old} {name} shows the difference"


async def changes_of(
    journal: Journal, before: Run, spec: RunSpec, tasks: Sequence[Task], code: str
) -> list[str]:
    """Returns the changes since the run `before`, in a few words each. `code` names the user's file
    for changes of code that are in no recorded file."""
    spec = structs.replace(spec, name=before.spec.name)
    lines = []
    names = [each.scorer.partition("@")[0] or "none" for each in (before.spec, spec)]
    if before.spec.rollout == spec.rollout and names[0] != names[1]:
        lines.append(f"scorer changed ({names[0]} → {names[1]})")
    else:
        lines += before.spec.changed_code(spec, code=code)
    for field, (then, now) in before.spec.changed(spec).items():
        if field == "tasks":
            lines.append(f"tasks changed ({await describe_tasks(journal, before, tasks)})")
        elif field not in ("rollout", "scorer"):
            lines.append(f"{field.rpartition('.')[2]} changed ({then} → {now})")
    return lines
