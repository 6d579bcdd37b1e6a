"""Running or resuming from Python what `holdfast run` does from a shell."""

from collections.abc import Iterable, Mapping

from msgspec import structs

from holdfast.engine.engine import Ending, Engine
from holdfast.engine.open_run import open_run
from holdfast.engine.report import RunReport, build
from holdfast.engine.scoring.scorer import GroupScorer, PointScorer, Scorer
from holdfast.engine.settings import Settings
from holdfast.journal.journal import Journal
from holdfast.policy.client.caveats import caveats
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.policy import Policy
from holdfast.policy.rendering.renderer import Renderer
from holdfast.policy.rendering.select import renderer_of
from holdfast.records.errors import UsageError
from holdfast.records.group import GroupPolicy
from holdfast.records.run import RunSpec
from holdfast.records.sampling import Sampling
from holdfast.records.task import Task, as_tasks, tasks_digest
from holdfast.rollout.processors.processor import as_processor, fingerprinted
from holdfast.rollout.processors.training import samples_for


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
    _check_given(policy, journal, scorer=scorer, settings=settings)
    rows = as_tasks(tasks)
    if not rows:
        raise UsageError(f"run {name!r} has no tasks; give one or more")
    processor = as_processor(rollout)
    # All that can be wrong with it is said before the endpoint is asked anything.
    code, rollout_code = fingerprinted(rollout)
    judge, scorer_code = ("", None) if scorer is None else fingerprinted(scorer)
    spec = RunSpec(
        name=name,
        samples=samples_for(processor, samples),
        model=policy.model,
        sampling=Sampling() if sampling is None else sampling,
        seed=seed,
        rollout=code,
        scorer=judge,
        renderer="",
        tasks=tasks_digest(rows),
        group=GroupPolicy() if group is None else group,
        rollout_code=rollout_code,
        scorer_code=scorer_code,
    )
    spec.check(tasks=len(rows))
    await policy.check()
    _tell_caveats(policy, spec, settings)
    renderer = renderer or renderer_of(policy)
    spec = structs.replace(spec, model=policy.model, renderer=renderer.name)
    opened = await open_run(journal, spec, rows, accept_changes=accept_changes)
    engine = Engine(
        run=opened,
        journal=journal,
        policy=policy,
        renderer=renderer,
        processor=processor,
        scorer=None if scorer is None else Scorer(scorer),
        settings=settings,
    )
    ending = await engine.work()
    if ending.fatal is not None:
        raise ending.fatal
    return ending, await build(journal, opened)


def _tell_caveats(policy: Policy, spec: RunSpec, settings: Settings | None) -> None:
    """What the engine cannot keep of what is promised, before anything is sampled."""
    if isinstance(policy, EnginePolicy):
        in_parts = settings is not None and settings.partial_tokens > 0
        for line in caveats(policy, spec.sampling, seed=spec.seed, in_parts=in_parts):
            policy.tell(line)


def _check_given(policy: object, journal: object, *, scorer: object, settings: object) -> None:
    """The mistakes that are near: an address where what is found at it is wanted."""
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
    return all(callable(getattr(value, one, None)) for one in methods)
