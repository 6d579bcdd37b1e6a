"""`holdfast.train`: trains a model on a rollout, or goes on with a training that was interrupted.

One process: the engine rolls out, the trainer takes what is settled, and the embedded engine, a
child process, serves the weights in force. With several ranks, this process is the first: it alone
has the journal, the engines and the folder, and the others compute.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct, json, structs

from holdfast.embedded.model.files import model_folder
from holdfast.engine.arguments import sampling_from, settings_from
from holdfast.engine.connect import Connection, EmbeddedEngines, EngineAddress, connect
from holdfast.engine.engine import Ending
from holdfast.engine.open_run import TRAINER
from holdfast.engine.run_plan import NO_CODE, RunPlan, plan_run
from holdfast.engine.scoring.scorer import GroupScorer, PointScorer, Scorer
from holdfast.engine.settings import Settings
from holdfast.engine.stop import Stop
from holdfast.extras import require
from holdfast.journal.journal import Consumer, Journal, keep_renewing
from holdfast.journal.process import this_process
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.rendering.reasoning_effort import renderer_at
from holdfast.policy.rendering.select import renderer_for
from holdfast.records.encoding.declared import checks_arguments
from holdfast.records.epochs import EpochStream
from holdfast.records.errors import UsageError
from holdfast.records.run import Run
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
    check_logprobs,
    check_memory,
    check_model,
    check_sampling,
    check_stop_token_ids,
    check_tokenizer,
    checked_loss,
    describe_shared,
    loss_file,
)
from holdfast.training.run.evaluation import evaluate
from holdfast.training.run.folder import (
    ENGINE_LOG,
    check_disk,
    name_full_disk,
    use_folder,
    use_journal,
)
from holdfast.training.run.loop import (
    Evaluate,
    Publish,
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
    open_again,
    open_training,
    retry_failed,
    rewind,
)
from holdfast.training.run.progress import TrainingProgress
from holdfast.training.run.ranks import join_ranks, until_death
from holdfast.training.run.result import TrainingReport, report_of
from holdfast.training.run.serving import MODEL, TrainingEngine
from holdfast.training.run.trackers import check_tracker, open_tracker
from holdfast.training.run.weights import WeightFolder, open_sync
from holdfast.training.settings import TrainingSettings, training_settings_from
from holdfast.training.trainer import Trainer
from holdfast.weights.engine_lock import hold_engines
from holdfast.weights.sync import Restart, WeightSync

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
        self._renderer = renderer
        self._stream = stream
        self._settings = settings
        self._journal: Journal
        self._renewing: asyncio.Task[None]
        self._open_journal = open_journal
        self._folder = folder
        self._model = model
        self._address = address
        self._report = report
        self._progress = progress
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
        async with self._running_engines() as running, opening as self._journal:
            journal, spec = self._journal, self._plan.spec
            run = await open_training(
                journal, spec, restored, settings=self._settings, folder=self._folder
            )
            async with self._subscribed(run) as consumer:
                await rewind(journal, consumer, restored, folder=self._folder, report=self._report)
                consumer = await adopt_code(journal, consumer, spec, report=self._report)
                await open_again(journal, run, steps=self._settings.trainer.steps)
                metrics = TrainingMetrics(self._folder, report=self._report)
                metrics.rewind(restored.step)
                metrics.follow(open_trackers(run, metrics.lines()))
                try:
                    stopped = await self._train(state, consumer, metrics, held_out, running)
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
        running: tuple[Connection, WeightSync] | None,
    ) -> str:
        """Why it stopped early; "" when it did not."""
        done = state.trainer.step_number
        version = await state.name_weights(self._journal, consumer)
        is_evaluated = not held_out or "eval_reward" in metrics.lines().get(done, {})
        if done >= self._settings.trainer.steps and is_evaluated:
            await self._journal.seal(consumer.run)
            self._report(f"all {done} steps are trained: nothing is left to do")
            return ""  # No engine is started for a training that is over.
        if self._retries_failed:
            await retry_failed(self._journal, consumer.run, report=self._report)
        async with self._served(version, running) as (connection, publish, sync):
            state.in_use = sync.in_use
            loop = TrainingLoop(
                state,
                self._assembly.open_batches(self._journal, consumer, self._stream, self._settings),
                self._settings,
                journal=self._journal,
                consumer=consumer,
                publish=publish,
                evaluate=self._evaluation(connection, held_out),
                metrics=metrics,
                progress=self._progress,
                report=self._report,
            )
            ranks = state.trainer.ranks
            return await self._beside_rollouts(consumer, connection, loop, ranks, done)

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

    @asynccontextmanager
    async def _subscribed(self, run: Run) -> AsyncIterator[Consumer]:
        """The second trainer of a run is refused, also while this one's engine starts."""
        consumer = await self._journal.subscribe(
            run, TRAINER, this_process(), lease_seconds=self._plan.settings.lease_seconds
        )
        renewing = keep_renewing(self._journal, consumer)
        self._renewing = asyncio.create_task(renewing, name="the trainer's lease")
        try:
            command, training = self._plan.spec.command, json.encode(self._settings.identity)
            await self._journal.annotate_run(run, command=command, training=training.decode())
            yield consumer
        finally:
            self._renewing.cancel()
            await asyncio.wait({self._renewing})
            await self._journal.unsubscribe(consumer)

    @asynccontextmanager
    async def _running_engines(self) -> AsyncIterator[tuple[Connection, WeightSync] | None]:
        """Those that run already are checked before anything is written."""
        if not self._address.urls:
            yield None
            return
        with hold_engines(self._address.urls, run=self._plan.spec.name):
            async with self._synced() as running:
                yield running

    @asynccontextmanager
    async def _synced(self) -> AsyncIterator[tuple[Connection, WeightSync]]:
        async with self._connected(self._address) as connection, self._sync(connection) as sync:
            check_tokenizer(_engines(connection), self._model, renderer=self._renderer.name)
            yield connection, sync

    @asynccontextmanager
    async def _served(
        self, version: WeightFolder, running: tuple[Connection, WeightSync] | None
    ) -> AsyncIterator[tuple[Connection, Publish, WeightSync]]:
        """A policy that samples with `version`, and the way by which it gets another one."""
        if running is not None:
            connection, sync = running
            await sync.publish_first(version)
            yield connection, sync.publish, sync
            return
        self._progress.enter("starting the engine")
        engine = TrainingEngine(
            version,
            log=self._folder / ENGINE_LOG,
            log_requests=self._settings.log_requests,
            report=self._report,
        )
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(engine.serve())
            address = structs.replace(self._address, urls=(engine.url,), models=(MODEL,))
            connection = await stack.enter_async_context(self._connected(address))
            sync = await stack.enter_async_context(self._sync(connection, engine.restart))
            await sync.adopt(version)
            yield connection, partial(engine.publish, sync), sync

    def _sync(
        self, connection: Connection, restart: Restart | None = None
    ) -> AbstractAsyncContextManager[WeightSync]:
        return open_sync(
            _engines(connection),
            self._settings,
            model=self._model,
            run=self._plan.spec.name,
            restart=restart,
            report=self._report,
        )

    @asynccontextmanager
    async def _connected(self, address: EngineAddress) -> AsyncIterator[Connection]:
        engines = EmbeddedEngines(self._report)
        async with connect(
            address, engines=engines, notify=self._report, renderer=self._renderer
        ) as connection:
            if not _engines(connection).has_tokens:
                raise UsageError(
                    f"{address.urls[0]} gives messages without token ids: nothing of it can be "
                    "trained; `holdfast policy check URL` says which engines are fit for training"
                )
            _engines(connection).check_sampling(self._plan.spec.sampling)
            await self._plan.check_taken(connection)
            check_logprobs(_engines(connection), self._plan.spec.sampling)
            yield connection

    async def _beside_rollouts(
        self,
        consumer: Consumer,
        connection: Connection,
        loop: TrainingLoop,
        ranks: RankGroup,
        done: int,
    ) -> str:
        """Trains while the engine rolls out; why it stopped early, "" when it did not."""
        run, is_sealed = consumer.run, False
        training = asyncio.create_task(loop.work(done), name="training")
        rolling = asyncio.create_task(self._roll_out(run, connection), name="rollouts")
        renewing = self._renewing
        watching = asyncio.create_task(until_death(ranks), name="the other ranks")
        try:
            await self._stop.wait_or(training, rolling, renewing, watching)
            if _succeeded(rolling) and not self._stop.requested:
                # Of a sealed run nothing is rolled out; what is recorded may still be trained.
                await self._stop.wait_or(training, renewing, watching)
            if _succeeded(training):
                await self._journal.seal(run)
                is_sealed = True
        finally:
            if self._stop.requested:
                await _until_saved(loop, training)
            for task in (training, watching):
                task.cancel()
            await asyncio.wait({training, watching})
            if not is_sealed and not self._stop.spent:  # Then what is in flight is paid for.
                self._stop.request("the trainer has ended")
            ending = await rolling
        if ending is not None and ending.fatal is not None:
            raise ending.fatal
        for task in (watching, renewing, training):
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error
        return "" if is_sealed else self._stop.reason

    async def _roll_out(self, run: Run, connection: Connection) -> Ending | None:
        if not self._assembly.rolls_out:
            await self._until_sealed(run)
            return None
        rollouts = self._plan.engine(
            run, self._journal, connection, stop=self._stop, progress=self._progress
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

    def _evaluation(self, connection: Connection, tasks: Sequence[Task]) -> Evaluate | None:
        if not tasks:
            return None
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


async def _until_saved(loop: TrainingLoop, training: "asyncio.Task[None]") -> None:
    """A step that is under way becomes a checkpoint, and is committed."""
    while loop.is_stepping and not training.done():
        await asyncio.wait({training}, timeout=POLL_SECONDS)


def _succeeded(task: "asyncio.Task[Any]") -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _engines(connection: Connection) -> EnginePolicy:
    assert isinstance(connection.policy, EnginePolicy), "made by connect()"
    return connection.policy
