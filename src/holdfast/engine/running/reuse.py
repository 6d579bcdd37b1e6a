"""Reuses trajectories that another run of the series has sampled already.

A trajectory can be reused if the code, the model, the sampling, the seed, the sample number, and
everything that the rollout can read of its task are the same. If the run has a scorer,
`ground_truth` may differ, because only the scorer is meant to read it.

The worker that holds the new trajectory copies the old records in one append. After a kill, the
trajectory is either copied or not begun, and the old run may be deleted or continued. The score is
copied if the scorer and the whole task are the same, and the scorer makes no judges itself. For a
group scorer, this must hold for the whole group.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import product

from msgspec import Struct, structs

from holdfast.engine.open_run import has_made_judges
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import TrajectoryRow
from holdfast.records.errors import JournalCorrupt
from holdfast.records.history import History
from holdfast.records.run import Run, RunSpec
from holdfast.records.step import Record, Reused, Scored, ScoringFailed
from holdfast.records.task import Task, content_digest
from holdfast.records.trajectory import Status, TrajectoryKey


class OlderTrajectory(Struct, frozen=True):
    """A trajectory of another run, whose records can be copied."""

    run: str
    trajectory: int
    has_score: bool
    """Whether the old score is also valid for the new trajectory."""
    has_failed: bool
    """Whether the trajectory failed for good. If only its scoring failed, it still has an
    outcome."""


class Beginning(Struct, frozen=True):
    """The records with which a fork begins."""

    run: str
    step: str
    """The step at which the fork leaves the other trajectory."""
    records: tuple[Record, ...]


Source = OlderTrajectory | Beginning
Sources = dict[int, OlderTrajectory]
"""Where each new trajectory can be copied from, by its number."""


async def find_sources(journal: Journal, run: Run, *, scores_groups: bool = False) -> Sources:
    """Finds, for each trajectory that has not begun, the trajectory of another run from which it
    can be copied. If several runs have it, chooses the newest run."""
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
    """Counts how many trajectories a new run would reuse, by the run that has them."""
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
    """Finds the trajectories of another run that `rows` can reuse. With `whole`, a score is
    reused only with its whole group.
    """
    theirs = await _tasks(journal, other)
    alike = {name for name, task in tasks.items() if _reads_alike(task, theirs.get(name), run)}
    over = {
        (row.key.task, row.key.sample): row
        for row in await journal.trajectories(other)
        if row.status.is_over and row.key.task in alike
    }
    same_scorer = not run.spec.has_other_scorer(other.spec)
    # The judges that a scorer makes itself may be others by now.
    same_scorer = same_scorer and not await has_made_judges(journal, other)
    scored = {
        name
        for name in alike
        if same_scorer
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
    """Returns whether a rollout can see no difference between the tasks. If the run has a scorer,
    `ground_truth` may differ."""
    if other is None:
        return False
    if run.spec.scorer:
        other = structs.replace(other, ground_truth=task.ground_truth)
    return content_digest(task) == content_digest(other)


async def read_source(journal: Journal, source: Source, *, at: float) -> Sequence[Record]:
    """Returns the records to copy. Returns () if the trajectory has no outcome, or cannot be
    read any more.
    """
    if isinstance(source, Beginning):
        return (*source.records, Reused(source.run, at, source.step))
    try:
        records = await journal.history(source.trajectory)
    except JournalCorrupt:
        # `journal check` reports the damage of that run. This run samples the trajectory anew.
        return ()
    run = next((each.run for each in records if isinstance(each, Reused)), source.run)
    left_out = (Reused,) if source.has_score else (Reused, Scored, ScoringFailed)
    kept = [record for record in records if not isinstance(record, left_out)]
    if not History(kept).status.is_outcome:
        return ()
    return (*kept, Reused(run, at))
