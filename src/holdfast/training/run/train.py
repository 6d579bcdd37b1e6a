"""`holdfast.train`: trains a model on a rollout, or goes on with a training that was interrupted.

One process: the engine rolls out, the trainer takes what is settled, and the embedded engine, a
child process, serves the weights in force. With several ranks, this process is the first: it alone
has the journal, the engines and the folder, and the others compute.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct, structs

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
from holdfast.journal.journal import Consumer, Journal, keep_renewing
from holdfast.journal.process import this_process
from holdfast.policy.rendering.reasoning_effort import renderer_at
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
from holdfast.training.ranks.launch import check_ranks
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
from holdfast.training.run.evaluation import evaluate, recorded_reward
from holdfast.training.run.folder import (
    check_disk,
    name_full_disk,
    use_folder,
    use_journal,
)
from holdfast.training.run.loop import (
    Engines,
    Evaluate,
    Recorded,
    Restored,
    TrainingLoop,
    TrainingState,
    in_thread,
)
from holdfast.training.run.metrics import (
    OpenTrackers,
    Tracker,
    TrainingMetrics,
)
from holdfast.training.run.open_training import (
    adopt_code,
    begin_record,
    find_lost_versions,
    open_again,
    open_training,
    retry_failed,
    rewind,
)
from holdfast.training.run.progress import TrainingProgress
from holdfast.training.run.ranks import join_ranks, until_death
from holdfast.training.run.result import TrainingReport, report_of
from holdfast.training.run.serving import MODEL, TrainingEngines
from holdfast.training.run.trackers import check_tracker, open_tracker
from holdfast.training.settings import (
    TrainingRecord,
    TrainingSettings,
    training_settings_from,
)
from holdfast.training.trainer import Trainer

Tasks = object
"""Whatever `holdfast.read_tasks` takes: a path, a name, a list, a function."""
POLL_SECONDS = 0.1
OpenBatches = Callable[[Journal, Consumer, EpochStream, TrainingSettings], BatchSource]


def open_batches(
    journal: Journal, consumer: Consumer, stream: EpochStream, settings: TrainingSettings
) -> BatchSource:
    """One batch after the other, each sampled by the newest weights."""
    return Batches(
        journal,
        consumer,
        stream,
        groups=settings.groups,
        dynamic=settings.dynamic,
        max_draws=settings.max_draws,
    )


class Assembly(Struct, frozen=True):
    """What a training is put together from."""

    open_batches: OpenBatches = open_batches
    rolls_out: bool = True
    """False: another process works on the run."""
    mixes_versions: bool = False
    """Whether a trajectory may be sampled with several versions of the weights."""


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
    """Trains `model`, a Hugging Face folder (the tiny one of ours), and keeps everything in `out`.

    The same call again goes on from the newest checkpoint. `tasks` and `eval_tasks` are whatever
    `holdfast.read_tasks` takes, `columns` as there, and of `tasks` the first `limit`; `journal` is
    one or the path of one. `policy` are the addresses of
    engines that serve the model and take new weights; none: the embedded engine. `settings`
    may be a dict of what `TrainingSettings.of` takes. `trackers` are names (`wandb`, `trackio`,
    `tensorboard`) or trackers of your own. `retry_failed` tries again what failed for good, but for
    groups that were trained or given out. Raises `UsageError` for bad input before anything is
    sampled or written.
    """
    require("training", extra="train")
    check_arguments(journal, loss=loss)
    settings = training_settings_from(settings)
    for tracker in trackers:
        if isinstance(tracker, str):
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
    return await train_plan(
        plan,
        settings,
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
        open_trackers=lambda run, lines: [
            open_tracker(each, run=run, folder=Path(out), lines=lines)
            if isinstance(each, str)
            else each
            for each in trackers
        ],
        report=report,
        stop=stop or Stop(),
        retries_failed=retry_failed,
        assembly=assembly or Assembly(),
    )


async def _read_held_out(tasks: "Tasks", columns: Mapping[str, str] | None) -> list[Task]:
    """There may be none."""
    is_none = isinstance(tasks, list | tuple) and not tasks
    return [] if is_none else await load_tasks(tasks, columns=columns)


async def train_plan(
    plan: RunPlan,
    settings: TrainingSettings,
    *,
    journal: Journal | Path | str,
    out: Path,
    model: Path,
    address: EngineAddress,
    eval_tasks: Sequence[Task],
    loss: Loss | None,
    open_trackers: OpenTrackers,
    report: Callable[[str], None],
    stop: Stop,
    progress: TrainingProgress | None = None,
    retries_failed: bool = False,
    assembly: Assembly | None = None,
) -> TrainingReport:
    """`train` for a run that is planned already. Trackers are opened when everything is checked."""
    check_training(plan, settings, model=model, has_engine=not address.urls)
    plan = await plan.bind_scorer()
    if shared := describe_shared(plan.tasks, eval_tasks):
        report(shared)
    work = _Training(
        plan,
        EpochStream(plan.tasks, seed=settings.seed),
        settings,
        open_journal=partial(use_journal, journal),
        folder=out,
        model=model,
        address=address,
        report=report,
        progress=progress or TrainingProgress(),
        stop=stop,
        retries_failed=retries_failed,
        assembly=assembly or Assembly(),
    )
    with use_folder(out), name_full_disk(out):
        return await work.run(open_trackers, eval_tasks, loss)


def check_training(
    plan: RunPlan, settings: TrainingSettings, *, model: Path, has_engine: bool
) -> None:
    """Raises `UsageError` for what no engine and no checkpoint is needed to see. `has_engine`:
    whether the embedded one is to be on this machine, too."""
    check_sampling(plan.spec.sampling)
    plan.check_rewarded()
    plan.processor.check_setup()
    for folder in (model, *([settings.reference] if settings.reference else [])):
        check_model(folder)
    check_stop_token_ids(plan.spec.sampling, model)
    check_device(settings.device)
    check_ranks(settings.ranks, settings.device, gpus=torch.cuda.device_count())
    check_batch(plan.tasks, settings.groups)
    check_memory(model, settings, has_engine=has_engine)


class _Training:
    """One call of `train`."""

    def __init__(
        self,
        plan: RunPlan,
        stream: EpochStream,
        settings: TrainingSettings,
        *,
        open_journal: Callable[[bool], AbstractAsyncContextManager[Journal]],
        folder: Path,
        model: Path,
        address: EngineAddress,
        report: Callable[[str], None],
        progress: TrainingProgress,
        stop: Stop,
        retries_failed: bool,
        assembly: Assembly,
    ):
        renderer = renderer_for(model)
        renderer_at(renderer, plan.spec.sampling)  # Raises for what it cannot write.
        spec = structs.replace(plan.spec, model=MODEL, renderer=renderer.name)
        self._plan = structs.replace(plan, spec=spec)
        self._stream = stream
        self._settings = settings
        self._journal: Journal
        self._renewing: asyncio.Task[None]
        self._record: TrainingRecord
        self._open_journal = open_journal
        self._folder = folder
        self._model = model
        self._report = report
        self._progress = progress
        self._engines = TrainingEngines(
            self._plan,
            settings,
            model=model,
            renderer=renderer,
            address=address,
            folder=folder,
            progress=progress,
            report=report,
        )
        self._stop = stop
        self._retries_failed = retries_failed
        self._assembly = assembly

    async def run(
        self,
        open_trackers: OpenTrackers,
        held_out: Sequence[Task],
        loss: Loss | None,
    ) -> TrainingReport:
        async with join_ranks(self._settings, self._folder, self._progress) as ranks:
            return await self._run(ranks, open_trackers, held_out, loss)

    async def _run(
        self,
        ranks: RankGroup,
        open_trackers: OpenTrackers,
        held_out: Sequence[Task],
        loss: Loss | None,
    ) -> TrainingReport:
        state = await in_thread(self._load, loss, ranks)
        restored = await in_thread(state.restore)
        if not restored.step:
            check_disk(self._folder, state.bytes_on_disk)
        opening = self._open_journal(restored.step > 0)
        async with self._engines.connected(), opening as self._journal:
            journal, spec = self._journal, self._plan.spec
            run = await open_training(
                journal, spec, restored, settings=self._settings, folder=self._folder
            )
            async with self._subscribed(run) as consumer:
                newest = newest_of(await journal.versions(run))
                trained = newest.step if newest else 0
                await self._begin_record(state, run, restored, trained)
                if newest is not None:  # Engines may have it, or be started with it.
                    state.in_use = lambda: {newest.name}
                await rewind(
                    journal,
                    consumer,
                    restored,
                    trained=trained,
                    folder=self._folder,
                    report=self._report,
                )
                consumer = await adopt_code(journal, consumer, spec, report=self._report)
                await open_again(journal, run, steps=self._settings.trainer.steps)
                metrics = TrainingMetrics(self._folder, report=self._report)
                metrics.rewind(restored.step)
                metrics.follow(open_trackers(run, metrics.lines()))
                try:
                    stopped = await self._train(state, consumer, metrics, held_out, trained)
                    assert state.version is not None, "it has a name before it is trained"
                    return report_of(
                        spec.name,
                        metrics,
                        folder=self._folder,
                        model=state.version.path,
                        stopped=stopped,
                    )
                finally:
                    metrics.close()

    async def _train(
        self,
        state: TrainingState,
        consumer: Consumer,
        metrics: TrainingMetrics,
        held_out: Sequence[Task],
        trained: int,
    ) -> str:
        """Why it stopped early; "" when it did not. `trained`: the last step that the run has a
        version of."""
        done = state.trainer.step_number
        await state.name_weights(self._journal, consumer)
        is_evaluated = not held_out or "eval_reward" in metrics.lines().get(done, {})
        if done >= self._settings.trainer.steps and is_evaluated:
            await self._journal.seal(consumer.run)
            self._report(f"all {done} steps are trained: nothing is left to do")
            return ""  # No engine is started for a training that is over.
        loop = TrainingLoop(
            state,
            self._assembly.open_batches(self._journal, consumer, self._stream, self._settings),
            self._settings,
            journal=self._journal,
            consumer=consumer,
            trained_before=trained,
            recorded=self._recorded(held_out) if held_out else None,
            metrics=metrics,
            progress=self._progress,
            report=self._report,
        )
        training = asyncio.create_task(loop.work(done), name="training")
        watching = asyncio.create_task(until_death(state.trainer.ranks), name="the other ranks")
        work = _Work(consumer.run, loop, training, watching)
        ending = None
        try:
            await self._stop.wait_or(training, loop.wants_engines, self._renewing, watching)
            if loop.wants_engines.done() and not self._stop.requested:
                ending = await self._beside_rollouts(work, state, held_out)
        finally:
            is_over = await self._end(work)
        if ending is not None and ending.fatal is not None:
            raise ending.fatal
        for task in (watching, self._renewing, training):
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error
        return "" if is_over else self._stop.reason

    def _load(self, loss: Loss | None, ranks: RankGroup) -> TrainingState:
        settings = self._settings
        trainer = Trainer(
            self._model,
            settings.trainer,
            device=settings.device,
            dtype=getattr(torch, settings.dtype),
            lora=settings.lora,
            reference=settings.reference,
            gradient_checkpointing=settings.gradient_checkpointing,
            loss=policy_loss if loss is None else checked_loss(loss),
            loss_file=loss_file(loss) if loss is not None and ranks.size > 1 else "",
            seed=settings.seed,
            ranks=ranks,
        )
        if why := trainer.network.why_sequential:
            self._report(f"sequences go one at a time, which is slower: {why}")
        if why := trainer.network.why_slow:
            self._report(f"training is slower than it could be: {why}")
        name = self._plan.spec.name
        return TrainingState(trainer, settings, folder=self._folder, run=name)

    async def _begin_record(
        self, state: TrainingState, run: Run, restored: Restored, trained: int
    ) -> None:
        self._record = await begin_record(
            self._journal,
            run,
            restored,
            settings=self._settings,
            trained=trained,
            folder=self._folder,
        )
        state.folder_number = self._record.folder
        await self._write_record(run)

    async def _write_record(self, run: Run) -> None:
        command = self._plan.spec.command
        await self._journal.annotate_run(run, command=command, training=self._record.text)

    async def _catch_up(self, run: Run) -> None:
        """What the run had been trained on before is trained again."""
        if self._record.is_catching_up:
            self._record = structs.replace(self._record, is_catching_up=False)
            await self._write_record(run)

    @asynccontextmanager
    async def _subscribed(self, run: Run) -> AsyncIterator[Consumer]:
        """The second trainer of a run is refused, also while this one's engine starts."""
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

    async def _beside_rollouts(
        self, work: "_Work", state: TrainingState, held_out: Sequence[Task]
    ) -> Ending | None:
        """Trains while the engine rolls out; how that ended."""
        if self._retries_failed:
            await retry_failed(self._journal, work.run, report=self._report)
        assert state.version is not None, "weights have a name before they are served"
        async with self._engines.serve(state.version) as (connection, publish, sync):
            state.in_use = sync.in_use
            await self._catch_up(work.run)
            work.loop.use(Engines(publish, self._evaluation(connection, held_out)))
            rollouts = self._roll_out(work.run, connection, state.version.name)
            rolling = asyncio.create_task(rollouts, name="rollouts")
            try:
                await self._stop.wait_or(work.training, rolling, self._renewing, work.watching)
                if _succeeded(rolling) and not self._stop.requested:
                    # Of a sealed run nothing is rolled out; what is recorded may still be trained.
                    await self._stop.wait_or(work.training, self._renewing, work.watching)
            finally:
                is_over = await self._end(work)
                if not is_over and not self._stop.spent:  # Then what is in flight is paid for.
                    self._stop.request("the trainer has ended")
                ending = await rolling
        return ending

    async def _end(self, work: "_Work") -> bool:
        """Ends what is under way, and seals the run if all steps are trained; whether they are."""
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
        """`version` is in force."""
        if not self._assembly.rolls_out:
            await self._until_sealed(run)
            return None
        lost: Collection[str] = ()
        if not self._assembly.mixes_versions:
            lost = await find_lost_versions(self._journal, run, version, report=self._report)
        rollouts = self._plan.engine(
            run,
            self._journal,
            connection,
            stop=self._stop,
            progress=self._progress,
            lost_versions=lost,
        )
        return await rollouts.work()

    async def _until_sealed(self, run: Run) -> None:
        """Another process works on the run; this one has an end to wait for, too."""
        changes = self._journal.changes
        while not self._stop.requested:
            seen = changes.count
            if (await self._journal.progress(run)).sealed:
                return
            await changes.wait(seen, timeout=POLL_SECONDS)

    def _recorded(self, tasks: Sequence[Task]) -> Recorded:
        return partial(
            recorded_reward,
            self._plan,
            tasks,
            journal=self._journal,
            samples=self._settings.eval_samples,
            max_tokens=self._settings.eval_max_tokens,
        )

    def _evaluation(self, connection: Connection, tasks: Sequence[Task]) -> Evaluate:
        return partial(
            evaluate,
            self._plan,
            tasks,
            journal=self._journal,
            connection=connection,
            samples=self._settings.eval_samples,
            deadline=self._settings.eval_deadline,
            max_tokens=self._settings.eval_max_tokens,
            progress=self._progress,
            report=self._report,
        )


class _Work(Struct, frozen=True):
    """The tasks of a training that is under way."""

    run: Run
    loop: TrainingLoop
    training: "asyncio.Task[None]"
    watching: "asyncio.Task[None]"
    """Ends when another rank has died."""


async def _until_saved(loop: TrainingLoop, training: "asyncio.Task[None]") -> None:
    """A step that is under way becomes a checkpoint, and is committed."""
    while loop.is_stepping and not training.done():
        await asyncio.wait({training}, timeout=POLL_SECONDS)


def _succeeded(task: "asyncio.Task[Any]") -> bool:
    return task.done() and not task.cancelled() and task.exception() is None
