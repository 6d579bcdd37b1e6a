"""`holdfast.train`: trains a model on a rollout, or goes on with a training that was interrupted.

One process: the engine rolls out, the trainer takes what is settled, and the embedded engine, a
child process, serves the weights in force.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct, structs

from holdfast.engine.connect import Connection, EmbeddedEngines, EngineAddress, connect
from holdfast.engine.open_run import RunChanged
from holdfast.engine.run_plan import NO_CODE, RunPlan, plan_run
from holdfast.engine.scoring.scorer import GroupScorer, PointScorer, Scorer
from holdfast.engine.settings import Settings
from holdfast.engine.stop import Stop
from holdfast.journal.journal import Consumer, Journal
from holdfast.journal.process import this_process
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.rendering.select import renderer_for
from holdfast.records.epochs import EpochStream
from holdfast.records.errors import UsageError
from holdfast.records.run import Run
from holdfast.records.samples.logprobs import PROCESSING, LogprobsMode, distribution_of, mode_with
from holdfast.records.sampling import Sampling
from holdfast.records.task import Task, as_tasks
from holdfast.rollout.processors.processor import as_processor, fingerprinted
from holdfast.training import extra
from holdfast.training.objective.losses import policy_loss
from holdfast.training.run.batches import Batches
from holdfast.training.run.curve import draw
from holdfast.training.run.evaluation import evaluate
from holdfast.training.run.folder import CURVE, check_disk, use_folder
from holdfast.training.run.loop import (
    Evaluate,
    Publish,
    Restored,
    TrainingLoop,
    TrainingState,
    in_thread,
)
from holdfast.training.run.metrics import Tracker, TrainingMetrics
from holdfast.training.run.serving import MODEL, TrainingEngine
from holdfast.training.run.weights import WeightFolder, push
from holdfast.training.settings import TrainingSettings
from holdfast.training.trainer import Loss, Trainer

CONSUMER = "trainer"
TINY = Path(__file__).parents[2] / "embedded" / "tiny"


class TrainingReport(Struct, frozen=True):
    """How a training ended."""

    run: str
    steps: int
    """How many were trained, in all."""
    model: Path
    """The folder of the newest weights."""
    stopped: str
    """Why it stopped early; "" when it trained all steps."""
    rewards: list[float]
    """The mean over each step's trajectories."""
    held_out: dict[int, float]
    """The mean over held-out tasks, by step."""


async def train(
    rollout: object,
    *,
    tasks: "Iterable[Task | Mapping[str, object]]",
    journal: Journal,
    name: str,
    out: Path | str,
    model: Path | str | None = None,
    policy: Sequence[str] = (),
    api_key: str | None = None,
    scorer: "PointScorer | GroupScorer | None" = None,
    eval_tasks: "Iterable[Task | Mapping[str, object]]" = (),
    settings: TrainingSettings | None = None,
    sampling: Sampling | None = None,
    rollout_settings: Settings | None = None,
    loss: Loss | None = None,
    trackers: Sequence[Tracker] = (),
    report: Callable[[str], None] = lambda line: None,
    stop: Stop | None = None,
) -> TrainingReport:
    """Trains `model`, a Hugging Face folder (the tiny one of ours), and keeps everything in `out`.

    The same call again goes on from the newest checkpoint. `policy` are the addresses of engines
    that serve the model and take weights from disk; none: the embedded engine. Raises `UsageError`
    for bad input before anything is sampled or written.
    """
    extra.require()
    settings = settings or TrainingSettings()
    if loss is not None and not settings.loss:
        settings = structs.replace(settings, loss=fingerprinted(loss)[0])
    plan = plan_run(
        name,
        tasks=as_tasks(tasks),
        processor=as_processor(rollout),
        rollout=fingerprinted(rollout),
        scorer=None if scorer is None else Scorer(scorer),
        scorer_code=NO_CODE if scorer is None else fingerprinted(scorer),
        samples=settings.samples,
        sampling=sampling,
        seed=settings.seed,
        group=settings.group_policy,
        settings=rollout_settings,
    )
    return await train_plan(
        plan,
        settings,
        journal=journal,
        out=Path(out),
        model=Path(model) if model else TINY,
        address=EngineAddress(urls=tuple(policy), api_key=api_key),
        eval_tasks=as_tasks(eval_tasks),
        loss=loss,
        open_trackers=lambda: trackers,
        report=report,
        stop=stop or Stop(),
    )


async def train_plan(
    plan: RunPlan,
    settings: TrainingSettings,
    *,
    journal: Journal,
    out: Path,
    model: Path,
    address: EngineAddress,
    eval_tasks: Sequence[Task],
    loss: Loss | None,
    open_trackers: Callable[[], Sequence[Tracker]],
    report: Callable[[str], None],
    stop: Stop,
) -> TrainingReport:
    """`train` for a run that is planned already. Trackers are opened when everything is checked."""
    check_sampling(plan.spec.sampling)
    check_model(model)
    stream = EpochStream(plan.tasks, seed=settings.seed)
    work = _Training(
        plan,
        stream,
        settings,
        journal=journal,
        folder=out,
        model=model,
        address=address,
        report=report,
        stop=stop,
    )
    with use_folder(out):
        return await work.run(open_trackers, eval_tasks, loss)


def check_model(folder: Path) -> None:
    """Raises for what is no model on this disk."""
    if not (folder / "config.json").is_file():
        raise UsageError(f"{folder} is no Hugging Face folder: it has no config.json")


def check_sampling(sampling: Sampling) -> None:
    """Raises where the distribution that is sampled would not be the one that is trained."""
    if sampling.is_cut or sampling.json is not False or sampling.tool_choice:
        raise UsageError(
            "training needs the whole distribution: leave out top_p, top_k, JSON and tool_choice"
        )
    if not sampling.temperature > 0:
        raise UsageError("training needs a temperature above 0: at 0 nothing is explored")


def check_logprobs(policy: EnginePolicy, sampling: Sampling) -> None:
    """Raises where the engine's logprobs would not be those of the distribution that is sampled."""
    mode = mode_with(policy.logprobs_mode, sampling)
    if mode in (LogprobsMode.RAW, LogprobsMode.TEMPERED):
        raise UsageError(
            f"the logprobs of {policy.endpoints[0].name} are {mode}: at "
            f"{distribution_of(sampling)} they are not of the distribution that is sampled from; "
            f"start it so ({PROCESSING}), or give --temperature 1"
        )


class _Training:
    """One call of `train`."""

    def __init__(
        self,
        plan: RunPlan,
        stream: EpochStream,
        settings: TrainingSettings,
        *,
        journal: Journal,
        folder: Path,
        model: Path,
        address: EngineAddress,
        report: Callable[[str], None],
        stop: Stop,
    ):
        renderer = renderer_for(model)
        spec = structs.replace(plan.spec, model=MODEL, renderer=renderer.name)
        self._plan = structs.replace(plan, spec=spec)
        self._renderer = renderer
        self._stream = stream
        self._settings = settings
        self._journal = journal
        self._folder = folder
        self._model = model
        self._address = address
        self._report = report
        self._stop = stop

    async def run(
        self,
        open_trackers: Callable[[], Sequence[Tracker]],
        held_out: Sequence[Task],
        loss: Loss | None,
    ) -> TrainingReport:
        state = await in_thread(self._load, loss)
        restored = await in_thread(state.restore)
        if not restored.step:
            check_disk(self._folder, state.bytes_on_disk)
        async with self._running_engines() as running:
            run = await self._open(restored)
            async with self._subscribed(run) as consumer:
                await self._rewind(consumer, restored)
                metrics = TrainingMetrics(self._folder, trackers=open_trackers())
                try:
                    metrics.rewind(restored.step)
                    stopped = await self._train(state, consumer, metrics, held_out, running)
                    return self._result(state, metrics, stopped)
                finally:
                    metrics.close()

    async def _train(
        self,
        state: TrainingState,
        consumer: Consumer,
        metrics: TrainingMetrics,
        held_out: Sequence[Task],
        running: Connection | None,
    ) -> str:
        """Why it stopped early; "" when it did not."""
        done = state.trainer.step_number
        version = await state.name_weights(self._journal, consumer)
        async with self._served(version, running) as (connection, publish):
            loop = TrainingLoop(
                state,
                self._batches(consumer),
                self._settings,
                journal=self._journal,
                consumer=consumer,
                publish=publish,
                evaluate=self._evaluation(connection, held_out),
                metrics=metrics,
                report=self._report,
            )
            return await self._beside_rollouts(consumer, connection, loop.work(done))

    async def _rewind(self, consumer: Consumer, restored: Restored) -> None:
        """The restored checkpoint is the truth: the ledger is brought to it, forward, too, when the
        kill came between the checkpoint and its commit."""
        for note in restored.notes:
            self._report(note)
        await self._journal.rewind(consumer, restored.step)
        if restored.step:
            await self._journal.commit(consumer, restored.step)
        if (consumer.committed or 0) > restored.step:
            self._report(
                f"run {consumer.run.spec.name!r} was trained up to step {consumer.committed}, and "
                f"{self._folder} has step {restored.step}: the steps between are trained again "
                "from the recorded rollouts"
            )

    def _load(self, loss: Loss | None) -> TrainingState:
        settings = self._settings
        trainer = Trainer(
            self._model,
            settings.trainer,
            device=settings.device,
            dtype=getattr(torch, settings.dtype),
            lora=settings.lora,
            reference=settings.reference,
            gradient_checkpointing=settings.gradient_checkpointing,
            loss=policy_loss if loss is None else loss,
            seed=settings.seed,
        )
        if why := trainer.network.why_sequential:
            self._report(f"sequences go one at a time, which is slower: {why}")
        name = self._plan.spec.name
        return TrainingState(trainer, settings, folder=self._folder, run=name)

    async def _open(self, restored: Restored) -> Run:
        spec = self._plan.spec
        run = await self._journal.find_run(spec.name)
        if run is None and restored.step:
            raise UsageError(
                f"{self._folder} has step {restored.step} of run {spec.name!r}, which this journal "
                "does not know: give the journal that it was trained with, or another --out"
            )
        if run is None:
            return await self._journal.create_run(spec, (), sealed=False)
        if differences := run.spec.differences(spec):
            raise RunChanged(spec.name, differences, objections="a training goes on as it began")
        return run

    def _batches(self, consumer: Consumer) -> Batches:
        return Batches(
            self._journal,
            consumer,
            self._stream,
            groups=self._settings.groups,
            dynamic=self._settings.dynamic,
            max_draws=self._settings.max_draws,
        )

    @asynccontextmanager
    async def _subscribed(self, run: Run) -> AsyncIterator[Consumer]:
        """The second trainer of a run is refused."""
        consumer = await self._journal.subscribe(
            run, CONSUMER, this_process(), lease_seconds=self._plan.settings.lease_seconds
        )
        try:
            yield consumer
        finally:
            await self._journal.unsubscribe(consumer)

    @asynccontextmanager
    async def _running_engines(self) -> AsyncIterator[Connection | None]:
        """Those that run already are checked before anything is written."""
        if not self._address.urls:
            yield None
            return
        async with self._connected(self._address) as connection:
            yield connection

    @asynccontextmanager
    async def _served(
        self, version: WeightFolder, running: Connection | None
    ) -> AsyncIterator[tuple[Connection, Publish]]:
        """A policy that samples with `version`, and the way by which it gets another one."""
        if running is not None:
            publish = partial(
                push,
                _engines(running),
                patience=self._address.patience,
                api_key=self._address.api_key,
            )
            await publish(version)
            yield running, publish
            return
        engine = TrainingEngine(version, report=self._report)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(engine.serve())
            address = structs.replace(self._address, urls=(engine.url,), models=(MODEL,))
            connection = await stack.enter_async_context(self._connected(address))
            _engines(connection).acknowledge(version.name)
            patience = self._address.patience
            yield connection, partial(engine.publish, _engines(connection), patience=patience)

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
            check_logprobs(_engines(connection), self._plan.spec.sampling)
            yield connection

    async def _beside_rollouts(
        self,
        consumer: Consumer,
        connection: Connection,
        work: Coroutine[Any, Any, None],
    ) -> str:
        """Trains while the engine rolls out; why it stopped early, "" when it did not."""
        run, is_sealed = consumer.run, False
        rollouts = self._plan.engine(run, self._journal, connection, stop=self._stop)
        training = asyncio.create_task(work, name="training")
        rolling = asyncio.create_task(rollouts.work(), name="rollouts")
        renewing = asyncio.create_task(self._renew(consumer), name="the trainer's lease")
        try:
            await self._stop.wait_or(training, rolling, renewing)
            if _succeeded(rolling) and not self._stop.requested:
                # Of a sealed run nothing is rolled out; what is recorded may still be trained.
                await self._stop.wait_or(training, renewing)
            if _succeeded(training):
                await self._journal.seal(run)
                is_sealed = True
        finally:
            for task in (training, renewing):
                task.cancel()
            await asyncio.wait({training, renewing})
            if not is_sealed:
                self._stop.request("the trainer has ended")
            ending = await rolling
        if ending.fatal is not None:
            raise ending.fatal
        for task in (renewing, training):
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
        return "" if is_sealed else self._stop.reason

    async def _renew(self, consumer: Consumer) -> None:
        while True:
            await asyncio.sleep(consumer.lease_seconds / 3)
            await self._journal.renew(consumer)

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
            report=self._report,
        )

    def _result(
        self, state: TrainingState, metrics: TrainingMetrics, stopped: str
    ) -> TrainingReport:
        lines = metrics.lines()
        metrics.rewind(max(lines, default=0))
        rewards = {step: line["reward"] for step, line in lines.items() if "reward" in line}
        held_out = {s: line["eval_reward"] for s, line in lines.items() if "eval_reward" in line}
        curves = {"training": list(rewards.items()), "held out": list(held_out.items())}
        title = f"{self._plan.spec.name}: mean reward"
        drawn = {name: line for name, line in curves.items() if line}
        (self._folder / CURVE).write_text(draw(drawn, title=title, axis="step"))
        assert state.version is not None
        return TrainingReport(
            run=self._plan.spec.name,
            steps=max(rewards, default=0),
            model=state.version.path,
            stopped=stopped,
            rewards=list(rewards.values()),
            held_out=held_out,
        )


def _succeeded(task: "asyncio.Task[Any]") -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _engines(connection: Connection) -> EnginePolicy:
    assert isinstance(connection.policy, EnginePolicy), "made by connect()"
    return connection.policy
