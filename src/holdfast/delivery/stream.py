"""A run that a trainer asks for rollouts, step by step. Plug-ins are built on it.

The trainer names the tasks of each step. Holdfast admits these tasks, rolls them out, scores them,
and reserves their groups for the step in the ledger. If the trainer repeats a step, the answer
comes from the journal: nothing is generated twice, and trajectories that were unfinished when the
process died continue from their last durable turn.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import msgspec
from msgspec import Struct, structs

from holdfast import crashpoint
from holdfast.convert.experts import load_experts
from holdfast.delivery.settled_groups import SettledGroups
from holdfast.delivery.thread import BackgroundTask
from holdfast.engine.connect import Connection
from holdfast.engine.export.export import history_of
from holdfast.engine.open_run import RunChanged
from holdfast.engine.running.run_plan import NO_CODE, RunPlan, plan_run
from holdfast.engine.scoring.scorer import GroupScorer, PointScorer, Scorer
from holdfast.engine.settings import Settings
from holdfast.engine.stop import Stop
from holdfast.journal.process import this_process
from holdfast.journal.sql.journal import Journal, keep_renewing
from holdfast.journal.types import Batch, Consumer, GroupEnd, LedgerEntry, TrajectoryRow
from holdfast.records.errors import HoldfastError, UsageError
from holdfast.records.group import GroupPolicy
from holdfast.records.run import Run
from holdfast.records.samples.sample import Sample, placeholder
from holdfast.records.samples.summary import last_failure
from holdfast.records.sampling import Sampling
from holdfast.records.task import Task
from holdfast.records.trajectory import Status
from holdfast.rollout.processors.processor import as_processor, fingerprinted
from holdfast.training.batch import TrainingGroup, load_group

_log = logging.getLogger("holdfast.delivery")
LEASE = "the trainer's lease"
SUPERSEDED = "superseded: the trainer asked for other tasks in this step"


class NothingToTrain(HoldfastError):
    """Raised when no group of a step has a valid member."""


class StepGroup(Struct, frozen=True):
    """The samples of one task of a step."""

    task: Task
    samples: tuple[Sample, ...]
    """The samples of the valid members, in order. Each member may have several branches."""
    size: int
    experts: Any = msgspec.field(default_factory=dict)
    """The routed experts of the samples (`load_experts`), if the run asks for them."""

    def filled(self) -> list[Sample]:
        """Returns the samples, with a placeholder for each member that failed."""
        present = {sample.sample for sample in self.samples}
        missing = [number for number in range(self.size) if number not in present]
        stand_ins = [
            placeholder(task=self.task.id, group=self.task.id, sample=number) for number in missing
        ]
        return sorted((*self.samples, *stand_ins), key=lambda sample: sample.sample)


Trained = Sequence[tuple[str, int]]
"""Pairs of a group, named by its task, and the step in which it was trained."""
Connect = Callable[[Journal, Consumer | None], AbstractAsyncContextManager[Connection]]
"""Makes the policy available. It is called once the run is open, before anything is sampled."""


def plan_stream(
    name: str,
    rollout: object,
    scorer: PointScorer | GroupScorer | None,
    *,
    model: str,
    renderer: str,
    samples: int,
    sampling: Sampling,
    seed: int | None = None,
    group: GroupPolicy | None = None,
    settings: Settings | None = None,
) -> RunPlan:
    """Plans a run whose tasks the trainer gives later. `model` is the name under which the training
    is recorded, because trainers do not say which weights their engines have."""
    plan = plan_run(
        name,
        tasks=(),
        processor=as_processor(rollout),
        rollout=fingerprinted(rollout),
        scorer=None if scorer is None else Scorer(scorer),
        scorer_code=NO_CODE if scorer is None else fingerprinted(scorer),
        samples=samples,
        sampling=sampling,
        seed=seed,
        group=group,
        settings=settings,
    )
    spec = structs.replace(plan.spec, model=model, renderer=renderer)
    return structs.replace(plan, spec=spec)


class RolloutStream:
    """A run with at most one consumer. Call `open`, then `roll_out` for each step, then `close`."""

    def __init__(
        self,
        plan: RunPlan,
        connect: Connect,
        *,
        journal: Callable[[], Journal],
        consumer: str | None,
        trained: bool = True,
    ):
        """Without a `consumer`, no groups are reserved for steps. Several processes may then share
        the run, and the trainer itself records what it trained. `trained=False` makes the run an
        evaluation."""
        self.plan = plan
        self._is_trained = trained
        self._connect = connect
        self._open_journal = journal
        self._name = consumer
        self._stop: Stop
        self._stack = AsyncExitStack()
        self._ordinals: dict[str, int] = {}
        self._admitting = asyncio.Lock()
        self._starting = asyncio.Lock()
        self._rolling: asyncio.Task[Any] | None = None
        self._renewing: BackgroundTask | None = None
        self._groups: SettledGroups
        self.journal: Journal
        self.run: Run
        self._consumer: Consumer | None = None
        self._committed = 0

    # --- opening and closing

    async def open(self, done: int | None, *, trained: Trained = (), begins: bool = False) -> None:
        """Opens or creates the run, and brings its ledger to the trainer's checkpoint.

        `done` is the last step that the checkpoint holds, counted from 1: 0 means none, and None
        means the last committed step. The ledger may also move forward, if the trainer was killed
        between its checkpoint and the commit. `trained` names the groups that were taken before
        their step was known and that the checkpoint holds. `begins` says that the trainer starts
        without a checkpoint. If the run was already trained, `open` then raises `UsageError` and
        leaves the ledger unchanged.
        """
        if self._is_trained:
            _check_sampling(self.plan.spec.sampling)
        try:
            self.journal = self._open_journal()
            self._stack.push_async_callback(self.journal.close)
            self.run = await self._find_run(done or 0)
            if self._name is not None:
                await self._subscribe(self._name, done, trained, begins=begins)
            self._groups = SettledGroups(self.journal, self.run, check=self.check_alive)
            self._stack.push_async_callback(self._groups.close)
            tasks = await self.journal.tasks(self.run)
            self._ordinals = {task.id: number for number, task in enumerate(tasks)}
        except BaseException:
            await self.close()
            raise

    async def _subscribe(
        self, name: str, done: int | None, trained: Trained, *, begins: bool
    ) -> None:
        consumer = await self.journal.subscribe(
            self.run, name, this_process(), lease_seconds=self.plan.settings.lease_seconds
        )
        self._consumer = consumer
        self._stack.push_async_callback(self.journal.unsubscribe, consumer)
        self._committed = consumer.committed or 0
        if begins:
            self._check_new()
        step = self._committed if done is None else done
        await self.journal.rewind(consumer, step, trained=dict(trained))
        self._committed = step
        # The task ends after the rollouts, which may take a while to end.
        self._renewing = BackgroundTask(keep_renewing(self.journal, consumer), name=LEASE)
        self._stack.push_async_callback(self._renewing.end)

    def _check_new(self) -> None:
        if self._committed:
            raise UsageError(
                f"run {self.plan.spec.name!r} of this journal was trained up to step "
                f"{self._committed}, and the trainer begins anew, with other weights: resume from "
                "the checkpoint, or give another run, or another journal"
            )

    @property
    def consumer(self) -> Consumer:
        assert self._consumer is not None, "it was opened with a consumer"
        return self._consumer

    async def _find_run(self, done: int) -> Run:
        spec = self.plan.spec
        run = await self.journal.find_run(spec.name)
        if run is None and done:
            raise UsageError(
                f"the trainer's checkpoint holds step {done} of run {spec.name!r}, which this "
                "journal does not know: give the journal that it was trained with"
            )
        if run is None:
            run = await self._create_run()
        await self._check_run(run)
        return run

    async def _check_run(self, run: Run) -> None:
        """Raises `UsageError` if the run is sealed, and `RunChanged` if it differs from the
        trainer's plan."""
        spec = self.plan.spec
        if (await self.journal.progress(run)).sealed:
            raise UsageError(
                f"run {spec.name!r} of this journal is over: it takes no more tasks; give another "
                "run, or another journal"
            )
        # The trainer supplies the tasks, step after step.
        if differences := run.spec.differences(structs.replace(spec, tasks=run.spec.tasks)):
            raise RunChanged(
                spec.name,
                differences,
                objections="a training goes on as it began; give another run, or another journal",
            )

    async def _create_run(self) -> Run:
        try:
            return await self.journal.create_run(self.plan.spec, (), sealed=False)
        except UsageError:
            # Another process of the same trainer has created it.
            run = await self.journal.find_run(self.plan.spec.name)
            if run is None:
                raise
            return run

    async def start(self) -> None:
        """Connects to the policy and begins to roll out. Later calls do nothing."""
        async with self._starting:
            if self._rolling is not None:
                return
            self._stop = Stop()
            connection = await self._stack.enter_async_context(
                self._connect(self.journal, self._consumer)
            )
            engine = self.plan.engine(self.run, self.journal, connection, stop=self._stop)
            self._rolling = asyncio.create_task(engine.work(), name="rollouts")
            self._stack.push_async_callback(self._end_rollouts, self._rolling)

    async def close(self) -> None:
        """Ends the rollouts and releases the leases. Trajectories that are not finished continue
        when the run is opened again."""
        stack, self._stack = self._stack, AsyncExitStack()
        await stack.aclose()

    async def _end_rollouts(self, rolling: asyncio.Task[Any]) -> None:
        self._stop.request("the trainer has ended")
        await asyncio.wait({rolling})
        self._rolling = None
        if not rolling.cancelled() and (error := rolling.exception()) is not None:
            _log.warning("the rollouts of run %r have failed: %s", self.run.spec.name, error)

    # --- steps

    async def is_recorded(self, tasks: Sequence[Task]) -> bool:
        """Returns whether all of the tasks are settled, so that no policy is needed."""
        if any(task.id not in self._ordinals for task in tasks):
            return False
        return not await self._groups.under_way([self._ordinals[task.id] for task in tasks])

    async def sampled_by(self, tasks: Sequence[Task]) -> set[str]:
        """Returns the names of all weights that sampled recorded turns of these tasks, including
        unfinished turns."""
        known = [self._ordinals[task.id] for task in tasks if task.id in self._ordinals]
        rows = [row for members in await self._rows(known) for row in members] if known else []
        histories = await asyncio.gather(*(history_of(self.journal, row) for row in rows))
        names: set[str] = set()
        for history in histories:
            sampled = [turn.versions for turn in history.generations]
            sampled += [draft.versions for draft in history.drafts.values()]
            names |= {span.version for spans in sampled for span in spans}
        return names

    async def roll_out(self, step: int | None, tasks: Sequence[Task]) -> list[StepGroup]:
        """Rolls out the tasks and returns their groups in the order of `tasks`. The groups are
        reserved for `step`, unless it is None (an evaluation)."""
        await self.admit(tasks)
        ordinals = [self._ordinals[task.id] for task in tasks]
        if await self._groups.under_way(ordinals):
            await self.start()
            await self._groups.wait(ordinals)
        crashpoint.reach("stream.settled")
        if step is None:
            rows = await self._rows(ordinals)
        else:
            rows = await self._reserve(step, tasks, ordinals)
        crashpoint.reach("stream.reserved")
        size = self.run.spec.samples
        members_by_task = {members[0].key.task: members for members in rows}
        groups = []
        for task in tasks:
            members = members_by_task.get(task.id)
            loaded = None if members is None else await self._load(members)
            samples = [s for t in loaded.trajectories for s in t.samples] if loaded else []
            experts = await self._experts(members or ())
            groups.append(StepGroup(task, tuple(samples), size, experts))
        if not any(group.samples for group in groups):
            names = f"task {tasks[0].id!r}" if len(tasks) == 1 else f"{len(tasks)} tasks"
            which = f"of {names if step is None else f'step {step}'}"
            raise await self.nothing_to_train(which, tasks=tasks)
        return groups

    async def _load(self, members: Sequence[TrajectoryRow]) -> TrainingGroup:
        return await load_group(self.journal, members, trained=self._is_trained)

    async def _experts(self, members: Sequence[TrajectoryRow]) -> Any:
        spec = self.run.spec
        if not spec.sampling.routed_experts:
            return {}
        return await load_experts(self.journal, spec.name, members=members)

    async def commit(self, step: int, *, trained: Trained = ()) -> None:
        """Records that the trainer's checkpoint holds every step up to `step`, and the taken groups
        in `trained`."""
        crashpoint.reach("stream.commit")
        steps: dict[int, list[str]] = {}
        for task, at in trained:
            steps.setdefault(at, []).append(task)
        for at in sorted(steps):
            await self.journal.commit(self.consumer, at, groups=steps[at])
        if step > 0:
            await self.journal.commit(self.consumer, step)
            self._committed = max(self._committed, step)
        crashpoint.reach("stream.committed")

    async def rewind(self, step: int) -> int:
        """Brings the ledger back to the checkpoint of `step`. Groups of later steps are delivered
        again."""
        if not step:
            self._check_new()
        returned = await self.journal.rewind(self.consumer, step)
        self._committed = step
        return returned

    async def ledger(self, *, since: int = 0) -> list[LedgerEntry]:
        return await self.journal.ledger(self.run, self.consumer.name, since=since)

    async def dismissals(self, *, since: int) -> Counter[str]:
        """Counts the dismissed groups from ordinal `since` on, by the reason of their dismissal. A
        group that waits for a member is not counted."""
        entries = await self.ledger(since=since)
        return Counter(entry.reason for entry in entries if entry.end is GroupEnd.DISMISSED)

    async def admit(self, tasks: Sequence[Task]) -> None:
        """Adds the tasks to the run; they are rolled out once `start` was called. Admitting a task
        twice changes nothing."""
        await self.journal.admit(self.run, tasks)
        # One task at a time: the next one finds the numbers that this one has read.
        async with self._admitting:
            if any(task.id not in self._ordinals for task in tasks):
                await self._read_ordinals()
        crashpoint.reach("stream.admitted")

    async def _read_ordinals(self) -> None:
        """Reads the ordinals of all tasks that are not known yet, including tasks that a cancelled
        call admitted."""
        total = (await self.journal.progress(self.run)).planned // self.run.spec.samples
        numbers = range(len(self._ordinals), total)
        tasks = await self.journal.tasks(self.run, ordinals=numbers)
        self._ordinals |= {task.id: n for n, task in zip(numbers, tasks, strict=True)}

    def check_alive(self) -> None:
        """Raises the error that ended the rollouts or took the lease, if there is one."""
        if self._renewing is not None:
            self._renewing.check()
        if self._rolling is not None and self._rolling.done():
            ending = self._rolling.result()
            raise ending.fatal or HoldfastError(f"the rollouts have ended: {ending.stopped}")

    async def _reserve(
        self, step: int, tasks: Sequence[Task], ordinals: Sequence[int]
    ) -> Sequence[tuple[TrajectoryRow, ...]]:
        """Reserves the settled, kept groups of these tasks for the step. Groups of other tasks,
        which an earlier process of the trainer reserved for the same step, are dismissed."""
        names = {task.id for task in tasks}
        wanted = len(tasks)
        while wanted:
            batch: Batch = await self.journal.next_batch(
                self.consumer, step, groups=wanted, before=max(ordinals) + 1
            )
            if not batch.groups:
                wanted -= batch.missing
                continue
            task_ids = [members[0].key.task for members in batch.groups]
            if others := [name for name in task_ids if name not in names]:
                await self.journal.dismiss(self.consumer, others, reason=SUPERSEDED)
                continue
            return batch.groups
        return ()

    async def _rows(self, ordinals: Sequence[int]) -> Sequence[tuple[TrajectoryRow, ...]]:
        rows_by_group: dict[int, list[TrajectoryRow]] = {ordinal: [] for ordinal in ordinals}
        for row in await self.journal.trajectories(self.run, ordinals=ordinals):
            rows_by_group[row.ordinal].append(row)
        return [tuple(members) for members in rows_by_group.values()]

    async def nothing_to_train(
        self, which: str, *, tasks: Sequence[Task] | None = None
    ) -> NothingToTrain:
        """Returns the error which says that all trajectories of `tasks` failed, or of the whole run
        if `tasks` is None. The error names the reason of the last failure. `which` describes the
        trajectories in the message."""
        ordinals = None if tasks is None else [self._ordinals[task.id] for task in tasks]
        rows = await self.journal.trajectories(self.run, ordinals=ordinals)
        last = next((row for row in reversed(rows) if row.status is Status.FAILED), None)
        failure = None if last is None else last_failure(await history_of(self.journal, last))
        why = "" if failure is None else f", the last one by: {failure.line}"
        name = self.run.spec.name
        return NothingToTrain(
            f"run {name!r}: every trajectory {which} failed{why}; `holdfast report {name}` says "
            "more"
        )


def _check_sampling(sampling: Sampling) -> None:
    """Raises `UsageError` for a sampling whose logprobs no trainer can compute."""
    altered = [f"{name} {getattr(sampling, name)!r:.60}" for name in sampling.altered_by]
    if not sampling.temperature > 0:
        altered.append(f"temperature {sampling.temperature:g}")
    if altered:
        raise UsageError(
            f"rollouts are sampled with {', '.join(altered)}, from a distribution that is cut or "
            "bent, and the trainer computes the logprobs of the model's own: train without"
        )
