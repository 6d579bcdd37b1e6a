"""The records of replicas' weights, in the journal of a run or only in this process."""

import asyncio
from collections.abc import Sequence

from holdfast.journal.changes import Changes
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import Consumer
from holdfast.records.run import Run
from holdfast.records.samples.replica_weights import ReplicaWeights


class MemoryRecords:
    """The records of engines, kept in memory. They are for engines from which only this process
    samples."""

    def __init__(self) -> None:
        self.changes = Changes()
        self._records: list[ReplicaWeights] = []

    async def read(self) -> Sequence[ReplicaWeights]:
        return list(self._records)

    async def note(self, record: ReplicaWeights) -> bool:
        last = max((r.number for r in self._records if r.replica == record.replica), default=0)
        if record.number not in (last, last + 1):
            return False
        place = (record.replica, record.number)
        kept = [each for each in self._records if (each.replica, each.number) != place]
        self._records = [*kept, record]
        self.changes.notify()
        return True


class JournalRecords:
    """The records in the journal of a run. `consumer` is the consumer whose lease allows this
    process to write. It is None in a process that only samples."""

    def __init__(self, journal: Journal, run: Run, *, consumer: Consumer | None = None):
        self.changes = journal.changes
        self._journal = journal
        self._run = run
        self._consumer = consumer
        self._next: asyncio.Task[list[ReplicaWeights]] | None = None
        self._reading = asyncio.Lock()

    async def read(self) -> Sequence[ReplicaWeights]:
        """Reads the records. A call that arrives before a read begins shares that read."""
        if self._next is None:
            self._next = asyncio.create_task(self._read(), name="records of weights")
        return await asyncio.shield(self._next)

    async def _read(self) -> list[ReplicaWeights]:
        async with self._reading:
            self._next = None
            return await self._journal.replica_weights(self._run)

    async def note(self, record: ReplicaWeights) -> bool:
        return await self._journal.note_weights(self._run, record, consumer=self._consumer)
