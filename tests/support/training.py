"""Settled groups with rewards of a test's choice, without any engine."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from holdfast.journal.sql.journal import Journal
from holdfast.journal.sqlite.journal import MemoryJournal
from holdfast.journal.types import Consumer, Lease
from holdfast.records.epochs import EpochStream
from holdfast.records.group import GroupPolicy
from holdfast.records.run import Run
from holdfast.records.step import Finished
from holdfast.records.trajectory import Status
from holdfast.training.run.batches import Batches
from holdfast.training.settings import TrainingSettings
from support.records import (
    consuming,
    generated,
    joined,
    make_tasks,
    spec,
    started,
)

LOST = "lost"
"""In place of a reward: the trajectory failed for a reason of the infrastructure."""
Rewards = Callable[[str], Sequence[float | str | None]]
"""Of the members of a task; None: it has none."""


@asynccontextmanager
async def rolled_out(
    rewards: Rewards, *, names: str = "abcdefgh", samples: int = 2, at_least: int = 1
) -> AsyncIterator[tuple[MemoryJournal, Consumer, EpochStream]]:
    """A stream whose tasks are settled with these rewards as soon as they are admitted."""
    journal = MemoryJournal()
    policy = GroupPolicy(at_least=at_least)
    run = await journal.create_run(spec(samples=samples, group=policy), (), sealed=False)
    rolling = asyncio.create_task(_roll_out(journal, run, rewards))
    stream = EpochStream(make_tasks(*names), seed=0, shuffle=False)
    try:
        yield journal, await consuming(journal, run), stream
    finally:
        rolling.cancel()
        await asyncio.wait({rolling})


async def _roll_out(journal: Journal, run: Run, rewards: Rewards) -> None:
    worker = await joined(journal, run)
    while True:
        seen = journal.changes.count
        for claim in await journal.claim(worker, groups=100):
            # The last one first: what is settled first is a matter of timing.
            values = list(zip(claim.open, rewards(claim.task.id), strict=True))
            for lease, reward in reversed(values):
                await _settle(journal, lease, reward)
        await journal.changes.wait(seen, timeout=1.0)


async def _settle(journal: Journal, lease: Lease, reward: float | str | None) -> None:
    status = Status.FAILED if reward == LOST else Status.COMPLETED
    value = reward if isinstance(reward, float) else None
    records = [started(), generated("0"), Finished(status, "returned", value, 2.0)]
    await journal.append(lease, records, status=status, settled=True)


def batches_of(
    journal: Journal, consumer: Consumer, stream: EpochStream, *, groups: int = 2, **options: object
) -> Batches:
    return Batches(journal, consumer, stream, TrainingSettings.of(groups=groups, **options))
