"""A `DataPool` has the groups of a training, between the rollouts and the trainer.

It is a view of the journal without a store of its own: every process that opens it sees the same.
It has a bound, and never drops a group to make room: a submission waits. The bound holds for all
submissions through one `DataPool`. Other processes check the bound by themselves, and each may
exceed it by one submission.

Training and validation are separate channels. No group of one gets into the other.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from holdfast.engine.open_run import TRAINER
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import Batch, Consumer, GroupEnd, LedgerEntry, TrajectoryRow
from holdfast.records.encoding.bounds import check_whole
from holdfast.records.encoding.declared import as_declared
from holdfast.records.encoding.tokens import unpack_ids, unpack_logprobs
from holdfast.records.errors import HoldfastError, UsageError
from holdfast.records.history import History
from holdfast.records.message import Message
from holdfast.records.run import Run
from holdfast.records.step import Generated, VersionSpan
from holdfast.records.task import Task
from holdfast.records.trajectory import Status, TrajectoryKey
from holdfast.training.report import HELD_OUT

POLL_SECONDS = 1.0
READY = "ready"
"""The ledger's word for a group that is settled but not taken."""


class PoolFull(HoldfastError):
    """A submission found no room in time. Its tasks were not submitted, and no group was
    dropped."""


class PoolChannel(StrEnum):
    TRAINING = "training"
    VALIDATION = "validation"
    """The evaluations of the training, each a run of its own."""


class LastStep(Struct, frozen=True):
    """The last durable generation of a trajectory, which may still be running."""

    trajectory: str
    path: str
    ids: list[int]
    logprobs: list[float]
    message: Message
    versions: tuple[VersionSpan, ...]
    status: Status
    is_settled: bool


class PoolStats(Struct, frozen=True):
    """The contents of the pool, in groups."""

    bound: int
    admitted: int
    rolling_out: int
    ready: int
    """Groups that are settled but not taken."""
    taken: int
    """Groups that a step has taken and that no checkpoint holds yet."""
    trained: int
    dismissed: dict[str, int]
    """Dismissed groups by reason."""
    is_sealed: bool

    @property
    def open(self) -> int:
        return self.rolling_out + self.ready + self.taken

    @property
    def is_over(self) -> bool:
        """Whether no more groups will come and a checkpoint holds every group that was taken."""
        return self.is_sealed and not (self.rolling_out or self.taken)


class DataPool:
    """The pool of one training run. `consumer` is the trainer; without it, no group can be
    taken."""

    def __init__(self, journal: Journal, run: Run, *, bound: int, consumer: Consumer | None = None):
        """`bound` is the most groups in the pool. A group counts from its submission until it is
        trained or dismissed."""
        check_whole("bound", bound, least=1)
        self._journal = journal
        self._run = run
        self._consumer = consumer
        self._name = TRAINER if consumer is None else consumer.name
        self.bound = bound
        self._first = 0
        self._names: set[str] | None = None
        self._submitting = asyncio.Lock()

    # --- in

    async def submit(self, tasks: Sequence[Task], *, wait: float | None = None) -> int:
        """Admits all tasks as soon as there is room for them. Returns how many were new.

        A repeated task counts as the same submission and takes no room. Raises `UsageError` for
        another content under the same id, and `PoolFull` if there is no room within `wait` seconds.
        With None, there is no limit.
        """
        clock = asyncio.get_running_loop().time
        deadline = None if wait is None else clock() + wait
        if len(tasks) > self.bound:
            raise UsageError(
                f"{len(tasks)} tasks at once are more than the pool holds ({self.bound}): submit "
                "them in parts"
            )
        while True:
            seen = self._journal.changes.count
            # No other submission may take the room between the look and the admission. While
            # waiting for room, the lock is free.
            async with self._submitting:
                fresh = {task.id for task in tasks} - await self._known()
                if await self._may_submit(len(fresh)):
                    added = await self._journal.admit(self._run, tasks)
                    (await self._known()).update(fresh)
                    return added
            left = POLL_SECONDS if deadline is None else deadline - clock()
            if left <= 0:
                raise PoolFull(
                    f"run {self._run.spec.name!r}: no room for {len(fresh)} groups after {wait:g} "
                    f"s: {self.bound} are on their way or wait to be trained"
                )
            await self._journal.changes.wait(seen, timeout=min(left, POLL_SECONDS))

    async def _may_submit(self, fresh: int) -> bool:
        if not fresh or len(await self.open()) + fresh <= self.bound:
            return True
        # A sealed run refuses new tasks, so waiting for room would not help.
        return (await self._journal.progress(self._run)).sealed

    async def _known(self) -> set[str]:
        if self._names is None:
            self._names = {entry.task for entry in await self._ledger(0)}
        return self._names

    async def seal(self) -> None:
        """Ends the stream. A last batch may be smaller; after it, a batch has `ended`. Sealing
        again is not an error."""
        await self._journal.seal(self._run)

    # --- out

    async def next_batch(
        self, step: int, *, groups: int, wait: float = 0.0, before: int | None = None
    ) -> Batch:
        """Returns whole groups that are reserved for the step, as the journal's `next_batch` does.
        The same step gets the same groups again. A sealed pool gives its remaining groups, and then
        a batch that has `ended`."""
        if self._consumer is None:
            raise UsageError("only who consumes the run takes batches: give DataPool a consumer")
        return await self._journal.next_batch(
            self._consumer, step, groups=groups, wait=wait, before=before
        )

    # --- looking

    async def open(self, *, step: int | None = None) -> list[LedgerEntry]:
        """Returns the groups that are neither trained nor dismissed, in the order of tasks. With
        `step`, groups of earlier steps count as trained. The time for a call grows only with the
        number of open groups."""
        ledger_entries = await self._ledger(self._first)
        ended = 0
        while ended < len(ledger_entries) and ledger_entries[ended].end is not GroupEnd.OPEN:
            ended += 1
        if ended:
            self._first = ledger_entries[ended - 1].ordinal + 1
        return [
            entry
            for entry in ledger_entries[ended:]
            if entry.end is GroupEnd.OPEN
            and (step is None or entry.step is None or entry.step >= step)
        ]

    async def get_last_step(
        self, trajectory: TrajectoryKey | str, channel: PoolChannel | str = PoolChannel.TRAINING
    ) -> LastStep | None:
        """Returns the last durable step of a trajectory, which may still be running; None before
        its first step. `trajectory` is RUN/TASK/SAMPLE. Raises `UsageError` if the channel has no
        such trajectory."""
        row = await self._find(str(trajectory), as_declared("channel", channel, PoolChannel))
        records = await self._journal.history(row.id)
        history = History(records)
        live = {step.path: step for step in history.generations}
        paths = (r.path for r in reversed(records) if isinstance(r, Generated) and r.path in live)
        path = next(paths, None)
        if path is None:
            return None
        step = live[path]
        return LastStep(
            trajectory=str(row.key),
            path=path,
            ids=list(unpack_ids(step.ids)),
            logprobs=list(unpack_logprobs(step.logprobs)),
            message=step.message,
            versions=step.versions,
            status=history.status,
            is_settled=row.settled,
        )

    async def _find(self, trajectory: str, channel: PoolChannel) -> TrajectoryRow:
        for run in await self._runs(channel, trajectory):
            for row in await self._journal.trajectories(run):
                if str(row.key) == trajectory:
                    return row
        raise UsageError(
            f"there is no trajectory {trajectory!r} in the channel {channel}: name it as "
            "RUN/TASK/SAMPLE, and a validation's under its own channel"
        )

    async def _runs(self, channel: PoolChannel, trajectory: str) -> list[Run]:
        name = self._run.spec.name
        if channel is PoolChannel.TRAINING:
            return [self._run] if trajectory.startswith(f"{name}/") else []
        if not trajectory.startswith(f"{name}{HELD_OUT}"):
            return []
        rows = [row for row in await self._journal.runs() if trajectory.startswith(f"{row.name}/")]
        stored_runs = [await self._journal.find_run(row.name) for row in rows]
        return [run for run in stored_runs if run is not None]

    async def stats(self) -> PoolStats:
        """Counts the groups of the pool. The time for a call grows with the number of all groups of
        the run."""
        entries = await self._ledger(0)
        ends = Counter(entry.end for entry in entries)
        steps = Counter(entry.reason for entry in entries if entry.end is GroupEnd.OPEN)
        reasons = Counter(entry.reason for entry in entries if entry.end is GroupEnd.DISMISSED)
        return PoolStats(
            bound=self.bound,
            admitted=len(entries),
            rolling_out=steps["rolling out"],
            ready=steps[READY],
            taken=steps["taken"],
            trained=ends[GroupEnd.TRAINED],
            dismissed=dict(sorted(reasons.items())),
            is_sealed=(await self._journal.progress(self._run)).sealed,
        )

    async def _ledger(self, since: int) -> list[LedgerEntry]:
        return await self._journal.ledger(self._run, self._name, since=since)
