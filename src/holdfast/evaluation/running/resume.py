"""Decides which recorded run an experiment continues, and when it begins another one.

The runs of an experiment are `name`, `name-2`, `name-3`, …. The experiment continues the latest run
that samples in the same way. If only the scorer differs, that run is scored again, and nothing is
rolled out. Any other difference begins the next run, which rolls out only what no run of the same
test has rolled out.
"""

import hashlib
from collections.abc import Sequence

from msgspec import Struct, structs

from holdfast.engine.open_run import describe_differences, has_made_judges, open_run
from holdfast.engine.scoring.retry import unread_verdicts
from holdfast.journal.sql.journal import Journal
from holdfast.records.errors import UsageError
from holdfast.records.run import Run, RunSpec
from holdfast.records.task import Task

_SCORING = ("scorer:", "judge:")
"""Prefixes of the differences that concern only the scoring. After such a difference, a run is
scored again, and nothing is rolled out."""
MAX_NAME = 180
"""The longest name, in bytes. A run's name has up to 200 characters and is also the name of files,
so this leaves room for the run's number and the files' endings."""


class Opened(Struct, frozen=True):
    run: Run
    note: str = ""
    """A note for the user about the run."""
    rescored: bool = False
    """Whether the scorer changed since the run was scored."""


def run_name(module: str, function: str, *variants: str) -> str:
    """Returns `module.function[variant]`, in the form of a run's name."""
    inside = "-".join(variant for variant in variants if variant)
    return limited(f"{module}.{function}{f'[{inside}]' if inside else ''}")


def limited(name: str) -> str:
    """Returns a name that a run can have. A name that is too long, or has a '/', is changed and
    gets a digest, so that two names never become the same run."""
    written = name.encode("utf-8", "surrogatepass")
    if len(written) <= MAX_NAME and "/" not in name:
        return name
    digest = hashlib.sha256(written).hexdigest()[:10]
    kept = written[: MAX_NAME - 11].decode("utf-8", "ignore")
    return f"{kept.replace('/', '_')}~{digest}"


def series_of(name: str) -> str:
    """Returns the name that all runs of one test function share, with any settings and parameters:
    `test module.function`."""
    return f"test {name.partition('[')[0]}"


async def runs_named(journal: Journal, base: str) -> list[Run]:
    """Returns all runs of an experiment, the oldest first."""
    runs: list[Run] = []
    while (run := await journal.find_run(_numbered(base, len(runs) + 1))) is not None:
        runs.append(run)
    return runs


async def open_recorded(
    journal: Journal, spec: RunSpec, tasks: Sequence[Task], *, new: bool, resume: bool
) -> Opened:
    """Returns the latest recorded run that samples in the same way, or creates a new one.
    `spec.name` is the experiment's name. With `new`, always creates a run. With `resume`, raises
    `UsageError` instead of creating a run that differs from the last recorded one."""
    known = await runs_named(journal, spec.name)
    if not new:
        for run in reversed(known):
            if (opened := await _find_same(journal, run, spec, tasks)) is not None:
                return opened
    differs = await _differences(journal, known[-1], spec, tasks) if known and not new else []
    if differs and resume:
        listed = "\n".join(f"  {line}" for line in differs)
        raise UsageError(
            f"--holdfast-resume: run {known[-1].spec.name!r} is recorded differently:\n{listed}\n"
            "leave the flag out to begin another run"
        )
    fresh = structs.replace(spec, name=_numbered(spec.name, len(known) + 1))
    try:
        run = await journal.create_run(fresh, tasks)
    except UsageError:
        if await journal.find_run(fresh.name) is None:
            raise
        # Another session has just created it.
        return await open_recorded(journal, spec, tasks, new=new, resume=resume)
    return Opened(run, _why_another(run, known, differs))


async def _find_same(
    journal: Journal, run: Run, spec: RunSpec, tasks: Sequence[Task]
) -> Opened | None:
    """Returns the run if it samples as `spec` says. If its scorer differs, the run is opened to be
    scored again. Returns None for any other difference."""
    same = structs.replace(spec, name=run.spec.name)
    differences = run.spec.differences(same)
    if not differences:
        return Opened(run)
    if not all(line.startswith(_SCORING) for line in differences):
        return None
    again = await open_run(journal, same, tasks, accept_changes=True)
    note = f"{run.spec.name}: the scorer changed; what was rolled out is scored anew"
    return Opened(again, note, rescored=True)


async def open_together(
    journal: Journal, runs: Sequence[Run], tasks: Sequence[Task], *, whole: bool
) -> list[Run]:
    """Returns the runs, ready to be judged together. With `whole`, all rows are judged at once, and
    otherwise the rows of one task at a time.

    Some rows may have no score yet, because they failed before or their run is new, while rows that
    are judged together with them already have scores. In that case, every row is opened for scoring
    again, so that scores of two judgements are never mixed.
    """
    is_open: set[str] = set()
    is_judged: set[str] = set()
    for run in runs:
        for row in await journal.trajectories(run):
            if row.status.is_outcome and not row.resting:
                (is_judged if row.settled else is_open).add("" if whole else row.key.task)
    if not is_open & is_judged:
        return list(runs)
    return [await _unsettled(journal, run, tasks) for run in runs]


async def _unsettled(journal: Journal, run: Run, tasks: Sequence[Task]) -> Run:
    """Opens every outcome of the run for scoring. Changes the scorer's name and changes it back, so
    that a process that reads the run in between sees another scorer and also scores the run
    again."""
    for scorer in (f"{run.spec.scorer} in other company", run.spec.scorer):
        spec = structs.replace(run.spec, scorer=scorer)
        run = await open_run(journal, spec, tasks, accept_changes=True)
    return run


def _why_another(run: Run, known: Sequence[Run], differs: Sequence[str]) -> str:
    if not known:
        return ""
    why = f": {known[-1].spec.name} differs in {'; '.join(differs)}" if differs else ""
    return f"{run.spec.name} is a new run{why}"


async def settled_already(
    journal: Journal, spec: RunSpec, *, models: Sequence[str] | None, even_failed: bool
) -> Run | None:
    """Returns the recorded run that equals `spec` and needs no more work, so that no engine has to
    be asked. The renderer is not compared. The model has to be in `models`, or may be any model if
    `models` is None. With `even_failed`, rows that failed for good need no more work."""
    for run, differences in await _newest_first(journal, spec, models):
        if differences:
            continue
        rows = [row for row in await journal.trajectories(run) if not row.resting]
        over = all(row.settled and (even_failed or row.status.is_outcome) for row in rows)
        if over and not even_failed and await unread_verdicts(journal, run):
            return None
        if over and await has_made_judges(journal, run):
            return None
        return run if over else None
    return None


async def rolled_out_already(
    journal: Journal, spec: RunSpec, *, models: Sequence[str] | None, retry_failed: bool
) -> Run | None:
    """Returns the recorded run that `open_recorded` finds, if there is nothing left to sample.
    `models` has the same meaning as in `settled_already`. If the scorer changed, failed rows are
    retried, as with `retry_failed`."""
    for run, differences in await _newest_first(journal, spec, models):
        if not all(line.startswith(_SCORING) for line in differences):
            continue
        retries = retry_failed or bool(differences)
        return run if await journal.is_rolled_out(run, retries_failed=retries) else None
    return None


async def _newest_first(
    journal: Journal, spec: RunSpec, models: Sequence[str] | None
) -> list[tuple[Run, list[str]]]:
    """Returns the experiment's runs that have one of the models, the newest first. Each run comes
    with its differences from `spec`, apart from the name, the model and the renderer."""
    by_age = []
    for run in reversed(await runs_named(journal, spec.name)):
        known = run.spec
        if models is None or known.model in models:
            same = structs.replace(
                spec, name=known.name, model=known.model, renderer=known.renderer
            )
            by_age.append((run, known.differences(same)))
    return by_age


async def _differences(
    journal: Journal, run: Run, spec: RunSpec, tasks: Sequence[Task]
) -> list[str]:
    lines = run.spec.differences(structs.replace(spec, name=run.spec.name))
    return await describe_differences(journal, run, tasks, lines)


def _numbered(base: str, number: int) -> str:
    return base if number == 1 else f"{base}-{number}"
