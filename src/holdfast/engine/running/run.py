"""Runs or resumes from Python, like `holdfast run` from a shell."""

import inspect
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path, PurePath
from typing import Any

from msgspec import structs

from holdfast.engine.arguments import (
    address_of,
    check_journal,
    is_policy,
    sampling_from,
    series_from,
    settings_from,
)
from holdfast.engine.connect import Connection, connect_policy, recorded_connection
from holdfast.engine.meant import Meant, find_meant
from holdfast.engine.open_policy import connected
from holdfast.engine.open_run import check_same, finished_run, free_name, open_run, rolled_out_run
from holdfast.engine.options import JOURNAL
from holdfast.engine.progress.counters import Progress
from holdfast.engine.progress.watch import OnProgress, check_on_progress, watched
from holdfast.engine.report import RunReport, build
from holdfast.engine.running.engine import Ending
from holdfast.engine.running.result import RunResult
from holdfast.engine.running.run_plan import NO_CODE, RunPlan, plan_run
from holdfast.engine.running.series import name_in_series, open_in_series, run_with_all
from holdfast.engine.scoring.scorer import GroupScorer, PointScorer, Scorer
from holdfast.engine.settings import Settings
from holdfast.journal import is_server, opened_journal
from holdfast.journal.sql.journal import Journal
from holdfast.policy.policy import Policy
from holdfast.policy.rendering.renderer import Renderer
from holdfast.records.encoding.declared import as_declared, checks_arguments
from holdfast.records.errors import UsageError
from holdfast.records.group import GroupPolicy
from holdfast.records.sampling import Sampling
from holdfast.rollout.processors.processor import as_processor, fingerprinted
from holdfast.rollout.threads.blocking import run_blocking
from holdfast.tasks.read import load_tasks
from holdfast.tasks.system import with_system
from holdfast.worlds.contract.spec import WorldSpec

_log = logging.getLogger("holdfast")


@checks_arguments(
    own="policy journal name sampling scorer group settings model on_progress columns world"
)
async def run(
    rollout: object,
    *,
    tasks: object,
    policy: "Policy | str | Sequence[str] | None" = None,
    journal: Journal | Path | str = JOURNAL.default,
    name: str | None = None,
    samples: int | None = None,
    sampling: "Sampling | Mapping[str, object] | None" = None,
    seed: int | None = None,
    scorer: "PointScorer | GroupScorer | None" = None,
    renderer: Renderer | None = None,
    group: "GroupPolicy | Mapping[str, object] | None" = None,
    settings: "Settings | Mapping[str, object] | None" = None,
    accept_changes: bool = False,
    new: bool = False,
    retry_failed: bool = False,
    model: "str | PurePath | None" = None,
    api_key: str | None = None,
    limit: int | None = None,
    columns: Mapping[str, str] | None = None,
    system: str | None = None,
    on_progress: OnProgress = None,
    world: WorldSpec | str | None = None,
) -> RunResult:
    """Works until every trajectory is settled or the run is stopped. Raises errors that end the
    run. The same call again continues the run, and returns at once if the run is finished.

    `tasks` is anything that `read_tasks` takes: a list of dicts, a path, `hf:NAME:SPLIT`, a
    function. `limit` and `columns` are as in `read_tasks`. `system` is a system message that is put
    before each task's messages.

    `policy` is an engine's address, the addresses of its replicas, a provider's model
    (`openai/gpt-4o`), or an open policy. Without `policy`, the embedded engine runs during the
    call; it serves the folder `model`, or its own small model. With an address, `model` is the name
    of a model, and `api_key` (or HOLDFAST_API_KEY) is the engine's key. `journal` is a path,
    `memory:`, or an open journal. A policy or journal that the caller opened stays open.

    Without `name`, a run is called after the rollout and the tasks' file or function, with a number
    (`solve-1`). The same call again continues that run. Any other call begins the next run, which
    samples only what is new. `new` begins another run (with a name: NAME-2), and samples everything
    anew. `retry_failed` retries trajectories that failed for good.

    `sampling`, `settings` and `group` may be dicts. `samples` is the number per task. By default,
    it is the `n` of a `TrainingRolloutProcessor`, or else 1. `renderer` is by default the one for
    the tokenizer that the engine names for its model.

    `world` is the machine of each trajectory whose task names none, such as
    `docker:python:3.12-slim`: a `WorldEnvironment` of the rollout uses it.

    `on_progress` is called with a `ProgressSnapshot` each second, and at the end. True prints a
    line on standard error now and then. None shows a line in a notebook, and does nothing
    elsewhere.
    """
    check_journal(journal)
    check_on_progress(on_progress)
    if new and accept_changes:
        raise UsageError("new starts another run, accept_changes goes on with this one: give one")
    chosen = settings_from(settings) or Settings()
    make_connection = connection_of(
        policy, renderer, model=model, api_key=api_key, patience=chosen.patience
    )
    # All mistakes in it are reported before any request to the endpoint.
    series = series_from(rollout, tasks) if name is None else ""
    plan = plan_run(
        f"{series}-1" if name is None else name,
        processor=as_processor(rollout),
        rollout=fingerprinted(rollout),
        scorer=None if scorer is None else Scorer(scorer),
        scorer_code=NO_CODE if scorer is None else fingerprinted(scorer),
        tasks=with_system(await load_tasks(tasks, limit=limit, columns=columns), system),
        samples=samples,
        sampling=sampling_from(sampling),
        seed=seed,
        group=as_declared("group", group, GroupPolicy | None),
        settings=chosen,
        world=world,
    )
    meant = await meant_by(journal, policy, renderer, model=model, api_key=api_key)
    if series:
        spec = structs.replace(plan.spec, series=series, fresh=new)
        if _is_there(journal):
            async with _open(journal, read_only=True) as opened:
                called = await name_in_series(
                    opened, spec, meant=meant, accept_changes=accept_changes
                )
            spec = structs.replace(spec, name=called)
        plan = structs.replace(plan, spec=spec)
    return await work_on(
        plan,
        journal,
        make_connection,
        meant,
        starts_engine=policy is None,
        accept_changes=accept_changes,
        new=new,
        retry_failed=retry_failed,
        on_progress=on_progress,
    )


async def work_on(
    plan: RunPlan,
    journal: Journal | Path | str,
    make_connection: Callable[[], AbstractAsyncContextManager[Connection]],
    meant: Meant,
    *,
    starts_engine: bool,
    accept_changes: bool = False,
    new: bool = False,
    retry_failed: bool = False,
    on_progress: OnProgress = None,
) -> RunResult:
    """Works on the planned run, or returns at once if it is finished."""
    recorded: Connection | None = None
    if not (new or retry_failed):
        run_result = await _recorded(
            plan, journal, meant, accept_changes=accept_changes, starts_engine=starts_engine
        )
        if isinstance(run_result, RunResult):
            return run_result
        recorded = run_result
    if recorded is None:
        plan.processor.check_setup()
    connecting = make_connection() if recorded is None else nullcontext(recorded)
    async with connecting as connection, _open(journal) as opened:
        if new and not plan.spec.series:
            name = await free_name(opened, plan.spec.name)
            plan = structs.replace(plan, spec=structs.replace(plan.spec, name=name))
        progress = Progress()
        async with watched(progress, on_progress):
            return await _work(
                plan,
                connection,
                opened,
                progress,
                accept_changes=accept_changes,
                retry_failed=retry_failed,
            )


def connection_of(
    policy: object,
    renderer: Renderer | None,
    *,
    model: "str | PurePath | None",
    api_key: str | None,
    patience: float,
) -> Callable[[], AbstractAsyncContextManager[Connection]]:
    """Returns a function that connects to the policy. Raises errors in the arguments at once."""
    if not is_policy(policy):
        address = address_of(policy, model=model, api_key=api_key)
        return partial(connected, structs.replace(address, patience=patience), renderer)
    if model is not None or api_key is not None:
        raise UsageError("model and api_key go with an address: this policy has its own")
    return partial(_stays_open, policy, renderer)


@asynccontextmanager
async def _stays_open(policy: Policy, renderer: Renderer | None) -> AsyncIterator[Connection]:
    yield await connect_policy(policy, renderer)


@asynccontextmanager
async def _open(
    journal: Journal | Path | str, *, read_only: bool = False
) -> AsyncIterator[Journal]:
    """Yields an open journal. Closes it only if it was opened here."""
    if not isinstance(journal, str | Path):
        yield journal
        return
    async with opened_journal(journal, read_only=read_only) as opened:
        yield opened


async def _recorded(
    plan: RunPlan,
    journal: Journal | Path | str,
    meant: Meant,
    *,
    accept_changes: bool,
    starts_engine: bool,
) -> RunResult | Connection | None:
    """Returns a result or a connection from the journal alone, without asking the engine.

    For a finished run, returns its result. For a run that needs no more samples, returns a
    connection. Returns None if the engine has to be asked. If the embedded engine would be started
    for a run that is recorded differently, raises `RunChanged` now.
    """
    if not _is_there(journal):
        return None
    async with _open(journal, read_only=True) as opened:
        run = await finished_run(opened, plan.spec)
        if run is not None and meant.accepts(run.spec):
            _warn(meant.caveat(run.spec))
            report = await build(opened, run, prices=plan.settings.price_table)
            return _result(Ending("", (), None), report, opened)
        run = await rolled_out_run(opened, plan.spec, plan.tasks, accept_changes=accept_changes)
        if run is None and plan.spec.series and await opened.find_run(plan.spec.name) is None:
            run = await run_with_all(opened, plan.spec, plan.tasks)
        if run is not None and meant.accepts(run.spec):
            _warn(meant.caveat(run.spec))
            return recorded_connection(run.spec)
        if starts_engine:
            await check_same(
                opened, plan.spec, plan.tasks, meant=meant, accept_changes=accept_changes
            )
    return None


def _is_there(journal: Journal | Path | str) -> bool:
    if not isinstance(journal, str | Path):
        return True
    return is_server(journal) or Path(journal).is_file()


async def meant_by(
    journal: Journal | Path | str,
    policy: object,
    renderer: Renderer | None,
    *,
    model: "str | PurePath | None",
    api_key: str | None,
) -> Meant:
    """Returns the model and the renderer that the arguments of a call mean. Asks no engine if there
    is no journal yet, and thus no recorded run."""
    named = None if renderer is None else renderer.name
    if is_policy(policy):
        return Meant((policy.model,), named)
    if not _is_there(journal):
        return Meant()
    address = address_of(policy, model=model, api_key=api_key)
    return await find_meant(address, named)


async def _work(
    plan: RunPlan,
    connection: Connection,
    journal: Journal,
    progress: Progress,
    *,
    accept_changes: bool,
    retry_failed: bool,
) -> RunResult:
    plan = plan.bind(connection)
    await plan.check_taken(connection)
    plan = await plan.bind_scorer()
    plan.report_caveats(connection)
    if plan.spec.series and not accept_changes:
        opened, note = await open_in_series(journal, plan.spec, plan.tasks, code="the code")
        _warn(note)
    else:
        opened = await open_run(journal, plan.spec, plan.tasks, accept_changes=accept_changes)
    engine = plan.engine(opened, journal, connection, progress=progress, reopen_failed=retry_failed)
    ending = await engine.work()
    if ending.fatal is not None:
        raise ending.fatal
    report = await build(journal, opened, prices=plan.settings.price_table)
    return _result(ending, report, journal)


def _warn(note: str) -> None:
    if note:
        _log.warning("%s", note)


def _result(ending: Ending, report: RunReport, journal: Journal) -> RunResult:
    """Returns the result. Logs a warning if every trajectory failed, because the caller may not
    read the report.
    """
    if report.nothing_succeeded:
        _log.warning(
            "run %s: nothing succeeded: %s; the most frequent error: %s",
            report.run,
            report.all_failed,
            report.causes[0].message if report.causes else "none is recorded",
        )
    return RunResult(ending, report, journal)


def run_sync(rollout: object, **arguments: Any) -> RunResult:
    """Runs `holdfast.run` for code that is not async, with the same arguments and the same result.

    It also works inside a running loop, as in a notebook. The run then has its own thread and loop,
    and the caller waits. An interrupt stops the run, and the same call continues it.
    """
    return run_blocking(lambda: run(rollout, **arguments))


run_sync.__signature__ = inspect.signature(run)  # type: ignore[attr-defined]  # For editors.
