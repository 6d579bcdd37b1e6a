"""Computes late scores, which need the trajectories of more than one task, or of more than one run.

Rollouts finish and stay open (`Engine(settles=False)`). When all of them are over, one scorer sees
all trajectories at once, or the trajectories of each task across several runs. Scores that belong
together are recorded together or not at all. If the process dies before that, the next process only
has to score again. The scorer does not see trajectories that failed for good, because they have no
outcome.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager

from msgspec import Struct

from holdfast.clock import SystemClock
from holdfast.engine.guards.loop_block import watch_loop
from holdfast.engine.scoring.scorer import Scorer
from holdfast.engine.scoring.settle import STOPS, Member, Scoring
from holdfast.engine.settings import Settings
from holdfast.engine.stop import Stop
from holdfast.journal.process import this_process
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import Lease, TrajectoryRow, Worker
from holdfast.records.errors import HoldfastError, JournalError
from holdfast.records.history import History
from holdfast.records.run import Run
from holdfast.records.task import Task
from holdfast.records.trajectory import TrajectoryKey
from holdfast.records.view import TrajectoryView
from holdfast.rollout.threads.contain import in_background

CLAIM = 256


class _Lot(Struct):
    """The trajectories that one call scores."""

    open: list[tuple[Lease, Task]] = []
    settled: list[tuple[TrajectoryRow, Task]] = []


async def score_late(
    journal: Journal,
    runs: Sequence[Run],
    scorer: Scorer,
    *,
    whole: bool,
    settings: Settings,
    stop: Stop,
) -> None:
    """Scores every outcome of the runs.

    Returns when every outcome is durably scored or has failed for good, or when a stop is
    requested. With `whole`, all trajectories of all runs are scored at once; otherwise, one call
    scores the trajectories of one task in all runs.
    """
    assert scorer.is_group, "it is given several trajectories"
    async with _joined(journal, runs, settings, stop) as workers:
        order = {run.spec.name: index for index, run in enumerate(runs)}
        places = await _places(journal, runs)

        def place(key: TrajectoryKey) -> tuple[int, ...]:
            """Orders trajectories by task, then by run, then by sample."""
            return places[key.task], order[key.run], key.sample

        lots = await _lots(journal, runs, workers, whole=whole)
        scoring = Scoring(
            scorer,
            settings.scoring,
            journal,
            SystemClock(),
            patience=settings.patience,
            place=place,
        )
        with watch_loop():
            await _until_stopped(_score_all(journal, scoring, lots, settings), stop)


async def _places(journal: Journal, runs: Sequence[Run]) -> dict[str, int]:
    places: dict[str, int] = {}
    for run in runs:
        for task in await journal.tasks(run):
            places.setdefault(task.id, len(places))
    return places


@asynccontextmanager
async def _joined(
    journal: Journal, runs: Sequence[Run], settings: Settings, stop: Stop
) -> AsyncIterator[list[Worker]]:
    """Joins each run as a worker, and keeps the workers alive while a scorer takes its time."""
    workers: list[Worker] = []
    seconds = settings.lease_seconds
    beat = _beat(journal, workers, seconds, stop)
    try:
        async with in_background(beat, name="heartbeat of the scoring"):
            for run in runs:
                worker = await journal.join(run, this_process(), lease_seconds=seconds, share=False)
                workers.append(worker)
            yield workers
    finally:
        for worker in workers:
            await journal.leave(worker)


async def _beat(journal: Journal, workers: Sequence[Worker], seconds: float, stop: Stop) -> None:
    while True:
        await asyncio.sleep(seconds / 3)
        try:
            for worker in workers:
                await journal.heartbeat(worker)
        except JournalError as error:
            return stop.fail(error)


async def _lots(
    journal: Journal, runs: Sequence[Run], workers: Sequence[Worker], *, whole: bool
) -> list[_Lot]:
    """Returns every lot with open trajectories, in the order of the data set."""
    lots: dict[str, _Lot] = {}
    for run, worker in zip(runs, workers, strict=True):
        while claims := await journal.claim(worker, groups=CLAIM):
            for claim in claims:
                lot = lots.setdefault("" if whole else claim.task.id, _Lot())
                lot.open += [(lease, claim.task) for lease in claim.open]
        tasks = {task.id: task for task in await journal.tasks(run)}
        for row in await journal.trajectories(run):
            if row.settled and not row.resting and row.status.is_outcome:
                lot = lots.setdefault("" if whole else row.key.task, _Lot())
                lot.settled.append((row, tasks[row.key.task]))
    return [lot for lot in lots.values() if lot.open]


async def _score_all(
    journal: Journal, scoring: Scoring, lots: Sequence[_Lot], settings: Settings
) -> None:
    """Scores the lots. Only the lots that are scored at the moment are in memory."""
    waiting = iter(lots)
    at_once = min(len(lots), settings.scoring.concurrency)
    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(_score_some(journal, scoring, waiting), name="late scoring")


async def _score_some(journal: Journal, scoring: Scoring, waiting: Iterator[_Lot]) -> None:
    for lot in waiting:
        members = [
            Member(lease, task, History(await journal.history(lease.id)))
            for lease, task in lot.open
        ]
        settled = [
            TrajectoryView(row.key, task, History(await journal.history(row.id)), id=row.id)
            for row, task in lot.settled
        ]
        assert all(member.history.finished for member in members), "every rollout is over by now"
        await scoring.settle(
            [member for member in members if member.history.status.is_outcome], settled
        )


async def _until_stopped(work: Coroutine[object, object, None], stop: Stop) -> None:
    scoring = await stop.cancels(work, name="late scoring")
    try:
        if not scoring.cancelled():
            scoring.result()
    except* (JournalError, *STOPS) as errors:
        raise _first(errors) from errors


def _first(errors: ExceptionGroup[HoldfastError]) -> HoldfastError:
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, ExceptionGroup) else first
