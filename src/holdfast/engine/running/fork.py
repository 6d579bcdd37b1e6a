"""Forks trajectories from Python, like `holdfast fork` from a shell."""

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

from holdfast.engine.arguments import check_journal, settings_from
from holdfast.engine.export.read import opened_to_read
from holdfast.engine.open_run import free_name
from holdfast.engine.options import JOURNAL
from holdfast.engine.progress.watch import OnProgress, check_on_progress
from holdfast.engine.running.forks import find_row, fork_at
from holdfast.engine.running.result import RunResult
from holdfast.engine.running.run import connection_of, meant_by, work_on
from holdfast.engine.running.run_plan import NO_CODE, plan_run, with_fork
from holdfast.engine.scoring.scorer import GroupScorer, PointScorer, Scorer
from holdfast.engine.settings import Settings
from holdfast.journal.sql.find_run import run_named
from holdfast.journal.sql.journal import Journal
from holdfast.policy.policy import Policy
from holdfast.policy.rendering.renderer import Renderer
from holdfast.records.encoding.declared import checks_arguments
from holdfast.rollout.processors.processor import as_processor, fingerprinted


@checks_arguments(own="policy journal name scorer settings model on_progress samples")
async def fork(
    rollout: object,
    *,
    run: str,
    trajectory: str,
    at: str,
    say: str | None = None,
    edit: str | None = None,
    samples: int = 1,
    name: str | None = None,
    policy: "Policy | str | Sequence[str] | None" = None,
    journal: Journal | Path | str = JOURNAL.default,
    seed: int | None = None,
    scorer: "PointScorer | GroupScorer | None" = None,
    renderer: Renderer | None = None,
    settings: "Settings | Mapping[str, object] | None" = None,
    model: "str | PurePath | None" = None,
    api_key: str | None = None,
    on_progress: OnProgress = None,
) -> RunResult:
    """Samples a recorded trajectory again from one of its turns on, in a new run. The trajectory is
    TASK/SAMPLE of the run `run`. Everything before the turn is taken from the journal, token by
    token. Works until the new run is over.

    `at` is the step of the turn. `say` adds a user message before it. `edit` replaces the last
    message that the turn was given. If `at` is the step of a tool or an environment, `edit`
    replaces its answer. The new run samples as `run` does.

    With `name`, the same call again continues the new run. Without `name`, each call begins a run
    (`RUN-fork`). `rollout` and the other arguments are as in `holdfast.run`. Raises `UsageError`,
    before anything is written, if the trajectory cannot be forked in this way.
    """
    check_journal(journal)
    check_on_progress(on_progress)
    chosen = settings_from(settings) or Settings()
    make_connection = connection_of(
        policy, renderer, model=model, api_key=api_key, patience=chosen.patience
    )
    async with opened_to_read(journal) as opened:
        recorded = await run_named(opened, run)
        row = await find_row(opened, recorded, trajectory)
        forked = await fork_at(opened, recorded, row, at, say=say, edit=edit)
        name = name or await free_name(opened, f"{run}-fork")
    plan = plan_run(
        name,
        processor=as_processor(rollout),
        rollout=fingerprinted(rollout),
        scorer=None if scorer is None else Scorer(scorer),
        scorer_code=NO_CODE if scorer is None else fingerprinted(scorer),
        tasks=[forked.task],
        samples=samples,
        seed=forked.seed() if seed is None else seed,
        settings=chosen,
    )
    return await work_on(
        with_fork(plan, forked.origin, forked.spec, forked),
        journal,
        make_connection,
        await meant_by(journal, policy, renderer, model=model, api_key=api_key),
        starts_engine=policy is None,
        on_progress=on_progress,
    )
