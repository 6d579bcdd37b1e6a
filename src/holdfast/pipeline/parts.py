"""The parts of a pipeline are a rollouter and a trainer, which may also run in one process.

Two processes that work on one run share only the journal and the engines. Either may end and come
back, in any order, on any machine that reaches the journal and the engines.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from holdfast.engine.connect import Connection, EmbeddedEngines, EngineAddress, connect
from holdfast.engine.open_run import TRAINED_MODEL, RunChanged, is_trained
from holdfast.engine.running.engine import Ending
from holdfast.engine.running.run_plan import RunPlan, check_supported
from holdfast.engine.stop import Stop
from holdfast.journal import open_journal
from holdfast.journal.changes import Changes
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import Consumer
from holdfast.pipeline.batches import PacedBatches
from holdfast.pipeline.rollouter import Rollouter
from holdfast.pipeline.settings import PipelineSettings, adapted, check_pipeline, corrected
from holdfast.pipeline.status import RolloutProgress, StatusFile
from holdfast.policy.rendering.select import renderer_for
from holdfast.records.encoding.declared import checks_arguments
from holdfast.records.epochs import EpochStream
from holdfast.records.errors import UsageError, WaitTimedOut
from holdfast.records.run import Run, RunSpec
from holdfast.rollout.threads.contain import in_background
from holdfast.tasks.read import load_tasks
from holdfast.training.run.folder import PARTS
from holdfast.training.settings import TrainingSettings, training_settings_from

if TYPE_CHECKING:
    from holdfast.training.run.metrics import TrainingReport
    from holdfast.training.run.train import Assembly

TRAINER_PART, ROLLOUTER_PART = "trainer", "rollouter"
LOOK_SECONDS = 0.1
STATUS_SECONDS = 0.5
COMMIT_SECONDS = 0.01
"""The wait between two looks at SQLite's log. A look costs microseconds."""
SAME_TICK = 0.05
"""Two writes within this time may leave the file with the same time and length."""


def assembly(
    pipeline: PipelineSettings,
    *,
    tasks: int,
    folder: Path,
    rollout_patience: float | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> "Assembly":
    """Returns the `Assembly` with which `holdfast.train` works as a pipeline. `tasks` is the number
    of tasks in an epoch. With `rollout_patience`, another process samples the rollouts. If that
    process is gone, a step waits for it this many seconds."""
    from holdfast.training.run.train import Assembly

    def open_batches(
        journal: Journal, consumer: Consumer, stream: EpochStream, settings: TrainingSettings
    ) -> PacedBatches:
        return PacedBatches(
            journal,
            consumer,
            stream,
            training=settings,
            pipeline=pipeline,
            tasks=tasks,
            status=StatusFile(status_path(folder, TRAINER_PART)),
            report=report,
            rollout_patience=rollout_patience,
        )

    mixes = pipeline.max_staleness > 0
    return Assembly(
        open_batches=open_batches, rolls_out=rollout_patience is None, mixes_versions=mixes
    )


def status_path(folder: Path, part: str) -> Path:
    return folder / PARTS / f"{part}.json"


@checks_arguments(own="settings")
async def train_async(
    rollout: object,
    *,
    tasks: Any,
    out: Path | str,
    settings: TrainingSettings | Mapping[str, object] | None = None,
    pipeline: PipelineSettings | None = None,
    report: Callable[[str], None] = lambda line: None,
    **options: Any,
) -> "TrainingReport":
    """Trains like `holdfast.train`, with rollouts that continue in this process while the model is
    trained. `options` are those of `holdfast.train`. Raises `UsageError` for bad input before
    anything is sampled or written."""
    from holdfast.training.run.train import train

    training, listed = training_settings_from(settings), await load_tasks(tasks)
    chosen = pipeline or adapted(PipelineSettings(), training, tasks=len(listed))
    check_pipeline(chosen, training, tasks=len(listed))
    return await train(
        rollout,
        tasks=listed,
        out=out,
        settings=corrected(chosen, training),
        report=report,
        assembly=assembly(chosen, tasks=len(listed), folder=Path(out), report=report),
        **options,
    )


@asynccontextmanager
async def shared_journal(address: str) -> AsyncIterator[Journal]:
    """Opens a journal that another process writes too, and notices its commits at once."""
    journal = open_journal(address)
    try:
        async with in_background(notice_commits(address, journal.changes), name="commits"):
            yield journal
    finally:
        await journal.close()


async def roll_out(
    plan: RunPlan,
    *,
    journal: Journal,
    model: Path,
    folder: Path,
    address: EngineAddress,
    report: Callable[[str], None],
    stop: Stop,
) -> Ending | None:
    """Rolls out without training: waits until the trainer has made the run, and works until the run
    is sealed. Returns None if it was stopped before the run existed."""
    renderer = renderer_for(model)
    spec = structs.replace(plan.spec, model=TRAINED_MODEL, renderer=renderer.name)
    run = await _find_run(journal, spec, stop, report, patience=address.patience)
    if run is None:
        return None
    if differences := run.spec.differences(spec):
        raise RunChanged(spec.name, differences, objections="start trainer and rollouter alike")
    progress = RolloutProgress()
    status = StatusFile(status_path(folder, ROLLOUTER_PART))
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(
            connect(address, engines=EmbeddedEngines(report), notify=report, renderer=renderer)
        )
        check_supported(connection, spec.sampling)
        _check_tokens(connection, address)
        await stack.enter_async_context(
            in_background(_show(progress, status), name="the rollouter's status")
        )
        rollouter = Rollouter(
            structs.replace(plan, spec=spec),
            journal=journal,
            connection=connection,
            stop=stop,
            progress=progress,
            report=report,
        )
        ending = await rollouter.work(run)
    status.update(_numbers(progress), doing="stopped" if ending.stopped else "ended")
    return ending


def _check_tokens(connection: Connection, address: EngineAddress) -> None:
    if not getattr(connection.policy, "has_tokens", True):
        raise UsageError(
            f"{address.urls[0]} gives messages without token ids: nothing of it can be trained; "
            "`holdfast policy check URL` says which engines are fit for training"
        )


async def _find_run(
    journal: Journal,
    spec: RunSpec,
    stop: Stop,
    report: Callable[[str], None],
    *,
    patience: float,
) -> Run | None:
    """Waits for the run and returns it. The trainer has to create the run first. If the code has
    changed, the trainer has to record the change, which it may do until something is trained.
    Returns None if a stop is requested. Raises `WaitTimedOut` if the trainer does not begin within
    the patience."""
    is_reported, began = False, time.monotonic()
    while not stop.requested:
        seen = journal.changes.count
        run = await journal.find_run(spec.name)
        if run is not None:
            if not run.spec.differs_by_code(spec) or await is_trained(journal, run):
                return run
            if not is_reported:
                report("waiting until the trainer begins with this code")
            is_reported = True
        if (waited := time.monotonic() - began) > patience:
            raise WaitTimedOut(
                f"waited {waited:.0f} s until the trainer begins run {spec.name!r}: start its "
                "trainer with the same command; a model that takes longer to load needs more "
                "--patience"
            )
        await journal.changes.wait(seen, timeout=LOOK_SECONDS)
    return None


async def _show(progress: RolloutProgress, status: StatusFile) -> None:
    while True:
        doing = "rolling out" if progress.running else "waiting for tasks"
        status.update(_numbers(progress), doing=doing)
        await asyncio.sleep(STATUS_SECONDS)


def _numbers(progress: RolloutProgress) -> Mapping[str, float]:
    return {
        "running": max(progress.running, 0),
        "settled": progress.done_before + progress.done,
        "failed": progress.failed_before + progress.failed,
        "tokens_total": progress.tokens,
        "idle_seconds_total": progress.idle_seconds,
    }


async def notice_commits(address: str, changes: Changes) -> None:
    """Notifies `changes` after each commit to the SQLite journal at `address`, for ever. Does
    nothing for other journals, which notify by themselves.

    A journal wakes its own process at once, but looks only every second for commits of other
    processes. Two processes that hand work to each other would wait for most of that second each
    time.
    """
    if "://" in address:
        return
    path, seen, until = f"{address}-wal", None, 0.0
    clock = asyncio.get_running_loop().time
    while True:
        mark = _mark(path)
        if mark != seen:
            seen, until = mark, clock() + SAME_TICK
            changes.notify()
        elif until and clock() >= until:
            until = 0.0
            changes.notify()
        await asyncio.sleep(COMMIT_SECONDS)


def _mark(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_size
