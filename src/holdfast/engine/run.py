"""Opening a run: new, resumed, or refused because it is not the same run any more."""

from collections.abc import Iterable, Mapping, Sequence

from holdfast.engine.engine import Ending, Engine
from holdfast.engine.report import RunReport, build
from holdfast.engine.scorer import GroupScorer, PointScorer, Scorer
from holdfast.engine.settings import Settings
from holdfast.journal.journal import Journal
from holdfast.policy.policy import Policy
from holdfast.policy.renderer import ByteRenderer, Renderer
from holdfast.records.errors import UsageError
from holdfast.records.group import GroupPolicy
from holdfast.records.run import Run, RunSpec
from holdfast.records.sampling import Sampling
from holdfast.records.task import Task, as_tasks, tasks_digest
from holdfast.rollout.processor import as_processor, fingerprint_of


class RunChanged(UsageError):
    """The run is recorded with other tasks, settings or code."""

    def __init__(self, name: str, differences: Sequence[str]):
        listed = "\n".join(f"  {line}" for line in differences)
        super().__init__(
            f"run {name!r} is recorded differently:\n{listed}\n"
            "use --new to start another run, or --accept-changes to go on with this one"
        )
        self.differences = tuple(differences)


async def open_run(
    journal: Journal, spec: RunSpec, tasks: Sequence[Task], *, accept_changes: bool = False
) -> Run:
    """Creates the run, or finds it and makes sure that it is the same."""
    run = await journal.find_run(spec.name)
    if run is None:
        return await journal.create_run(spec, tasks)
    differences = run.spec.differences(spec)
    if not differences:
        return run
    if not accept_changes:
        raise RunChanged(spec.name, differences)
    return await journal.amend_run(run, spec, tasks, differences=differences)


async def free_name(journal: Journal, name: str) -> str:
    """`name`, or `name-2`, `name-3`, … when it is taken."""
    candidate, number = name, 1
    while await journal.find_run(candidate) is not None:
        number += 1
        candidate = f"{name}-{number}"
    return candidate


async def run(
    rollout: object,
    *,
    tasks: "Iterable[Task | Mapping[str, object]]",
    policy: Policy,
    journal: Journal,
    name: str,
    samples: int = 1,
    sampling: Sampling | None = None,
    seed: int | None = None,
    scorer: "PointScorer | GroupScorer | None" = None,
    renderer: Renderer | None = None,
    group: GroupPolicy | None = None,
    settings: Settings | None = None,
    accept_changes: bool = False,
) -> tuple[Ending, RunReport]:
    """Runs or resumes from Python what `holdfast run` does from a shell."""
    rows = as_tasks(tasks)
    processor = as_processor(rollout)
    renderer = renderer or ByteRenderer()
    spec = RunSpec(
        name=name,
        samples=samples,
        model=policy.model,
        sampling=sampling or Sampling(),
        seed=seed,
        rollout=fingerprint_of(rollout),
        scorer="" if scorer is None else fingerprint_of(scorer),
        renderer=renderer.name,
        tasks=tasks_digest(rows),
        group=group or GroupPolicy(),
    )
    await policy.check()
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
