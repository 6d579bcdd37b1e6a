"""`holdfast.train`: trains a model on a rollout, or goes on with a training that was interrupted.

One process: the engine rolls out, the trainer takes what is settled, and the embedded engine, a
child process, serves the weights in force.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
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
from holdfast.records.sampling import Sampling
from holdfast.records.task import Task, as_tasks
from holdfast.rollout.processors.processor import as_processor, fingerprinted
from holdfast.training.objective.losses import policy_loss
from holdfast.training.run.batches import Batches
from holdfast.training.run.curve import draw
from holdfast.training.run.evaluation import evaluate
from holdfast.training.run.loop import Evaluate, Publish, TrainingLoop, TrainingState, in_thread
from holdfast.training.run.metrics import Metrics, Tracker
from holdfast.training.run.serving import MODEL, TrainingEngine
from holdfast.training.run.weights import WeightFolder, push
from holdfast.training.settings import TrainingSettings
from holdfast.training.trainer import Loss, Trainer

CONSUMER = "trainer"
LEASE_SECONDS = 30.0
CURVE = "curve.svg"
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
    settings = settings or TrainingSettings()
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
        settings=rollout_settings,
    )
    return await train_plan(
        plan,
        settings,
        journal=journal,
        out=Path(out),
        model=Path(model) if model else TINY,
        policy=policy,
        api_key=api_key,
        eval_tasks=as_tasks(eval_tasks),
        loss=loss,
        trackers=trackers,
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
    policy: Sequence[str],
    api_key: str | None,
    eval_tasks: Sequence[Task],
    loss: Loss | None,
    trackers: Sequence[Tracker],
    report: Callable[[str], None],
    stop: Stop,
) -> TrainingReport:
    """`train` for a run that is planned already."""
    check_sampling(plan.spec.sampling)
    stream = EpochStream(plan.tasks, seed=settings.seed)
    work = _Training(
        plan,
        stream,
        settings,
        journal=journal,
        folder=out,
        model=model,
        urls=policy,
        api_key=api_key,
        report=report,
        stop=stop,
    )
    prepare_folder(out)
    metrics = Metrics(out, trackers=trackers)
    try:
        return await work.run(metrics, eval_tasks, loss)
    finally:
        metrics.close()


def check_sampling(sampling: Sampling) -> None:
    """Raises where the distribution that is sampled would not be the one that is trained."""
    if sampling.is_cut or sampling.json is not False or sampling.tool_choice:
        raise UsageError(
            "training needs the whole distribution: leave out top_p, top_k, JSON and tool_choice"
        )
    if not sampling.temperature > 0:
        raise UsageError("training needs a temperature above 0: at 0 nothing is explored")


def prepare_folder(folder: Path) -> None:
    """Raises for one that holds something else."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; --out is a folder")
    ours = ("checkpoints", "weights", "metrics.", CURVE, "tensorboard", "wandb", ".")
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if other := [name for name in names if not name.startswith(ours)]:
        raise UsageError(
            f"{folder} holds something else ({', '.join(other[:3])}): give an empty folder, or one "
            "that `holdfast train` made"
        )
    folder.mkdir(parents=True, exist_ok=True)


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
        urls: Sequence[str],
        api_key: str | None,
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
        self._urls = tuple(urls)
        self._api_key = api_key
        self._report = report
        self._stop = stop

    async def run(
        self, metrics: Metrics, held_out: Sequence[Task], loss: Loss | None
    ) -> TrainingReport:
        state = await in_thread(self._load, loss)
        restored = await in_thread(state.restore)
        for note in restored.notes:
            self._report(note)
        metrics.rewind(restored.step)
        run = await self._open()
        async with self._subscribed(run) as consumer:
            await self._journal.rewind(consumer, restored.step)
            version = await state.name_weights(self._journal, consumer)
            async with self._served(version) as (connection, publish):
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
                work = loop.work(restored.step)
                stopped = await self._beside_rollouts(run, consumer, connection, work)
        return self._result(state, metrics, stopped)

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

    async def _open(self) -> Run:
        spec = self._plan.spec
        run = await self._journal.find_run(spec.name)
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
            run, CONSUMER, this_process(), lease_seconds=LEASE_SECONDS
        )
        try:
            yield consumer
        finally:
            await self._journal.unsubscribe(consumer)

    @asynccontextmanager
    async def _served(self, version: WeightFolder) -> AsyncIterator[tuple[Connection, Publish]]:
        """A policy that samples with `version`, and the way by which it gets another one."""
        if self._urls:
            async with self._connected(self._urls) as connection:
                publish = partial(push, _engines(connection), api_key=self._api_key)
                await publish(version)
                yield connection, publish
            return
        engine = TrainingEngine(version, report=self._report)
        async with engine.serve(), self._connected((engine.url,)) as connection:
            _engines(connection).acknowledge(version.name)
            yield connection, partial(engine.publish, _engines(connection))

    @asynccontextmanager
    async def _connected(self, urls: Sequence[str]) -> AsyncIterator[Connection]:
        models = () if self._urls else (MODEL,)
        address = EngineAddress(urls=tuple(urls), models=models, api_key=self._api_key)
        engines = EmbeddedEngines(self._report)
        async with connect(
            address, engines=engines, notify=self._report, renderer=self._renderer
        ) as connection:
            if not _engines(connection).has_tokens:
                raise UsageError(
                    f"{urls[0]} gives messages without token ids: there is nothing to train on; "
                    "`holdfast policy check URL` says which engines are fit for training"
                )
            yield connection

    async def _beside_rollouts(
        self,
        run: Run,
        consumer: Consumer,
        connection: Connection,
        work: Coroutine[Any, Any, None],
    ) -> str:
        """Trains while the engine rolls out; why it stopped early, "" when it did not."""
        rollouts = self._plan.engine(run, self._journal, connection, stop=self._stop)
        training = asyncio.create_task(work, name="training")
        rolling = asyncio.create_task(rollouts.work(), name="rollouts")
        renewing = asyncio.create_task(self._renew(consumer), name="the trainer's lease")
        try:
            await self._stop.wait_or(training, rolling, renewing)
            if training.done() and not training.cancelled() and training.exception() is None:
                await self._journal.seal(run)
        finally:
            for task in (training, renewing):
                task.cancel()
            await asyncio.wait({training, renewing})
            if not (training.done() and _succeeded(training)):
                self._stop.request("the trainer has ended")
            ending = await rolling
        if ending.fatal is not None:
            raise ending.fatal
        for task in (renewing, training):
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
        return "" if _succeeded(training) else ending.stopped

    async def _renew(self, consumer: Consumer) -> None:
        while True:
            await asyncio.sleep(LEASE_SECONDS / 3)
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

    def _result(self, state: TrainingState, metrics: Metrics, stopped: str) -> TrainingReport:
        lines = metrics.lines()
        rewards = {step: line["reward"] for step, line in lines.items() if "reward" in line}
        held_out = {s: line["eval_reward"] for s, line in lines.items() if "eval_reward" in line}
        curves = {"training": list(rewards.items()), "held out": list(held_out.items())}
        title = f"{self._plan.spec.name}: mean reward"
        shown = {name: line for name, line in curves.items() if line}
        (self._folder / CURVE).write_text(draw(shown, title=title, axis="step"))
        assert state.version is not None
        return TrainingReport(
            run=self._plan.spec.name,
            steps=max(rewards, default=0),
            model=state.version.path,
            stopped=stopped,
            rewards=list(rewards.values()),
            held_out=held_out,
        )


def _succeeded(task: "asyncio.Task[None]") -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _engines(connection: Connection) -> EnginePolicy:
    assert isinstance(connection.policy, EnginePolicy), "made by connect()"
    return connection.policy
