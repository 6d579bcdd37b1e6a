"""Kills for tests of rollouts: a stop after so many live steps, and a resume from any records."""

import asyncio
from collections.abc import Callable, Sequence

from holdfast.records.step import Record, Snapshotted
from support.rollout.stage import Oracle, Play


def killed_after(steps: int) -> Callable[[], bool]:
    """Stops the run after so many live steps, as a kill would."""
    count = iter(range(steps))
    return lambda: next(count, None) is None


def perform(play: Play, rollout, **options):
    return asyncio.run(play.perform(rollout, **options))


def history(play: Play):
    return asyncio.run(play.history())


def records_of(play: Play) -> list[Record]:
    return list(asyncio.run(play.journal.history(play.leases[0].id)))


def resumed(play: Play, records: Sequence[Record]) -> Play:
    """The same trajectory in a new process, of whose log only `records` became durable."""

    async def copied() -> Play:
        other = Play(Oracle(play.oracle.answer), task=play.task, seed=play.seed)
        lease = await other.lease()
        for record in records:
            if isinstance(record, Snapshotted):
                await other.journal.put_blob(await play.journal.get_blob(record.snapshot))
        if records:
            await other.journal.append(lease, tuple(records))
        return other

    return asyncio.run(copied())
