"""Running or resuming from Python what `holdfast run` does from a shell."""

from collections.abc import Iterable, Mapping

from holdfast.engine.connect import connect_policy
from holdfast.engine.engine import Ending
from holdfast.engine.open_run import open_run
from holdfast.engine.report import RunReport, build
from holdfast.engine.run_plan import NO_CODE, plan_run
from holdfast.engine.scoring.scorer import GroupScorer, PointScorer, Scorer
from holdfast.engine.settings import Settings
from holdfast.journal.journal import Journal
from holdfast.policy.policy import Policy
from holdfast.policy.rendering.renderer import Renderer
from holdfast.records.errors import UsageError
from holdfast.records.group import GroupPolicy
from holdfast.records.sampling import Sampling
from holdfast.records.task import Task, as_tasks
from holdfast.rollout.processors.processor import as_processor, fingerprinted


async def run(
    rollout: object,
    *,
    tasks: "Iterable[Task | Mapping[str, object]]",
    policy: Policy,
    journal: Journal,
    name: str,
    samples: int | None = None,
    sampling: Sampling | None = None,
    seed: int | None = None,
    scorer: "PointScorer | GroupScorer | None" = None,
    renderer: Renderer | None = None,
    group: GroupPolicy | None = None,
    settings: Settings | None = None,
    accept_changes: bool = False,
) -> tuple[Ending, RunReport]:
    """Works until everything is settled, or the run is stopped; raises what is fatal to it.

    `samples` per task: when not given, the `n` of a `TrainingRolloutProcessor`, else 1.
    `renderer`: when not given, that of the tokenizer which the engine says its model has.
    """
    _check_arguments(policy, journal, scorer=scorer, settings=settings)
    rows = as_tasks(tasks)
    if not rows:
        raise UsageError(f"run {name!r} has no tasks; give one or more")
    # Every mistake in it is reported before the endpoint is asked anything.
    plan = plan_run(
        name,
        tasks=rows,
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
    connection = await connect_policy(policy, renderer)
    plan = plan.bind(connection)
    plan.report_caveats(connection)
    opened = await open_run(journal, plan.spec, rows, accept_changes=accept_changes)
    ending = await plan.engine(opened, journal, connection).work()
    if ending.fatal is not None:
        raise ending.fatal
    return ending, await build(journal, opened)


def _check_arguments(policy: object, journal: object, *, scorer: object, settings: object) -> None:
    """Names the easy mistakes: an address instead of the policy or the journal at it."""
    if not _has(policy, "check", "sample"):
        raise UsageError(
            f"policy is of type {type(policy).__name__}, and no policy; for the engine at an "
            "address, give holdfast.EnginePolicy(URL, MODEL)"
        )
    if not _has(journal, "find_run", "create_run"):
        raise UsageError(
            f"journal is of type {type(journal).__name__}, and no journal; for the one in a file, "
            "give holdfast.open_journal(PATH), and close it afterwards"
        )
    if scorer is not None and not callable(scorer):
        raise UsageError(f"scorer is a function of one argument, not {scorer!r:.100}")
    if settings is not None and not isinstance(settings, Settings):
        raise UsageError(f"settings is a Settings(…), not {settings!r:.100}")


def _has(value: object, *methods: str) -> bool:
    return all(callable(getattr(value, method, None)) for method in methods)
