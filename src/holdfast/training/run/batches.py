"""Batches: tasks go in, whole groups that are settled come out, each to exactly one step.

The order of tasks is a pure function of the seed, so that nothing has to be saved: whenever all
that was admitted is settled and a batch is not whole, what is missing is admitted. A resumed run
comes to the same batches as one that was never stopped.
"""

from collections.abc import Sequence

from msgspec import Struct

from holdfast.engine.export.export import history_of
from holdfast.journal.journal import Batch, Consumer, Journal, TrajectoryRow
from holdfast.records.epochs import EpochStream
from holdfast.records.errors import HoldfastError, UsageError
from holdfast.records.group import Dismissal
from holdfast.records.run import Run
from holdfast.records.samples.sample import samples_of
from holdfast.training.advantages import is_informative
from holdfast.training.batch import (
    TrainedTrajectory,
    TrainingGroup,
    check_trainable,
)

WAIT_SECONDS = 1.0
"""After which a consumer looks whether something is missing; what is settled wakes it at once."""


FUTILE_DRAWS = 4
"""How often the groups of a step may be drawn anew because none is valid."""


class NothingRewarded(HoldfastError):
    """No trajectory of a step has a reward: there is nothing to learn from."""


class NothingValid(HoldfastError):
    """Rollouts fail one after the other: no batch will ever be whole."""


class StepBatch(Struct, frozen=True):
    """The groups of one step, in the order of their tasks."""

    groups: tuple[TrainingGroup, ...]
    dismissed: tuple[TrainingGroup, ...]
    """Those that were uninformative, and replaced as far as the bound allowed."""
    trajectories: int
    """Members of all of these groups."""
    failed: int
    """Members without a valid outcome; in no loss and no baseline."""

    @property
    def drawn(self) -> int:
        """Groups that were sampled for it."""
        return len(self.groups) + len(self.dismissed)

    @property
    def informative(self) -> int:
        return sum(is_informative(group.rewards) for group in self.groups)

    @property
    def rewards(self) -> list[float]:
        """Of everything that was sampled: those of the informative groups alone would say nothing
        of the policy."""
        groups = (*self.groups, *self.dismissed)
        return [r for group in groups for r in group.rewards if r is not None]


class Batches:
    """The batches of one consumer of one run."""

    def __init__(
        self,
        journal: Journal,
        consumer: Consumer,
        stream: EpochStream,
        *,
        groups: int,
        dynamic: bool,
        max_draws: int,
    ):
        self._journal = journal
        self._consumer = consumer
        self._stream = stream
        self._groups = groups
        self._dynamic = dynamic
        self._max_draws = max_draws

    async def of_step(self, step: int) -> StepBatch:
        """Waits until there is a whole batch for `step`. With `dynamic`, uninformative groups are
        dismissed and replaced, up to the bound; then the step gets what there is."""
        dismissed: list[TrainingGroup] = []
        counted = [0, 0]
        loaded: dict[str, TrainingGroup] = {}
        while True:
            rows = await self._whole_batch(step)
            for members in rows:
                name = members[0].key.task
                if name not in loaded:
                    loaded[name] = await self._load(members)
                    counted[0] += len(members)
                    counted[1] += len(members) - len(loaded[name].trajectories)
            groups = [loaded[members[0].key.task] for members in rows]
            equal = [group for group in groups if not is_informative(group.rewards)]
            if not self._dynamic or not equal:
                break
            await self._journal.dismiss(
                self._consumer, [group.task for group in equal], reason=Dismissal.UNINFORMATIVE
            )
            dismissed += equal
            groups = [group for group in groups if is_informative(group.rewards)]
            if len(dismissed) + len(groups) >= self._groups * self._max_draws:
                break
        return StepBatch(tuple(groups), tuple(dismissed), counted[0], counted[1])

    async def _whole_batch(self, step: int) -> list[tuple[TrajectoryRow, ...]]:
        """In the order of tasks: what was settled first is a matter of timing."""
        wait, drawn = 0.0, 0
        while True:
            progress = await self._journal.progress(self._consumer.run)
            batch = await self._next(step, wait=wait)
            if batch.groups:
                return sorted(batch.groups, key=lambda members: members[0].ordinal)
            wait = WAIT_SECONDS
            if batch.ended:
                raise UsageError(
                    f"run {self._consumer.run.spec.name!r} is sealed, and has nothing for step "
                    f"{step}: give another --run"
                )
            if progress.settled == progress.planned:
                drawn += batch.missing
                self._check_draws(drawn, progress.failed)
                await self._admit(
                    batch.missing, progress.planned // self._consumer.run.spec.samples
                )

    def _check_draws(self, drawn: int, failed: int) -> None:
        if drawn > self._groups * (1 + FUTILE_DRAWS):
            name = self._consumer.run.spec.name
            raise NothingValid(
                f"run {name!r}: {drawn - self._groups} groups in a row had too few valid members "
                f"({failed} trajectories failed); `holdfast report {name}` says why"
            )

    async def _next(self, step: int, *, wait: float) -> Batch:
        return await self._journal.next_batch(self._consumer, step, groups=self._groups, wait=wait)

    async def _admit(self, count: int, admitted: int) -> None:
        await self._journal.admit(self._consumer.run, self._stream.draw(admitted, count))

    async def _load(self, members: Sequence[TrajectoryRow]) -> TrainingGroup:
        task = members[0].key.task
        found = []
        for member in members:
            if not member.status.is_outcome:
                continue
            history = await history_of(self._journal, member)
            samples = samples_of(history, task=task, group=task, sample=member.key.sample)
            for sample in samples:
                check_trainable(sample)
            found.append(TrainedTrajectory(str(member.key), history.reward, tuple(samples)))
        return TrainingGroup(task, tuple(found))


def check_rewarded(batch: StepBatch, run: Run) -> None:
    """Raises where nothing was scored: training would go on for ever without a gradient."""
    if batch.drawn and not batch.rewards:
        raise NothingRewarded(
            f"run {run.spec.name!r}: no trajectory of this step has a reward; give a scorer "
            "(`def score(trajectory)` beside the rollout, or --scorer), or return the reward"
        )
