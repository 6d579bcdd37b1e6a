"""Admits tasks, and delivers each settled group to exactly one step.

The order of tasks is a pure function of the seed, so no position must be saved. Whenever all
admitted tasks are settled and a batch is not complete, more tasks are admitted. A resumed run gets
the same batches as a run that was never stopped.
"""

import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct, field

from holdfast.engine.export.export import history_of
from holdfast.engine.options import JOURNAL
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import Batch, Consumer, TrajectoryRow
from holdfast.records.epochs import EpochStream
from holdfast.records.errors import Cause, HoldfastError, UsageError
from holdfast.records.group import Dismissal
from holdfast.records.run import Run
from holdfast.records.samples.summary import last_failure
from holdfast.records.trajectory import Status
from holdfast.training.advantages import is_informative
from holdfast.training.batch import TrainingGroup, load_group
from holdfast.training.settings import TrainingSettings

WAIT_SECONDS = 1.0
"""Seconds after which a consumer checks whether tasks are missing. A settled group ends this wait
at once."""


FUTILE_DRAWS = 4
"""How often the groups of a step may be sampled again because no group is valid."""


class NothingRewarded(HoldfastError):
    """No trajectory of a step has a reward, so the step cannot be trained."""


class NothingValid(HoldfastError):
    """Rollouts fail one after the other, so no batch will ever be complete.

    `by` names who is responsible for the last failure.
    """

    def __init__(self, message: str, *, by: Cause | None = None):
        super().__init__(message)
        self.by = by


class StepBatch(Struct, frozen=True):
    """The groups of one step, in the order of their tasks."""

    groups: tuple[TrainingGroup, ...]
    dismissed: tuple[TrainingGroup, ...]
    """The groups that were dismissed. New groups were sampled in their place, up to the limit
    `max_draws`."""
    trajectories: int
    """The number of trajectories in all of these groups."""
    failed: int
    """The number of trajectories without a valid outcome. They count in no loss and no baseline."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Further numbers measured while waiting for the batch, by the names that metrics have."""

    @property
    def drawn(self) -> int:
        """The number of groups that were sampled for the step."""
        return len(self.groups) + len(self.dismissed)

    @property
    def informative(self) -> int:
        return sum(is_informative(group.rewards) for group in self.groups)

    @property
    def sampled(self) -> tuple[TrainingGroup, ...]:
        """All groups that were sampled for the step, including dismissed ones. The trained groups
        alone would not show how good the policy is."""
        return (*self.groups, *self.dismissed)

    @property
    def rewards_by_group(self) -> list[list[float]]:
        return [[r for r in group.rewards if r is not None] for group in self.sampled]

    @property
    def rewards(self) -> list[float]:
        return [reward for rewards in self.rewards_by_group for reward in rewards]

    @property
    def metrics(self) -> dict[str, float]:
        """The mean of each of the scorer's metrics, over the trajectories that have the metric."""
        values: dict[str, list[float]] = {}
        for trajectory in (t for group in self.sampled for t in group.trajectories):
            for name, value in trajectory.metrics.items():
                values.setdefault(name, []).append(value)
        return {name: sum(values[name]) / len(values[name]) for name in sorted(values)}


RollOut = Callable[[], Awaitable[None]]
"""A function that is called before a wait for rollouts."""


async def already_rolling() -> None:
    """Does nothing. Used if rollouts have been running since the source of batches was opened."""


class BatchSource(Protocol):
    """The source of a training's batches."""

    async def of_step(self, step: int, roll_out: RollOut = already_rolling) -> StepBatch | None:
        """Waits for a complete batch for `step`. Returns None if the stream of groups ended before
        the batch was complete."""
        ...

    async def close(self) -> None:
        """Ends the background work."""
        ...


Refused = Sequence[tuple[TrainingGroup, Dismissal]]
"""Groups that are not trained, each with the reason for its dismissal."""


class Batches:
    """The batches of one consumer of one run. New tasks are admitted only when all earlier tasks
    are settled and the batch is not complete. Each task is therefore sampled with the newest
    weights."""

    def __init__(
        self,
        journal: Journal,
        consumer: Consumer,
        stream: EpochStream,
        settings: TrainingSettings,
    ):
        self._journal = journal
        self._consumer = consumer
        self._stream = stream
        self._settings = settings
        self._groups = settings.groups

    async def of_step(self, step: int, roll_out: RollOut = already_rolling) -> StepBatch | None:
        """Waits for a complete batch for `step`. With `dynamic`, groups whose rewards are all equal
        are dismissed and replaced, up to `max_draws`. After that, the step gets the groups that
        there are."""
        dismissed: list[TrainingGroup] = []
        counted = [0, 0]
        loaded: dict[str, TrainingGroup] = {}
        while True:
            rows = await self._whole_batch(step, roll_out)
            if rows is None:
                break
            for members in rows:
                name = members[0].key.task
                if name not in loaded:
                    loaded[name] = await self._load(members)
                    counted[0] += len(members)
                    counted[1] += len(members) - len(loaded[name].trajectories)
            groups = [loaded[members[0].key.task] for members in rows]
            refused = await self._refuse(groups, step=step)
            if not refused:
                break
            await self._dismiss(refused)
            dismissed += [group for group, _ in refused]
            names = {group.task for group in dismissed}
            groups = [group for group in groups if group.task not in names]
            if len(dismissed) + len(groups) >= self._groups * self._settings.max_draws:
                break
        if rows is None and not dismissed:
            return None
        kept = groups if rows is not None else []
        return StepBatch(tuple(kept), tuple(dismissed), counted[0], counted[1])

    async def close(self) -> None:
        """Does nothing: there is no background work."""

    async def _load(self, members: Sequence[TrajectoryRow]) -> TrainingGroup:
        return await load_group(self._journal, members)

    async def _refuse(self, groups: Sequence[TrainingGroup], *, step: int) -> Refused:
        """Returns the groups of a complete batch that must not be trained, each with the reason."""
        if not self._settings.dynamic:
            return ()
        equal = [group for group in groups if not is_informative(group.rewards)]
        return [(group, Dismissal.UNINFORMATIVE) for group in equal]

    async def _dismiss(self, refused: Refused) -> None:
        for reason in sorted({reason for _, reason in refused}):
            tasks = [group.task for group, why in refused if why is reason]
            await self._journal.dismiss(self._consumer, tasks, reason=reason)

    async def _whole_batch(
        self, step: int, roll_out: RollOut
    ) -> list[tuple[TrajectoryRow, ...]] | None:
        """Returns a complete batch in the order of tasks. The order in which groups settle depends
        on timing, so it is not used. Raises `UsageError` at the end of the stream; a subclass may
        return None instead."""
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
            await roll_out()
            if progress.settled == progress.planned:
                drawn += batch.missing
                if drawn > self._groups * (1 + FUTILE_DRAWS):
                    raise await self._nothing_valid(drawn, progress.failed)
                await self._admit(
                    batch.missing, progress.planned // self._consumer.run.spec.samples
                )

    async def _nothing_valid(self, drawn: int, failed: int) -> NothingValid:
        run = self._consumer.run
        rows = await self._journal.trajectories(run)
        last = next((row for row in reversed(rows) if row.status is Status.FAILED), None)
        failure = None if last is None else last_failure(await history_of(self._journal, last))
        example = "" if failure is None else f", the last one by: {failure.line}"
        return NothingValid(
            f"run {run.spec.name!r}: {drawn - self._groups} groups in a row had too few valid "
            f"members ({failed} trajectories failed{example}); "
            f"{command_for('report', run.spec.name, self._journal)} says more",
            by=None if failure is None else failure.cause,
        )

    async def _next(self, step: int, *, wait: float) -> Batch:
        return await self._journal.next_batch(self._consumer, step, groups=self._groups, wait=wait)

    async def _admit(self, count: int, admitted: int) -> None:
        await self._journal.admit(self._consumer.run, self._stream.draw(admitted, count))


def check_rewarded(batch: StepBatch, run: Run) -> None:
    """Raises `NothingRewarded` if no trajectory of the batch has a reward. Otherwise training would
    continue for ever without a gradient."""
    if batch.drawn and not batch.rewards:
        raise NothingRewarded(
            f"run {run.spec.name!r}: no trajectory of this step has a reward; give a scorer "
            "(`def score(trajectory)` beside the rollout, or --scorer) that returns one, or return "
            "the reward; until a step is trained, the same command goes on with other code"
        )


def command_for(verb: str, run: str, journal: Journal) -> str:
    """Returns the text `holdfast VERB RUN`, with the option for the journal if it needs one."""
    server = getattr(journal, "address", None)
    name = str(getattr(journal, "path", "") or getattr(server, "name", ""))
    where = f" --journal {shlex.quote(name)}" if name not in ("", JOURNAL.default) else ""
    return f"`holdfast {verb} {shlex.quote(run)}{where}`"


def train_on(model: Path, learning_rate: object, *, wanted_rate: object = None) -> str:
    """Returns advice: how to start a new training from only the weights in `model`. The advice
    names the learning rate, whose default depends on the model. `wanted_rate` is a learning rate
    that the user asked for and that was refused."""
    rate = f"{learning_rate}"
    if wanted_rate not in (None, learning_rate):
        rate = f"{wanted_rate}, or {learning_rate} as before"
    command = f"--model {shlex.quote(str(model))} --learning-rate {rate}"
    return f"start a new training from its model ({command}, another --run and --out)"
