"""Finds verdicts of judges that a scoring function made itself, if the function would make another
judge today.

A judge that is part of the scorer's code is part of the run's identity. If the function makes a
judge during a call, for example from a file, the judge is known only in that call. So the verdict
records the judge's identity. When the run goes on, the function is called for each such verdict
until it asks its first judge. No engine is asked. If this judge is not the recorded one, the
trajectory is scored again.
"""

import asyncio
from collections.abc import Iterator, Sequence

from holdfast.engine.scoring.scorer import Scorer
from holdfast.engine.settings import ScoringPolicy
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import TrajectoryRow
from holdfast.records.history import History
from holdfast.records.run import Run
from holdfast.records.samples.summary import Summary
from holdfast.records.step import Record
from holdfast.records.task import own
from holdfast.records.view import TrajectoryView

_Row = tuple[TrajectoryRow, Summary]


async def outdated_verdicts(
    journal: Journal, run: Run, scorer: Scorer, policy: ScoringPolicy
) -> list[int]:
    """Returns the settled trajectories whose verdict would come from another judge today."""
    by_task: dict[str, list[_Row]] = {}
    async for row, summary in journal.summaries(run):
        if isinstance(summary, Summary) and summary.status.is_outcome and not row.resting:
            by_task.setdefault(row.key.task, []).append((row, summary))
    lots = [
        lot
        for rows in by_task.values()
        for lot in ([rows] if scorer.is_group else [[row] for row in rows])
        if any(row.settled and summary.made_judge for row, summary in lot)
    ]
    if not lots:
        return []
    tasks = {task.id: task for task in await journal.tasks(run)}
    waiting, outdated = iter(lots), list[int]()

    async def read(view: TrajectoryView) -> Sequence[Record]:
        assert view.id is not None, "it is in the journal"
        return await journal.history(view.id)

    async def probe(waiting: Iterator[list[_Row]]) -> None:
        for lot in waiting:
            views = [
                TrajectoryView(
                    row.key,
                    own(tasks[row.key.task]),
                    History(await journal.history(row.id)),
                    id=row.id,
                )
                for row, _ in lot
            ]
            judge = await scorer.first_judge(views, seconds=policy.timeout, read=read)
            if any(row.settled and summary.made_judge != judge for row, summary in lot):
                outdated.extend(row.id for row, _ in lot)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(len(lots), policy.concurrency)):
            group.create_task(probe(waiting), name="first judge")
    return outdated
