"""`holdfast.train` trains a model on a rollout, or continues an interrupted training.

The engine rolls out, the trainer takes settled groups, and the embedded engine, a child process,
serves the newest weights. With several ranks, this process is rank 0. Only rank 0 has the journal,
the engines and the folder; the other ranks only compute.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct, field, structs

from holdfast.embedded.model.files import model_folder
from holdfast.engine.arguments import sampling_from, settings_from
from holdfast.engine.connect import Connection, EngineAddress
from holdfast.engine.open_run import TRAINER
from holdfast.engine.running.engine import Ending
from holdfast.engine.running.run_plan import NO_CODE, RunPlan, plan_run
from holdfast.engine.scoring.scorer import GroupScorer, PointScorer, Scorer
from holdfast.engine.settings import Settings
from holdfast.engine.stop import Stop
from holdfast.extras import require
from holdfast.journal.process import this_process
from holdfast.journal.sql.journal import Journal, keep_renewing
from holdfast.journal.types import Consumer
from holdfast.policy.rendering.reasoning_effort import renderer_at
from holdfast.policy.rendering.renderer import Renderer
from holdfast.policy.rendering.select import renderer_for
from holdfast.records.encoding.declared import checks_arguments
from holdfast.records.epochs import EpochStream
from holdfast.records.run import Run
from holdfast.records.samples.version import newest_of
from holdfast.records.sampling import Sampling
from holdfast.records.task import Task
from holdfast.rollout.processors.processor import as_processor, fingerprinted
from holdfast.tasks.read import load_tasks
from holdfast.training.computation import Loss
from holdfast.training.objective.losses import policy_loss
from holdfast.training.ranks.group import RankGroup
from holdfast.training.ranks.launch import check_ranks, open_ranks
from holdfast.training.run.batches import Batches, BatchSource
from holdfast.training.run.checks import (
    check_arguments,
    check_batch,
    check_device,
    check_memory,
    check_model,
    check_sampling,
    check_stop_token_ids,
    checked_loss,
    describe_shared,
    loss_file,
)
from holdfast.training.run.evaluation import HeldOut
from holdfast.training.run.folder import (
    ENGINE_LOG,
    RANKS,
    check_disk,
    name_full_disk,
    use_folder,
    use_journal,
)
from holdfast.training.run.loop import Restored, TrainingLoop, TrainingState, in_thread
from holdfast.training.run.metrics import Tracker, TrainingMetrics, TrainingReport, report_of
from holdfast.training.run.open_training import (
    adopt_code,
    begin_record,
    check_unchanged,
    find_lost_versions,
    open_again,
    open_training,
    retry_failed,
    rewind,
)
from holdfast.training.run.progress import TrainingProgress
from holdfast.training.run.serving import MODEL, TrainingEngines
from holdfast.training.run.trackers import check_tracker, open_tracker
from holdfast.training.settings import (
    TrainingRecord,
    TrainingSettings,
    training_settings_from,
)
from holdfast.training.trainer import Trainer
from holdfast.weights.records import JournalRecords

Tasks = object
"""Anything that `holdfast.read_tasks` accepts: a path, a name, a list or a function."""
POLL_SECONDS = 0.1
OpenBatches = Callable[[Journal, Consumer, EpochStream, TrainingSettings], BatchSource]


class Assembly(Struct, frozen=True):
    """The parts of a training."""

    open_batches: OpenBatches = Batches
    """Opens the source of batches. By default, the next batch is sampled only when the last one was
    trained, so that each batch is sampled with the newest weights."""
    rolls_out: bool = True
    """Whether this process samples the rollouts. If False, another process does."""
    mixes_versions: bool = False
    """Whether a trajectory may be sampled with several versions of the weights."""


class TrainingCall(Struct, frozen=True, kw_only=True):
    """The arguments of `train`, converted to Holdfast's own types."""

    plan: RunPlan
    settings: TrainingSettings
    journal: Journal | Path | str
    out: Path
    model: Path
    address: EngineAddress
    eval_tasks: Sequence[Task]
    loss: Loss | None
    trackers: Sequence[Tracker | str]
    report: Callable[[str], None]
    stop: Stop
    progress: TrainingProgress = field(default_factory=TrainingProgress)
    retries_failed: bool = False
    assembly: Assembly = Assembly()


@checks_arguments(own="journal scorer settings sampling rollout_settings loss columns")
async def train(
    rollout: object,
    *,
    tasks: "Tasks",
    journal: Journal | Path | str,
    name: str,
    out: Path | str,
    model: Path | str | None = None,
    policy: str | Sequence[str] = (),
    api_key: str | None = None,
    scorer: "PointScorer | GroupScorer | None" = None,
    eval_tasks: "Tasks" = (),
    settings: TrainingSettings | Mapping[str, object] | None = None,
    sampling: Sampling | Mapping[str, object] | None = None,
    rollout_settings: Settings | Mapping[str, object] | None = None,
    loss: Loss | None = None,
    trackers: Sequence[Tracker | str] = (),
    report: Callable[[str], None] = lambda line: None,
    stop: Stop | None = None,
    retry_failed: bool = False,
    assembly: Assembly | None = None,
    limit: int | None = None,
    columns: Mapping[str, str] | None = None,
) -> TrainingReport:
    """Trains `model`, a Hugging Face folder, and keeps everything in `out`. Without `model`, trains
    Holdfast's own tiny model.

    The same call again continues from the newest checkpoint. `tasks`, `eval_tasks` and `columns`
    are arguments of `holdfast.read_tasks`; with `limit`, only the first `limit` tasks are used.
    `journal` is a journal or its path. `policy` has the addresses of engines that serve the model
    and accept new weights; without addresses, the embedded engine starts. `settings` may be a dict
    of options of `TrainingSettings.of`. `trackers` are names (`wandb`, `trackio`, `tensorboard`) or
    tracker objects. `retry_failed` retries trajectories that failed for good, except in groups that
    were trained or given to a consumer. Raises `UsageError` for bad input before anything is
    sampled or written.
    """
    require("training", extra="train")
    check_arguments(journal, loss=loss)
    settings = training_settings_from(settings)
    for tracker in trackers:
        check_tracker(tracker)
    if loss is not None and not settings.loss:
        settings = structs.replace(settings, loss=fingerprinted(loss)[0])
    plan = plan_run(
        name,
        tasks=await load_tasks(tasks, limit=limit, columns=columns),
        processor=as_processor(rollout),
        rollout=fingerprinted(rollout),
        scorer=None if scorer is None else Scorer(scorer),
        scorer_code=NO_CODE if scorer is None else fingerprinted(scorer),
        samples=settings.samples,
        sampling=sampling_from(sampling),
        seed=settings.seed,
        group=settings.group_policy,
        settings=settings_from(rollout_settings, name="rollout_settings"),
    )
    call = TrainingCall(
        plan=plan,
        settings=settings,
        journal=journal,
        out=Path(out),
        model=await asyncio.to_thread(model_folder, model),
        address=EngineAddress(
            urls=(policy,) if isinstance(policy, str) else tuple(policy),
            api_key=api_key,
            is_trained=True,
        ),
        eval_tasks=await _read_held_out(eval_tasks, columns),
        loss=loss,
        trackers=trackers,
        report=report,
        stop=stop or Stop(),
        retries_failed=retry_failed,
        assembly=assembly or Assembly(),
    )
    return await train_plan(call)


async def _read_held_out(tasks: "Tasks", columns: Mapping[str, str] | None) -> list[Task]:
    """Returns the tasks of the evaluations, or an empty list if none were given."""
    is_none = isinstance(tasks, list | tuple) and not tasks
    return [] if is_none else await load_tasks(tasks, columns=columns)


async def train_plan(call: TrainingCall) -> TrainingReport:
    """Trains on a run that was already planned. Opens trackers only after every check has
    passed."""
    check_training(call.plan, call.settings, model=call.model, address=call.address)
    plan = await call.plan.bind_scorer()
    if shared := describe_shared(plan.tasks, call.eval_tasks):
        call.report(shared)
    renderer = renderer_for(call.model)
    renderer_at(renderer, plan.spec.sampling)  # Raises if it cannot render with these settings.
    stream = EpochStream(plan.tasks, seed=call.settings.seed)
    spec = structs.replace(plan.spec, model=MODEL, renderer=renderer.name)
    call = structs.replace(call, plan=structs.replace(plan, spec=spec))
    with use_folder(call.out), name_full_disk(call.out):
        async with join_ranks(call.settings, call.out, call.progress) as ranks:
            return await _Training(call, stream, renderer, ranks).run()


def check_training(
    plan: RunPlan, settings: TrainingSettings, *, model: Path, address: EngineAddress
) -> None:
    """Raises `UsageError` for mistakes that can be found without an engine or a checkpoint."""
    check_sampling(plan.spec.sampling)
    plan.check_rewarded()
    plan.processor.check_setup()
    for folder in (model, *([settings.reference] if settings.reference else [])):
        check_model(folder)
    check_stop_token_ids(plan.spec.sampling, model)
    check_device(settings.device)
    check_ranks(settings.ranks, settings.device, gpus=torch.cuda.device_count())
    check_batch(plan.tasks, settings.groups)
    check_memory(model, settings, address)


class _Training:
    """One call of `train`."""

    def __init__(
        self, call: TrainingCall, stream: EpochStream, renderer: Renderer, ranks: RankGroup
    ):
        self._call = call
        self._stream = stream
        self._plan = call.plan
        self._settings = call.settings
        self._report = call.report
        self._stop = call.stop
        self._ranks = ranks
        self._engines = TrainingEngines(
            call.plan,
            call.settings,
            model=call.model,
            renderer=renderer,
            address=call.address,
            log=call.out / ENGINE_LOG,
            report=call.report,
        )
        self._journal: Journal
        self._renewing: asyncio.Task[None]
        self._record: TrainingRecord

    async def run(self) -> TrainingReport:
        call, spec = self._call, self._plan.spec
        await check_unchanged(call.journal, spec, settings=self._settings, folder=call.out)
        async with AsyncExitStack() as stack:
            # Before the model is loaded, because that takes minutes and the engines may be unfit.
            await stack.enter_async_context(self._engines.connected())
            state = await in_thread(self._load)
            restored = await in_thread(state.restore)
            call.progress.is_loading = False
            if not restored.step:
                check_disk(call.out, state.bytes_on_disk)
            opening = use_journal(call.journal, restored.step > 0)
            self._journal = await stack.enter_async_context(opening)
            run = await open_training(
                self._journal, spec, restored, settings=self._settings, folder=call.out
            )
            async with self._subscribed(run) as consumer:
                trained = await self._go_back(state, run, restored, consumer)
                consumer = await adopt_code(self._journal, consumer, spec, report=self._report)
                await open_again(self._journal, run, steps=self._settings.trainer.steps)
                metrics = TrainingMetrics(call.out, report=self._report)
                metrics.rewind(restored.step)
                metrics.follow(
                    open_tracker(each, run=run, folder=call.out, lines=metrics.lines())
                    for each in call.trackers
                )
                try:
                    stopped = await self._train(state, consumer, metrics, trained)
                    assert state.version is not None, "it has a name before it is trained"
                    return report_of(
                        spec.name,
                        metrics,
                        folder=call.out,
                        model=state.version.path,
                        stopped=stopped,
                    )
                finally:
                    metrics.close()

    async def _go_back(
        self, state: TrainingState, run: Run, restored: Restored, consumer: Consumer
    ) -> int:
        """Rewinds the run and the ledger to the checkpoint. Returns the last step for which the run
        has a version of the weights."""
        journal, folder = self._journal, self._call.out
        newest = newest_of(await journal.versions(run))
        trained = newest.step if newest else 0
        self._record = await begin_record(
            journal, run, restored, settings=self._settings, trained=trained, folder=folder
        )
        state.folder_number = self._record.folder
        await self._write_record(run)
        if newest is not None:  # Engines may already have it, or are started with it.
            state.in_use = lambda: {newest.name}
        await rewind(
            journal, consumer, restored, trained=trained, folder=folder, report=self._report
        )
        return trained

    async def _train(
        self, state: TrainingState, consumer: Consumer, metrics: TrainingMetrics, trained: int
    ) -> str:
        """Trains until the last step. Returns why the training stopped early, or "" if it did not.
        `trained` is the last step for which the run has a version of the weights."""
        call, done = self._call, state.trainer.step_number
        await state.name_weights(self._journal, consumer)
        is_evaluated = not call.eval_tasks or "eval_reward" in metrics.lines().get(done, {})
        if done >= self._settings.trainer.steps and is_evaluated:
            await self._journal.seal(consumer.run)
            self._report(f"all {done} steps are trained: nothing is left to do")
            return ""  # A finished training starts no engine.
        held_out = HeldOut(self._plan, call.eval_tasks, self._settings, self._journal)
        loop = TrainingLoop(
            state,
            call.assembly.open_batches(self._journal, consumer, self._stream, self._settings),
            self._settings,
            journal=self._journal,
            consumer=consumer,
            trained_before=trained,
            on_trained_again=partial(self._note_trained_again, consumer.run),
            held_out=held_out if call.eval_tasks else None,
            metrics=metrics,
            progress=call.progress,
            report=self._report,
        )
        training = asyncio.create_task(loop.work(done), name="training")
        watching = asyncio.create_task(until_death(self._ranks), name="the other ranks")
        work = _Work(consumer, loop, training, watching)
        ending = None
        try:
            await self._stop.wait_or(training, loop.wants_engines, self._renewing, watching)
            if loop.wants_engines.done() and not self._stop.requested:
                ending = await self._beside_rollouts(work, state)
        finally:
            is_over = await self._end(work)
        if ending is not None and ending.fatal is not None:
            raise ending.fatal
        for task in (watching, self._renewing, training):
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error
        return "" if is_over else self._stop.reason

    def _load(self) -> TrainingState:
        call, settings, loss = self._call, self._settings, self._call.loss
        trainer = Trainer(
            call.model,
            settings.trainer,
            device=settings.device,
            dtype=getattr(torch, settings.dtype),
            lora=settings.lora,
            reference=settings.reference,
            gradient_checkpointing=settings.gradient_checkpointing,
            loss=policy_loss if loss is None else checked_loss(loss),
            loss_file=loss_file(loss) if loss is not None and self._ranks.size > 1 else "",
            seed=settings.seed,
            ranks=self._ranks,
        )
        network = trainer.network
        if why := network.why_sequential:
            self._report(f"sequences go one at a time, which is slower: {why}")
        if line := network.trial.limits:
            self._report(line)
        if why := trainer.network.why_slow:
            self._report(f"training is slower than it could be: {why}")
        return TrainingState(trainer, settings, folder=call.out, run=self._plan.spec.name)

    async def _write_record(self, run: Run) -> None:
        command = self._plan.spec.command
        await self._journal.annotate_run(run, command=command, training=self._record.text)

    async def _note_trained_again(self, run: Run, step: int) -> None:
        """Records that a step was trained again. Processes that sample rollouts wait for the next
        such record no longer than their patience."""
        if self._record.is_catching_up:
            self._record = structs.replace(self._record, caught_up_to=step)
            await self._write_record(run)

    async def _catch_up(self, run: Run) -> None:
        """Records that all steps that had to be trained again are trained again."""
        if self._record.is_catching_up:
            self._record = structs.replace(self._record, is_catching_up=False)
            await self._write_record(run)

    @asynccontextmanager
    async def _subscribed(self, run: Run) -> AsyncIterator[Consumer]:
        """Subscribes as the trainer of the run. From then on, a second trainer is refused, even
        while the engine of this training starts."""
        consumer = await self._journal.subscribe(
            run, TRAINER, this_process(), lease_seconds=self._plan.settings.lease_seconds
        )
        renewing = keep_renewing(self._journal, consumer)
        self._renewing = asyncio.create_task(renewing, name="the trainer's lease")
        try:
            yield consumer
        finally:
            self._renewing.cancel()
            await asyncio.wait({self._renewing})
            await self._journal.unsubscribe(consumer)

    async def _beside_rollouts(self, work: "_Work", state: TrainingState) -> Ending | None:
        """Trains while the engine rolls out. Returns how the rollouts ended."""
        if self._call.retries_failed:
            await retry_failed(self._journal, work.run, report=self._report)
        assert state.version is not None, "weights have a name before they are served"
        if not self._call.address.urls:
            self._call.progress.enter("starting the engine")
        async with self._engines.serve(
            state.version, JournalRecords(self._journal, work.run, consumer=work.consumer)
        ) as served:
            state.in_use = served.sync.in_use
            await self._catch_up(work.run)
            await work.loop.compare(served)
            work.loop.use(served)
            rollouts = self._roll_out(work.run, served.connection, state.version.name)
            rolling = asyncio.create_task(rollouts, name="rollouts")
            try:
                await self._stop.wait_or(work.training, rolling, self._renewing, work.watching)
                if _succeeded(rolling) and not self._stop.requested:
                    # A sealed run is not rolled out, but its records may still be trained.
                    await self._stop.wait_or(work.training, self._renewing, work.watching)
            finally:
                is_over = await self._end(work)
                # If the budget is spent, requests in flight are paid for.
                if not is_over and not self._stop.spent:
                    self._stop.request("the trainer has ended")
                ending = await rolling
        return ending

    async def _end(self, work: "_Work") -> bool:
        """Ends the tasks of the training, and seals the run if all steps are trained. Returns
        whether all steps are trained."""
        try:
            if is_over := _succeeded(work.training):
                await self._journal.seal(work.run)
                await self._catch_up(work.run)
            elif self._stop.requested:
                await _until_saved(work.loop, work.training)
        finally:
            for task in (work.training, work.watching):
                task.cancel()
            await asyncio.wait({work.training, work.watching})
        return is_over

    async def _roll_out(self, run: Run, connection: Connection, version: str) -> Ending | None:
        """Rolls out with the weights `version`, until the run ends or this process stops."""
        if not self._call.assembly.rolls_out:
            await self._until_sealed(run)
            return None
        lost: Collection[str] = ()
        if not self._call.assembly.mixes_versions:
            lost = await find_lost_versions(self._journal, run, version, report=self._report)
        rollouts = self._plan.engine(
            run,
            self._journal,
            connection,
            stop=self._stop,
            progress=self._call.progress,
            lost_versions=lost,
        )
        return await rollouts.work()

    async def _until_sealed(self, run: Run) -> None:
        """Waits until the run is sealed by the process that samples its rollouts, or until this
        process is asked to stop."""
        changes = self._journal.changes
        while not self._stop.requested:
            seen = changes.count
            if (await self._journal.progress(run)).sealed:
                return
            await changes.wait(seen, timeout=POLL_SECONDS)


class _Work(Struct, frozen=True):
    """The tasks of a training that is under way."""

    consumer: Consumer
    loop: TrainingLoop
    training: "asyncio.Task[None]"
    watching: "asyncio.Task[None]"
    """A task that ends when another rank dies."""

    @property
    def run(self) -> Run:
        return self.consumer.run


async def _until_saved(loop: TrainingLoop, training: "asyncio.Task[None]") -> None:
    """Waits until a step that has begun is in a durable checkpoint and committed."""
    while loop.is_stepping and not training.done():
        await asyncio.wait({training}, timeout=POLL_SECONDS)


def _succeeded(task: "asyncio.Task[Any]") -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


@asynccontextmanager
async def join_ranks(
    settings: TrainingSettings, folder: Path, progress: TrainingProgress
) -> AsyncIterator[RankGroup]:
    """Starts the ranks, before anything is loaded."""
    if settings.ranks > 1:
        progress.enter(f"starting {settings.ranks} ranks")
    opening = open_ranks(settings.ranks, settings.device, logs=folder / RANKS)
    stack = ExitStack()
    try:
        yield await in_thread(stack.enter_context, opening)
    finally:
        await in_thread(stack.close)


async def until_death(ranks: RankGroup) -> None:
    """Raises `RankDied` when a rank has died, even between two steps."""
    loop, died = asyncio.get_running_loop(), asyncio.Event()

    def notify() -> None:
        with suppress(RuntimeError):  # The loop may be closed by now.
            loop.call_soon_threadsafe(died.set)

    ranks.on_death(notify)
    await died.wait()
    ranks.check_alive()
