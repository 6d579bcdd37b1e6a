"""Runs an Experiment, which is one variant of an evaluation, from its rows to its outcome.

Each setting is one run in the journal, and a recorded run is continued. Finished rows are not
rolled out again, and rows that are finished but not scored are only scored. A run that is finished
and unchanged gives its verdict without an engine. However the experiment ends, its appends are
durable and its leases are returned.
"""

import asyncio
import os
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from msgspec import Struct, structs

from holdfast.engine.connect import Connection, recorded_connection
from holdfast.engine.guards.event_loop import run_in_own_loop
from holdfast.engine.guards.spending import SpendingLimitReached
from holdfast.engine.judging.judge import Judge
from holdfast.engine.progress.counters import Progress
from holdfast.engine.report import many
from holdfast.engine.running.engine import Ending, Engine
from holdfast.engine.running.run_plan import RunPlan, plan_run
from holdfast.engine.scoring.late import score_late
from holdfast.engine.scoring.scorer import Scorer
from holdfast.engine.settings import ScoringPolicy, Settings
from holdfast.engine.stop import Stop
from holdfast.evaluation.definition.definition import Definition, Mode, Variant, scorer_fingerprint
from holdfast.evaluation.eval_protocol.basic import NoOpRolloutProcessor
from holdfast.evaluation.eval_protocol.class_checks import import_models
from holdfast.evaluation.eval_protocol.row_processor import RowsRolloutProcessor
from holdfast.evaluation.report.row_table import first_rows
from holdfast.evaluation.rows.completion_params import Setting, ids_of
from holdfast.evaluation.rows.convert import task_of
from holdfast.evaluation.rows.row import EvalMetadata, EvaluationRow
from holdfast.evaluation.running.connect import POLICY, addresses, connect_setting, named_engines
from holdfast.evaluation.running.judges import check_judges, judges_in, judges_of
from holdfast.evaluation.running.output_files import Decode, write_page, write_rows
from holdfast.evaluation.running.resume import (
    Opened,
    limited,
    open_recorded,
    open_together,
    rolled_out_already,
    series_of,
    settled_already,
)
from holdfast.evaluation.running.scorer import eval_metadata_of, scorer_of, scorer_row
from holdfast.evaluation.running.session import EvaluationSession
from holdfast.evaluation.running.signals import Interrupted, interruptible
from holdfast.evaluation.stats.outcome import Outcome, Part
from holdfast.evaluation.stats.results import Results, results_of
from holdfast.evaluation.stats.verdict import Threshold, verdict_of
from holdfast.journal import opened_journal
from holdfast.journal.sql.journal import Journal
from holdfast.policy.policy import NoPolicy, Policy
from holdfast.policy.providers import names_of
from holdfast.policy.rendering.messages_only import MessagesOnly
from holdfast.policy.rendering.renderer import Renderer
from holdfast.records.errors import EndpointDown, RunHeld
from holdfast.records.group import GroupPolicy
from holdfast.records.run import Run, RunSpec
from holdfast.records.task import Task, tasks_digest
from holdfast.records.view import TrajectoryView
from holdfast.rollout.processors.processor import RolloutProcessor, fingerprinted
from holdfast.rollout.processors.training import samples_for
from holdfast.rollout.threads.contain import in_background

PROGRESS_SECONDS = 10.0
LISTED_ROWS = 8
"""The number of rows in a session's summary. `holdfast report` shows all rows."""
RETRIES_ONLY = GroupPolicy(refill=0)
"""Failed rows are retried from the journal, and are never replaced by new rows without the user's
knowledge."""


class Experiment(Struct, frozen=True):
    definition: Definition
    variant: Variant
    name: str
    """The base of the names of its runs."""
    session: EvaluationSession
    arguments: Mapping[str, object] = {}
    """Fixtures, parameters and `self`, which the function is given besides its rows."""
    parameters: Mapping[str, object] = {}
    """The values that decide how rows are judged. If they change, rows are scored again."""
    policy: "Policy | str | Sequence[str] | None" = None
    renderer: Renderer | None = None

    @property
    def num_runs(self) -> int:
        return self.session.options.num_runs or self.definition.num_runs


class _Work(Struct):
    """The state of a running experiment."""

    experiment: Experiment
    journal: Journal
    tasks: list[Task]
    processor: RolloutProcessor
    settings: Settings
    stop: Stop
    notes: list[str] = []
    decode: Decode | None = None
    """Decodes tokens with the engine's tokenizer; None if no engine was asked."""


def perform(experiment: Experiment) -> Outcome:
    """Runs the experiment in its own event loop. A signal stops it gracefully, and raises
    `Interrupted`."""
    return run_in_own_loop(_watched(experiment))


async def _watched(experiment: Experiment) -> Outcome:
    stop, is_new = Stop(), experiment.session.options.new
    with interruptible(stop) as interruption:
        try:
            outcome = await perform_async(experiment, stop)
        except Exception as error:
            if interruption.received is None:
                raise
            # If a signal ended it, such as an engine's start, this is nobody's mistake.
            raise Interrupted(interruption.received, is_new=is_new) from error
    if interruption.received is not None:
        raise Interrupted(interruption.received, is_new=is_new)
    assert outcome is not None, "nothing but a signal stops it"
    return outcome


async def perform_async(experiment: Experiment, stop: Stop | None = None) -> Outcome | None:
    """Runs the experiment and returns its outcome. Returns None if a stop was requested."""
    stop = stop or Stop()
    place = experiment.session.journal()
    rows = await experiment.variant.dataset.rows()
    tasks = [task_of(row, where=f"row {row.input_metadata.row_id!r}: ") for row in rows]
    async with opened_journal(place) as journal:
        is_no_op = experiment.session.options.no_op_rollout_processor
        processor = NoOpRolloutProcessor() if is_no_op else experiment.definition.processor
        settings = _settings(experiment)
        work = _Work(experiment, journal, tasks, processor, settings, stop)
        runs = await _runs(work)
        return None if stop.requested else await _outcome(work, runs, place)


async def _runs(work: _Work) -> list[Run]:
    """Returns the runs of all settings, with every row settled. After a stop, some runs may be
    missing or unfinished."""
    settings = work.experiment.variant.settings
    runs: list[Run] = []
    for setting, name in zip(settings, ids_of(settings), strict=True):
        runs.append(await _roll_out(work, setting, name if len(settings) > 1 else ""))
        if work.stop.requested:
            return runs
    if _is_late(work.experiment):
        whole = work.experiment.definition.mode is Mode.ALL
        runs = await open_together(work.journal, runs, work.tasks, whole=whole)
        await score_late(
            work.journal,
            runs,
            _scorer(work, runs),
            whole=whole,
            settings=work.settings,
            stop=work.stop,
        )
        if work.stop.fatal is not None:
            raise work.stop.fatal
    return runs


def _is_late(experiment: Experiment) -> bool:
    """Returns whether rows can be scored only after all rollouts, because the function judges
    several tasks or several runs at once."""
    mode, settings = experiment.definition.mode, experiment.variant.settings
    return mode is Mode.ALL or (mode is Mode.GROUPWISE and len(settings) > 1)


# --- one setting


async def _roll_out(work: _Work, setting: Setting, name: str) -> Run:
    """Works on the setting's run until every row is settled, or only has to be scored after all
    rollouts."""
    experiment = work.experiment
    setting, _ = named_engines(setting, experiment.session, experiment.policy)
    plan = _plan(work, setting, name)
    if isinstance(work.processor, NoOpRolloutProcessor):
        return await _drive(work, plan, Connection(NoPolicy(), MessagesOnly()), setting)
    if not experiment.session.options.new and (models := _models_meant(work, setting)) != ():
        retry = experiment.session.options.retry_failed
        finished = await settled_already(
            work.journal, plan.spec, models=models, even_failed=not retry
        )
        if finished is not None:
            experiment.session.follow(finished.spec.name)
            work.notes.append(_finished_note(finished))
            return finished
        recorded = await rolled_out_already(
            work.journal, plan.spec, models=models, retry_failed=retry
        )
        if recorded is not None:  # No engine is needed.
            return await _drive(work, plan, recorded_connection(recorded.spec), setting)
    async with AsyncExitStack() as stack:
        connecting = connect_setting(
            setting,
            experiment.session,
            policy=experiment.policy,
            renderer=experiment.renderer,
            needed=not isinstance(work.processor, RowsRolloutProcessor),
        )
        try:
            connection = await stack.enter_async_context(connecting)
        except EndpointDown as error:
            await _add_remedy(work, plan.spec, error)
            raise
        renderer = connection.renderer
        work.decode = None if isinstance(renderer, MessagesOnly) else renderer.decode
        return await _drive(work, plan, connection, setting)


def _plan(work: _Work, setting: Setting, name: str) -> RunPlan:
    definition = work.experiment.definition
    per_run = definition.samples or setting.samples or samples_for(work.processor, None)
    base = work.experiment.name
    processor = work.processor
    is_no_op = isinstance(processor, NoOpRolloutProcessor)
    if isinstance(processor, RowsRolloutProcessor):
        processor = processor.under(setting.params)
    plan = plan_run(
        limited(f"{base}[{name}]" if name else base),
        tasks=work.tasks,
        processor=processor,
        rollout=fingerprinted(work.processor) if is_no_op else definition.rollout,
        scorer_code=scorer_fingerprint(
            definition,
            work.experiment.variant,
            work.experiment.parameters,
            judges=[judge.identity for judge in judges_in(work.experiment.arguments)],
            tasks=tasks_digest(work.tasks),
        ),
        samples=work.experiment.num_runs * per_run,
        sampling=setting.sampling,
        seed=definition.seed,
        group=RETRIES_ONLY,
        settings=work.settings,
    )
    series, is_fresh = series_of(base), bool(work.experiment.session.options.new)
    return structs.replace(plan, spec=structs.replace(plan.spec, series=series, fresh=is_fresh))


async def _add_remedy(work: _Work, spec: RunSpec, error: EndpointDown) -> None:
    """Adds advice to the error if the recorded run has nothing left to sample. The advice says how
    to score that run without an engine."""
    options = work.experiment.session.options
    retry = options.retry_failed
    recorded = await rolled_out_already(work.journal, spec, models=None, retry_failed=retry)
    if recorded is not None and not options.new:
        named = shlex.quote(f"model={recorded.spec.model}")
        remedy = f"with --holdfast-input-param {named}, it is scored without an engine"
        error.args = (f"{error}; nothing of {recorded.spec.name} is left to sample: {remedy}",)


def _models_meant(work: _Work, setting: Setting) -> Sequence[str] | None:
    """Returns the names that the setting's model may have in a recorded run. None means any
    embedded model, and () means that only the engine knows the name."""
    options, policy = work.experiment.session.options, work.experiment.policy
    if policy is not None and addresses(policy) is None:
        return (getattr(policy, "model", ""),)
    if setting.model is not None:
        return names_of(setting.model)
    if options.policy or policy or setting.base_url or os.environ.get(POLICY):
        return ()
    return None


async def _drive(work: _Work, plan: RunPlan, connection: Connection, setting: Setting) -> Run:
    options = work.experiment.session.options
    plan = plan.bind(connection)
    await plan.check_taken(connection)
    finished = await _find_finished(work, plan.spec)
    if finished is None:  # Raises before the run is created, which would stay empty.
        plan = await _bind_judges(work, plan)
    opened = await open_recorded(
        work.journal, plan.spec, work.tasks, new=options.new, resume=options.resume
    )
    run = opened.run
    work.experiment.session.follow(run.spec.name)
    if finished is not None and finished.id != run.id:
        await _bind_judges(work, plan)
    work.notes += await _resume_notes(work.journal, opened, retry=options.retry_failed)
    late, progress = _is_late(work.experiment), Progress()
    plan = structs.replace(plan, scorer=None if late else _scorer(work, [run]))
    engine = plan.engine(
        run,
        work.journal,
        connection,
        settles=not late,
        progress=progress,
        stop=work.stop,
        # With another scorer, failed scorings are repeated, and failed rollouts get another chance.
        reopen_failed=options.retry_failed or opened.rescored,
    )
    async with _report_progress(work, run, progress):
        ending = await _work_on(engine)
    _add_cuts(work, ending)
    return run


async def _find_finished(work: _Work, spec: RunSpec) -> Run | None:
    """Returns the recorded run with this spec, if it needs no more work. Returns None with the
    option `new`."""
    options = work.experiment.session.options
    if options.new:
        return None
    return await settled_already(
        work.journal, spec, models=(spec.model,), even_failed=not options.retry_failed
    )


async def _bind_judges(work: _Work, plan: RunPlan) -> RunPlan:
    """Checks the judges, and returns the plan with the names of their models. Only the judges'
    engines may know these names."""
    models = await check_judges(_judges(work.experiment), work.settings)
    return structs.replace(plan, spec=structs.replace(plan.spec, judge=models))


def _judges(experiment: Experiment) -> list[Judge]:
    arguments = {**experiment.arguments, **experiment.variant.keywords}
    return judges_of(experiment.definition.function, arguments)


async def _work_on(engine: Engine) -> Ending:
    try:
        return await engine.work()
    except RunHeld as error:
        who = str(error).partition(";")[0]
        raise RunHeld(
            f"{who}; wait for it, stop it, or begin another run with --holdfast-new"
        ) from error


@asynccontextmanager
async def _report_progress(work: _Work, run: Run, progress: Progress) -> AsyncIterator[None]:
    """Writes a line of progress from time to time while the body runs."""
    progress.shows_rewards = True

    async def report() -> None:
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            work.experiment.session.notify(f"{run.spec.name}: {progress.line()}")

    async with in_background(report(), name="progress"):
        yield


def _add_cuts(work: _Work, ending: Ending) -> None:
    if ending.fatal is not None:
        raise ending.fatal
    if ending.spent:
        raise SpendingLimitReached(ending.stopped)
    if not ending.stopped:
        work.stop.lift_limit()  # The next setting is a run with its own limit.
    work.notes += [
        f"{cut.trajectory}: record {cut.seq} {cut.reason}; {cut.lost} records were set aside, and "
        "the row went on from the last good one"
        for cut in ending.cuts
    ]


async def _resume_notes(journal: Journal, opened: Opened, *, retry: bool) -> list[str]:
    listed = [row for row in await journal.trajectories(opened.run) if not row.resting]
    settled = sum(row.settled for row in listed)
    started = sum(bool(row.records) for row in listed) - settled
    if opened.note or not (settled or started):
        return [opened.note] if opened.note else []
    if settled == len(listed) and not retry:
        return [_finished_note(opened.run)]
    name = opened.run.spec.name
    return [f"{name} goes on: {settled} of {len(listed)} rows were done, {started} begun"]


def _finished_note(run: Run) -> str:
    return (
        f"{run.spec.name} was finished already: this is its verdict from the journal "
        "(--holdfast-new begins another run)"
    )


# --- parts of the work


def _scorer(work: _Work, runs: Sequence[Run]) -> Scorer:
    experiment = work.experiment
    definition, variant = experiment.definition, experiment.variant
    import_models(definition.function)
    settings = {
        run.spec.name: setting for run, setting in zip(runs, variant.settings, strict=False)
    }
    specs = {run.spec.name: run.spec for run in runs}
    evaluation = _eval_metadata(experiment)

    def row_of(view: TrajectoryView) -> EvaluationRow:
        spec, setting = specs[view.key.run], settings[view.key.run]
        return scorer_row(view, spec, setting, mode=definition.mode, evaluation=evaluation)

    return scorer_of(
        definition.function,
        row_of=row_of,
        arguments={**experiment.arguments, **variant.keywords},
        several=definition.mode is not Mode.POINTWISE,
        log=None if definition.logger is None else definition.logger.log,
    )


def _eval_metadata(experiment: Experiment) -> EvalMetadata:
    return eval_metadata_of(
        experiment.definition, num_runs=experiment.num_runs, threshold=_threshold(experiment)
    )


def _settings(experiment: Experiment) -> Settings:
    definition, options = experiment.definition, experiment.session.options
    named = {
        "max_retry": options.max_retry,
        "max_cost": options.max_cost,
        "max_tokens_total": options.max_tokens_total,
        "patience": options.patience,
        "prices": options.price,
    }
    chosen = {name: value for name, value in named.items() if value is not None}
    return Settings(
        **{**definition.retrying.settings, **chosen},
        concurrency=options.max_concurrency or definition.max_concurrent_rollouts,
        scoring=ScoringPolicy(
            tries=definition.scorer_tries,
            timeout=definition.scorer_timeout,
            concurrency=options.max_concurrent_evaluations or definition.max_concurrent_evaluations,
        ),
    )


# --- what came of it


async def _outcome(work: _Work, runs: Sequence[Run], place: str) -> Outcome:
    experiment = work.experiment
    definition, options = experiment.definition, experiment.session.options
    fails = definition.retrying.fail_on_permanent_failure
    if options.fail_on_permanent_failure is not None:
        fails = options.fail_on_permanent_failure
    prices = work.settings.price_table
    parts, pages, tables = [], [], []
    for run in runs:
        results = await results_of(
            work.journal,
            run,
            num_runs=experiment.num_runs,
            source=place,
            prices=prices,
        )
        verdict = verdict_of(
            results,
            aggregation=definition.aggregation,
            threshold=_threshold(experiment),
            failures_fail=fails,
        )
        parts.append(Part(results, verdict))
        work.notes += [
            f"{run.spec.name}: {many(count, 'rollout')} reused from {other}"
            for other, count in results.reused.items()
        ]
        tables.append(await _table(work.journal, run, results))
        if options.output_dir is not None:
            await write_rows(
                work.journal,
                run,
                Path(options.output_dir),
                metadata=_eval_metadata(experiment),
                verdict=verdict,
            )
        if options.report is not None:
            page = await write_page(
                work.journal,
                run,
                Path(options.report),
                verdict=verdict,
                num_runs=experiment.num_runs,
                source=place,
                decode=work.decode,
                prices=prices,
            )
            pages.append(page)
    notes = tuple(work.notes)
    return Outcome(experiment.name, place, tuple(parts), notes, fails, tuple(pages), tuple(tables))


async def _table(journal: Journal, run: Run, results: Results) -> tuple[str, ...]:
    rewards: dict[str, list[float | None]] = {}
    for row in results.rows:
        rewards.setdefault(row.task, []).append(row.score)
    more = f"holdfast report {shlex.quote(results.run)} --all --journal {results.source}"
    return tuple(await first_rows(journal, run, rewards, limit=LISTED_ROWS, more=more))


def _threshold(experiment: Experiment) -> Threshold | None:
    options, own = experiment.session.options, experiment.definition.threshold
    changed = {
        "success": options.success_threshold,
        "standard_error": options.se_threshold,
        "clustered_standard_error": options.clustered_se_threshold,
    }
    changed = {name: value for name, value in changed.items() if value is not None}
    return structs.replace(own or Threshold(0.0), **changed) if changed else own
