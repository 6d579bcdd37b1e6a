"""Running or resuming from Python what `holdfast run` does from a shell."""

from collections.abc import Iterable, Mapping

from holdfast.engine.engine import Ending, Engine
from holdfast.engine.opening import open_run
from holdfast.engine.report import RunReport, build
from holdfast.engine.scorer import GroupScorer, PointScorer, Scorer
from holdfast.engine.settings import Settings
from holdfast.journal.journal import Journal
from holdfast.policy.choice import renderer_of
from holdfast.policy.policy import Policy
from holdfast.policy.renderer import Renderer
from holdfast.records.errors import UsageError
from holdfast.records.group import GroupPolicy
from holdfast.records.run import RunSpec
from holdfast.records.sampling import Sampling
from holdfast.records.task import Task, as_tasks, tasks_digest
from holdfast.rollout.processor import as_processor, fingerprint_of
from holdfast.rollout.training import samples_for


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
    rows = as_tasks(tasks)
    if not rows:
        raise UsageError(f"run {name!r} has no tasks; give one or more")
    processor = as_processor(rollout)
    await policy.check()
    renderer = renderer or renderer_of(policy)
    spec = RunSpec(
        name=name,
        samples=samples_for(processor, samples),
        model=policy.model,
        sampling=sampling or Sampling(),
        seed=seed,
        rollout=fingerprint_of(rollout),
        scorer="" if scorer is None else fingerprint_of(scorer),
        renderer=renderer.name,
        tasks=tasks_digest(rows),
        group=group or GroupPolicy(),
    )
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
