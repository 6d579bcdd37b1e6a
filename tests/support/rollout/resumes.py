"""Kills for tests of rollouts: a stop after so many live steps, and a resume from any records."""

import asyncio
from collections.abc import Callable, Sequence

from holdfast.records.step import Record, Snapshotted
from support.rollout.stage import Oracle, TrajectoryUnderTest


def killed_after(steps: int) -> Callable[[], bool]:
    """Stops the run after so many live steps, as a kill would."""
    count = iter(range(steps))
    return lambda: next(count, None) is None


def perform(subject: TrajectoryUnderTest, rollout, **options):
    return asyncio.run(subject.perform(rollout, **options))


def history(subject: TrajectoryUnderTest):
    return asyncio.run(subject.history())


def records_of(subject: TrajectoryUnderTest) -> list[Record]:
    return list(asyncio.run(subject.journal.history(subject.leases[0].id)))


def resumed(subject: TrajectoryUnderTest, records: Sequence[Record]) -> TrajectoryUnderTest:
    """The same trajectory in a new process, of whose log only `records` became durable."""

    async def copied() -> TrajectoryUnderTest:
        other = TrajectoryUnderTest(
            Oracle(subject.oracle.answer), task=subject.task, seed=subject.seed
        )
        lease = await other.lease()
        for record in records:
            if isinstance(record, Snapshotted):
                await other.journal.put_blob(await subject.journal.get_blob(record.snapshot))
        if records:
            await other.journal.append(lease, tuple(records))
        return other

    return asyncio.run(copied())
