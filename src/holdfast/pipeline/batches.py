"""Admits the tasks of a pipeline as fast as they can be trained in time, and makes batches.

At most (max_staleness + 1) × groups are admitted but not yet trained, and they are trained in the
order of their admission. Each group is therefore trained within the bound, and no fresh group is
thrown away. A step waits for a slow task, so that slow tasks are not starved. After
`straggler_seconds`, steps go on without the slow task, and its group is trained once it is settled.

Everything is read from the journal, and the order of tasks is a pure function of the seed, so that
a restarted trainer comes to the same batches. With a staleness of 0, the batches are the same as in
a training that rolls out and trains in turn.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from msgspec import Struct, structs

from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import Consumer, LedgerEntry, TrajectoryRow
from holdfast.pipeline.other_part import OtherPart
from holdfast.pipeline.pool import READY, DataPool
from holdfast.pipeline.settings import PipelineSettings, TooOld
from holdfast.pipeline.status import StatusFile
from holdfast.records.epochs import EpochStream
from holdfast.records.errors import HoldfastError
from holdfast.records.group import Dismissal
from holdfast.records.run import MAX_TRAJECTORIES, Run
from holdfast.records.samples.version import WeightVersion
from holdfast.records.step import VersionSource
from holdfast.rollout.threads.contain import end_task, end_tasks
from holdfast.training.batch import TrainingGroup, load_group
from holdfast.training.run.batches import (
    FUTILE_DRAWS,
    WAIT_SECONDS,
    Batches,
    Refused,
    RollOut,
    StepBatch,
    already_rolling,
)
from holdfast.training.settings import TrainingSettings

Ahead = tuple[int, list[tuple[TrajectoryRow, ...]], list[TrainingGroup]]
"""A batch that is reserved and read before its step begins: the step, its rows and its groups."""
Admitted = tuple[list[LedgerEntry], bool, int]
"""The open groups, whether the stream is sealed, and how many groups were just admitted."""
LOOK_SECONDS = 0.02
"""The wait between two looks at a journal that other processes use."""


class PacedBatches(Batches):
    """The batches of one consumer, while rollouts continue beside the training."""

    def __init__(
        self,
        journal: Journal,
        consumer: Consumer,
        stream: EpochStream,
        *,
        training: TrainingSettings,
        pipeline: PipelineSettings,
        tasks: int,
        status: StatusFile | None = None,
        report: Callable[[str], None] = lambda line: None,
        rollout_patience: float | None = None,
    ):
        """`tasks` is the number of tasks in an epoch. `rollout_patience` is how many seconds a step
        waits for rollouts while nobody samples them; None if this process samples them."""
        super().__init__(journal, consumer, stream, training)
        self.pool = DataPool(
            journal, consumer.run, bound=pipeline.window(training.groups), consumer=consumer
        )
        self._pipeline = pipeline
        self._last_group = pipeline.last_group(tasks)
        self._versions = PublishedVersions(journal, consumer.run)
        self._status = status
        self._report = report
        self._clock = asyncio.get_running_loop().time
        self._rollouter = OtherPart(
            self._is_sampled,
            patience=math.inf if rollout_patience is None else rollout_patience,
            waits_for=f"for rollouts of run {consumer.run.spec.name!r}: nobody samples them; start "
            "its rollouter with the same command",
        )
        self._lags: dict[str, Lag | None] = {}
        self._passed: set[int] = set()
        """The ordinals of slow groups (stragglers) for which steps no longer wait."""
        self._stuck_since: float | None = None
        self._ready_since: dict[int, float] = {}
        self._idle = self._unused = self._too_old = 0.0
        self._ages: list[float] = []
        self._ahead: asyncio.Task[Ahead | None] | None = None
        self._loaded: dict[str, TrainingGroup] = {}
        self._admission: asyncio.Task[Admitted] | None = None

    async def of_step(self, step: int, roll_out: RollOut = already_rolling) -> StepBatch | None:
        self._lags, self._ages, self._stuck_since = {}, [], None
        before = (self._idle, self._unused, self._too_old)
        batch = await super().of_step(step, roll_out)
        is_last = step >= self._settings.trainer.steps
        if batch is not None and self._pipeline.max_staleness and not is_last:
            self._ahead = asyncio.create_task(self._look_ahead(step + 1), name="the next batch")
        if batch is None:
            self._show(step, "the stream has ended")
            return None
        self._unused += sampled_tokens(batch.dismissed)
        numbers = self._numbers(batch, before)
        self._show(step, "training", numbers)
        return structs.replace(batch, numbers=numbers)

    def _numbers(self, batch: StepBatch, before: tuple[float, float, float]) -> dict[str, float]:
        lag = widest(self._lags.get(group.task) for group in batch.groups)
        return {
            "lag_newest": 0 if lag is None else lag.newest,
            "lag_oldest": 0 if lag is None else lag.oldest,
            "idle_seconds": self._idle - before[0],
            "tokens_unused": self._unused - before[1],
            "groups_too_old": self._too_old - before[2],
            "ready_seconds": max(self._ages, default=0.0),
            "length": _length(batch.groups),
            "length_dismissed": _length(batch.dismissed),
        }

    # --- waiting

    async def _whole_batch(
        self, step: int, roll_out: RollOut
    ) -> list[tuple[TrajectoryRow, ...]] | None:
        """Waits for a whole batch, and returns its groups: the first groups, in the order of tasks,
        that are neither trained nor dismissed. Returns None if the stream has ended."""
        began, looked = self._clock(), 0.0
        if (ahead := await self._take_ahead(step)) is not None:
            self._idle += self._clock() - began
            return ahead
        tried: tuple[int, ...] | None = None
        drawn, is_first = 0, True
        self._rollouter.begin_wait()
        changes = self._journal.changes
        while True:
            seen, looked = changes.count, self._clock()
            entries, is_sealed, added = await self._admitted(step)
            drawn, is_first = drawn + (0 if is_first else added), False
            if drawn > FUTILE_DRAWS * self._groups + self.pool.bound:
                failed = (await self._journal.progress(self._consumer.run)).failed
                raise await self._nothing_valid(drawn + self._groups, failed)
            self._note(step, entries)
            before = self._before(entries, step, is_sealed=is_sealed)
            key = tuple(entry.ordinal for entry in entries)
            if before is not None and key != tried:
                batch = await self.pool.next_batch(step, groups=self._groups, before=before)
                if batch.groups or batch.ended:
                    self._idle += self._clock() - began
                    self._taken(batch.groups)
                    return sorted(batch.groups, key=lambda m: m[0].ordinal) or None
                # Some groups had too few valid members. At the next look they are gone.
                tried = key
                continue
            # Otherwise there are enough groups without the stragglers.
            if self._stuck_since is None:
                await roll_out()
            await self._rollouter.check()
            await changes.wait(seen, timeout=self._patience())
            await asyncio.sleep(max(0.0, looked + LOOK_SECONDS - self._clock()))

    async def _is_sampled(self) -> bool:
        return bool(await self._journal.live_workers(self._consumer.run))

    # --- looking ahead

    async def _look_ahead(self, step: int) -> Ahead | None:
        """Reserves and reads the batch of `step` as soon as it is whole, while the step before is
        trained. Returns None if some of its groups have too few valid members. The groups of a step
        do not depend on when they are reserved."""
        changes = self._journal.changes
        while True:
            seen, looked = changes.count, self._clock()
            entries = await self.pool.open(step=step)
            waiting = [entry for entry in entries if entry.step is None]
            due = self._due(waiting, self._groups)
            if len(due) == self._groups and all(map(_is_ready, due)):
                batch = await self.pool.next_batch(
                    step, groups=self._groups, before=due[-1].ordinal + 1
                )
                if not batch.groups:
                    # Some groups had too few valid members. The step itself handles this.
                    return None
                rows = sorted(batch.groups, key=lambda members: members[0].ordinal)
                return step, rows, [await load_group(self._journal, each) for each in rows]
            await changes.wait(seen, timeout=WAIT_SECONDS)
            await asyncio.sleep(max(0.0, looked + LOOK_SECONDS - self._clock()))

    async def _take_ahead(self, step: int) -> list[tuple[TrajectoryRow, ...]] | None:
        """Returns the batch that `_look_ahead` has reserved for `step`, or None. With such a batch,
        starts the next admission without waiting for it; it becomes durable before the next batch
        is taken."""
        task, self._ahead = self._ahead, None
        if task is None:
            return None
        if not task.done():
            await end_task(task)
        # If it failed, the step itself meets the same error and handles it.
        if task.cancelled() or task.exception() is not None or (found := task.result()) is None:
            return None
        of, rows, groups = found
        if of != step:
            return None
        await self._end_admission()
        self._admission = asyncio.create_task(self._admitted(step), name="admission")
        self._loaded = {group.task: group for group in groups}
        self._taken(rows)
        return rows

    async def close(self) -> None:
        tasks = [task for task in (self._ahead, self._admission) if task is not None]
        self._ahead = self._admission = None
        await end_tasks(tasks)
        if self._status is not None:
            with suppress(HoldfastError):  # If the journal cannot be reached, there are no numbers.
                self._status.update(self._queues(await self.pool.open()))
            self._status.update({}, doing="ended")

    async def _end_admission(self) -> None:
        task, self._admission = self._admission, None
        if task is not None:
            await task

    async def _load(self, members: Sequence[TrajectoryRow]) -> TrainingGroup:
        known = self._loaded.pop(members[0].key.task, None)
        return known or await super()._load(members)

    # --- admission

    def _patience(self) -> float:
        if self._stuck_since is None:
            return WAIT_SECONDS
        left = self._stuck_since + self._pipeline.straggler_seconds - self._clock()
        return min(WAIT_SECONDS, max(left, LOOK_SECONDS))

    async def _admitted(self, step: int) -> Admitted:
        """Admits as many tasks as there is room for. Returns the open groups, whether the stream is
        sealed, and how many groups were admitted."""
        if self._admission is not asyncio.current_task():
            await self._end_admission()
        entries = await self.pool.open(step=step)
        progress = await self._journal.progress(self._consumer.run)
        if progress.sealed:
            return entries, True, 0
        admitted = progress.planned // self._consumer.run.spec.samples
        steps_left = self._settings.trainer.steps - step + 1
        # Groups that no step needs are not sampled.
        room = min(self.pool.bound, steps_left * self._groups) - len(entries)
        if self._last_group is not None:
            room = min(room, self._last_group - admitted)
        if room > 0:
            await self._admit(room, admitted)
            entries = await self.pool.open(step=step)
        if self._last_group is not None and admitted + max(room, 0) >= self._last_group:
            await self.pool.seal()
            return entries, True, max(room, 0)
        return entries, False, max(room, 0)

    def _before(self, entries: Sequence[LedgerEntry], step: int, *, is_sealed: bool) -> int | None:
        """Returns the bound below which the ordinals of the step's groups lie, or None if the step
        must wait for a group."""
        waiting = [entry for entry in entries if entry.step is None]
        needed = self._groups - (len(entries) - len(waiting))
        if needed <= 0:
            return 0
        due = self._due(waiting, needed)
        if is_sealed and len(waiting) <= needed:
            return MAX_TRAJECTORIES if all(map(_is_ready, waiting)) else None
        if len(due) == needed and all(map(_is_ready, due)):
            return due[-1].ordinal + 1
        self._look_for_stragglers(waiting, due, needed)
        return None

    def _due(self, waiting: Sequence[LedgerEntry], needed: int) -> list[LedgerEntry]:
        due = [e for e in waiting if _is_ready(e) or e.ordinal not in self._passed]
        return due[:needed] if len(due) >= needed else list(waiting[:needed])

    def _look_for_stragglers(
        self, waiting: Sequence[LedgerEntry], due: Sequence[LedgerEntry], needed: int
    ) -> None:
        """Marks the late groups of a step, if for `straggler_seconds` enough other groups could
        have filled the step. Steps no longer wait for marked groups."""
        if sum(map(_is_ready, waiting)) < needed:
            self._stuck_since = None
            return
        if self._stuck_since is None:
            self._stuck_since = self._clock()
        waited = self._clock() - self._stuck_since
        if waited < self._pipeline.straggler_seconds:
            return
        late = [entry for entry in due if not _is_ready(entry)]
        self._passed.update(entry.ordinal for entry in late)
        self._stuck_since = None
        self._report(
            f"after {waited:.0f} s, steps go on without {', '.join(e.task for e in late)}: trained "
            "when settled"
        )
        self._journal.changes.notify()

    def _taken(self, groups: Sequence[Sequence[TrajectoryRow]]) -> None:
        now = self._clock()
        ordinals = [members[0].ordinal for members in groups]
        self._ages += [now - self._ready_since.pop(ordinal, now) for ordinal in ordinals]
        self._passed.difference_update(ordinals)

    # --- what is too old

    async def _refuse(self, groups: Sequence[TrainingGroup], *, step: int) -> Refused:
        now = await self._versions.in_force(step - 1)
        for group in groups:
            self._lags[group.task] = None if now is None else self._versions.lag(group, now)
        lags = {task: lag.oldest for task, lag in self._lags.items() if lag is not None}
        old = [g for g in groups if lags.get(g.task, 0) > self._pipeline.max_staleness]
        self._too_old += len(old)
        if self._pipeline.too_old is TooOld.TRAIN:
            return await super()._refuse(groups, step=step)
        names = {group.task for group in old}
        rest = [group for group in groups if group.task not in names]
        refused = list(await super()._refuse(rest, step=step))
        return [*((group, Dismissal.TOO_OLD) for group in old), *refused]

    # --- saying so

    def _note(self, step: int, entries: Sequence[LedgerEntry]) -> None:
        self._show(step, "waiting for rollouts", self._queues(entries))

    def _queues(self, entries: Sequence[LedgerEntry]) -> dict[str, float]:
        now = self._clock()
        for entry in entries:
            if _is_ready(entry):
                self._ready_since.setdefault(entry.ordinal, now)
        ready = [entry.ordinal for entry in entries if _is_ready(entry)]
        return {
            "groups_bound": self.pool.bound,
            "groups_open": len(entries),
            "groups_ready": len(ready),
            "groups_rolling": sum(entry.reason == "rolling out" for entry in entries),
            "oldest_ready_seconds": now - min((self._ready_since[n] for n in ready), default=now),
        }

    def _show(self, step: int, doing: str, numbers: "dict[str, float] | None" = None) -> None:
        if self._status is None:
            return
        totals = {
            "step": step,
            "steps": self._settings.trainer.steps,
            "max_staleness": self._pipeline.max_staleness,
            "idle_seconds_total": self._idle,
            "tokens_unused_total": self._unused,
            "groups_too_old_total": self._too_old,
        }
        self._status.update({**totals, **(numbers or {})}, doing=doing)


def _is_ready(entry: LedgerEntry) -> bool:
    return entry.reason == READY


def _length(groups: Sequence[TrainingGroup]) -> float:
    """Returns the mean number of sampled tokens of a trajectory. The number reveals a bias against
    long trajectories."""
    count = sum(len(group.trajectories) for group in groups)
    return sampled_tokens(groups) / count if count else 0.0


class Lag(Struct, frozen=True):
    """The age of a group says how many steps the current weights are ahead of the weights that
    sampled its newest and its oldest token."""

    newest: int
    oldest: int


class PublishedVersions:
    """The versions of a run by name, as the last call of `in_force` read them."""

    def __init__(self, journal: Journal, run: Run):
        self._journal = journal
        self._run = run
        self._known: dict[str, WeightVersion] = {}

    async def in_force(self, step: int) -> WeightVersion | None:
        """Reads the versions of the run. Returns the newest version that the optimizer step `step`
        made, or None."""
        found = await self._journal.versions(self._run)
        self._known = {version.name: version for version in found}
        made = [version for version in found if version.step == step]
        return made[-1] if made else None

    def lag(self, group: TrainingGroup, now: WeightVersion) -> Lag | None:
        """Returns the age of a group's tokens when the weights are `now`. Returns None if a token's
        version is unknown, or if no token was sampled."""
        spans = [
            span
            for trajectory in group.trajectories
            for sample in trajectory.samples
            for span in sample.version_spans
        ]
        if any(span.source is VersionSource.UNKNOWN for span in spans):
            return None
        behind = [self._behind(span.version, now) for span in spans]
        known = [number for number in behind if number is not None]
        if not known or len(known) < len(behind):
            return None
        return Lag(min(known), max(known))

    def _behind(self, name: str, now: WeightVersion) -> int | None:
        version = self._known.get(name)
        return None if version is None else max(0, now.step - version.step)


def widest(lags: Iterable[Lag | None]) -> Lag | None:
    """Returns the lag over all groups of a batch: the smallest `newest` and the largest `oldest`.
    Leaves out unknown lags; returns None if all are unknown."""
    known = [lag for lag in lags if lag is not None]
    if not known:
        return None
    return Lag(min(lag.newest for lag in known), max(lag.oldest for lag in known))


def sampled_tokens(groups: Sequence[TrainingGroup]) -> int:
    return sum(t.sampled_tokens for group in groups for t in group.trajectories)
