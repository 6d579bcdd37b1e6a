"""Trajectories that another run of the series has sampled already.

A trajectory is what it would be in this run if the code, the model, the sampling, the seed, its
sample number, and all that the rollout can read of its task are the same. Where there is a scorer,
`ground_truth` is the scorer's, and the rollout is not meant to read it.

The worker that holds a new trajectory copies the records of the old one, in one append. So a kill
leaves it copied or not begun, and the old run may be deleted or go on. The score is copied too if
its scorer and all of its task are the same; for a scorer of groups, if the whole group is.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import product

from msgspec import Struct, structs

from holdfast.journal.journal import Journal, TrajectoryRow
from holdfast.records.errors import JournalCorrupt
from holdfast.records.history import History
from holdfast.records.run import Run, RunSpec
from holdfast.records.step import Record, Reused, Scored, ScoringFailed
from holdfast.records.task import Task, content_digest
from holdfast.records.trajectory import Status, TrajectoryKey


class OlderTrajectory(Struct, frozen=True):
    """Where the records of a trajectory are."""

    run: str
    trajectory: int
    has_score: bool
    """Whether its score holds for the new one, too."""
    has_failed: bool
    """For good: it is an outcome only if its scoring has."""


Sources = dict[int, OlderTrajectory]
"""By the number of the trajectory that has not begun."""


async def find_sources(journal: Journal, run: Run, *, scores_groups: bool = False) -> Sources:
    """Of what has not begun. Where several runs have it, the newest."""
    sources: Sources = {}
    if not run.spec.series or run.spec.fresh:
        return sources
    rows = [row for row in await journal.trajectories(run) if not (row.records or row.resting)]
    others = await journal.find_series(run.spec.series) if rows else []
    alike = [each for each in others[::-1] if each.id != run.id and run.spec.may_reuse(each.spec)]
    tasks = await _tasks(journal, run) if alike else {}
    for other in await journal.share(run, alike) if alike else ():
        left = [row for row in rows if row.id not in sources]
        if left:
            sources |= await _sources_in(journal, other, run, tasks, left, whole=scores_groups)
    return sources


async def count_reusable(journal: Journal, spec: RunSpec, tasks: Sequence[Task]) -> Counter[str]:
    """How many trajectories a new run would reuse, by the runs that have them."""
    counts: Counter[str] = Counter()
    keys = [TrajectoryKey("", task.id, n) for task, n in product(tasks, range(spec.samples))]
    left = [
        TrajectoryRow(key, number, 0, Status.PENDING, False, 0, 0, "")
        for number, key in enumerate(keys)
    ]
    runs = [] if spec.fresh or not spec.series else await journal.find_series(spec.series)
    taken = {mark for each in runs if await journal.consumers(each) for mark in each.spec.lineage}
    for other in runs[::-1]:
        if spec.may_reuse(other.spec) and not taken & {*other.spec.lineage}:
            by_id = {task.id: task for task in tasks}
            run = Run(-1, spec, (), 0.0)
            sources = await _sources_in(journal, other, run, by_id, left, whole=False)
            sure = {number for number, each in sources.items() if await _is_there(journal, each)}
            left = [row for row in left if row.id not in sources]
            counts[other.spec.name] += len(sure)
    return +counts


async def _is_there(journal: Journal, source: OlderTrajectory) -> bool:
    return not source.has_failed or bool(await read_source(journal, source, at=0.0))


async def _tasks(journal: Journal, run: Run) -> dict[str, Task]:
    return {task.id: task for task in await journal.tasks(run)}


async def _sources_in(
    journal: Journal,
    other: Run,
    run: Run,
    tasks: dict[str, Task],
    rows: Iterable[TrajectoryRow],
    *,
    whole: bool,
) -> Sources:
    """`whole`: a score holds for a whole group only."""
    theirs = await _tasks(journal, other)
    alike = {name for name, task in tasks.items() if _reads_alike(task, theirs.get(name), run)}
    over = {
        (row.key.task, row.key.sample): row
        for row in await journal.trajectories(other)
        if row.status.is_over and row.key.task in alike
    }
    scored = {
        name
        for name in alike
        if not run.spec.has_other_scorer(other.spec)
        and content_digest(tasks[name]) == content_digest(theirs[name])
        and (not whole or _is_whole(over, name, run, other))
    }
    pairs = [(row.id, over.get((row.key.task, row.key.sample))) for row in rows]
    return {
        number: OlderTrajectory(
            other.spec.name,
            old.id,
            _has_score(old) and old.key.task in scored,
            old.status is Status.FAILED,
        )
        for number, old in pairs
        if old is not None
    }


def _has_score(row: TrajectoryRow) -> bool:
    return row.settled and row.status.is_outcome


def _is_whole(over: dict[tuple[str, int], TrajectoryRow], task: str, run: Run, other: Run) -> bool:
    members = [over.get((task, sample)) for sample in range(run.spec.samples)]
    return run.spec.samples == other.spec.samples and all(
        member is not None and _has_score(member) for member in members
    )


def _reads_alike(task: Task, other: Task | None, run: Run) -> bool:
    """Whether a rollout can see no difference."""
    if other is None:
        return False
    if run.spec.scorer:
        other = structs.replace(other, ground_truth=task.ground_truth)
    return content_digest(task) == content_digest(other)


async def read_source(journal: Journal, source: OlderTrajectory, *, at: float) -> Sequence[Record]:
    """Its records, as they are copied; () for what is no outcome, or cannot be read any more."""
    try:
        records = await journal.history(source.trajectory)
    except JournalCorrupt:  # `journal check` says so of that run; here it is sampled anew.
        return ()
    run = next((each.run for each in records if isinstance(each, Reused)), source.run)
    left_out = (Reused,) if source.has_score else (Reused, Scored, ScoringFailed)
    kept = [record for record in records if not isinstance(record, left_out)]
    if not History(kept).status.is_outcome:
        return ()
    return (*kept, Reused(run, at))
