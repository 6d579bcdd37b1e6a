"""The plan of a run, and the steps from it to the engine.

The command line, `holdfast.run` and evaluations all take these steps:

    plan = plan_run(name, …)                         # checked; no engine is asked yet
    plan = plan.bind(connection)                     # the model and its renderer are known
    await plan.check_taken(connection)               # the engine accepts such requests
    plan = await plan.bind_scorer()                  # the scorer's own engine is there
    run = await open_run(journal, plan.spec, …)      # new, resumed, or refused
    ending = await plan.engine(run, journal, connection).work()
    report = await build(journal, run)
"""

from collections.abc import Awaitable, Callable, Collection, Sequence

from msgspec import Struct, field, structs

from holdfast.engine.connect import Connection
from holdfast.engine.guards.spending import check_price
from holdfast.engine.progress.counters import Progress
from holdfast.engine.running.engine import Engine
from holdfast.engine.running.forks import Fork
from holdfast.engine.scoring.scorer import Scorer
from holdfast.engine.settings import Settings
from holdfast.engine.stop import Stop
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import Worker
from holdfast.policy.rendering.reasoning_effort import renderer_at
from holdfast.records.errors import UsageError
from holdfast.records.group import GroupPolicy
from holdfast.records.run import Code, ForkOrigin, Run, RunSpec
from holdfast.records.sampling import Sampling
from holdfast.records.task import Task, tasks_digest
from holdfast.rollout.processors.processor import RolloutProcessor
from holdfast.rollout.processors.training import samples_for
from holdfast.worlds.contract.spec import WorldSpec, as_spec, spec_of
from holdfast.worlds.contract.world import no_progress
from holdfast.worlds.running.worlds import Worlds

Fingerprint = tuple[str, Code | None]
"""A digest of user code, and a description of the code that it covers."""
NO_CODE: Fingerprint = ("", None)
NO_TOKENS = "this engine gives messages without token ids: good for evaluation, not for training"


class RunPlan(Struct, frozen=True, kw_only=True):
    """What a run samples, and how it works."""

    spec: RunSpec
    """The spec to record for the run. `model` and `renderer` are "" until `bind` fills them in."""
    tasks: Sequence[Task]
    processor: RolloutProcessor
    scorer: Scorer | None = None
    # A factory, because it reads a price table.
    settings: Settings = field(default_factory=Settings)
    world: WorldSpec | None = None
    """The world of each task that names none."""
    fork: Fork | None = None
    """The forks that the run samples. None if the run samples no forks, or has already begun."""

    def bind(self, connection: Connection) -> "RunPlan":
        """Returns the plan with the model and the renderer of a connected policy.

        Raises `Unsupported` if the renderer or the engine cannot do what the sampling asks for. The
        error comes once, before any trajectory begins.
        """
        check_supported(connection, self.spec.sampling)
        if self.fork is not None:
            self.fork.check(connection.renderer)
        check_price(self.settings, connection.policy.model)
        model, renderer = connection.policy.model, connection.renderer.name
        return structs.replace(
            self, spec=structs.replace(self.spec, model=model, renderer=renderer)
        )

    async def check_taken(self, connection: Connection) -> None:
        """Asks the engine whether it accepts the sampling. Raises `Unsupported` if the engine
        refuses it.

        The error comes once, before the run is recorded with that sampling.
        """
        # Imported late, so that bad input is reported fast.
        from holdfast.policy.client.replicas import EnginePolicy

        if isinstance(connection.policy, EnginePolicy):
            await connection.policy.check_taken(self.spec.sampling)

    async def bind_scorer(self) -> "RunPlan":
        """Returns the plan with the names of the models that its scorer asks. A judge's model may
        be known only to its engine, which is asked here.

        Raises an error if the scorer cannot score, for example if a judge's engine is down, or if
        there is a cost limit and a judge's model has no price. The error comes once, before
        anything is sampled.
        """
        scorer, samples = self.scorer, self.spec.samples
        models = [] if scorer is None else await scorer.check(samples=samples)
        for model in models:
            check_price(self.settings, model)
        return structs.replace(self, spec=structs.replace(self.spec, judge=", ".join(models)))

    @property
    def is_rewarded(self) -> bool:
        """Whether a trajectory may have a reward, as far as that is known before sampling."""
        return self.scorer is not None or self.processor.may_reward

    def check_rewarded(self) -> None:
        """Raises `UsageError` if nothing can give a trajectory a reward."""
        if not self.is_rewarded:
            raise UsageError(
                f"nothing gives the trajectories of run {self.spec.name!r} a reward: give a scorer "
                "(`def score(trajectory)` beside the rollout, or --scorer), or return the reward "
                "from the rollout"
            )

    def report_caveats(self, connection: Connection) -> None:
        """Reports, before anything is sampled, which guarantees the engine cannot keep."""
        # Imported late, so that bad input is reported fast.
        from holdfast.policy.client.caveats import caveats
        from holdfast.policy.client.replicas import EnginePolicy

        policy, spec = connection.policy, self.spec
        if not isinstance(policy, EnginePolicy):
            return
        if not policy.has_tokens:
            policy.notify(NO_TOKENS)
        in_parts = self.processor.streams_replies or self.settings.partial_tokens > 0
        for line in caveats(policy, spec.sampling, seed=spec.seed, in_parts=in_parts):
            policy.notify(line)

    def engine(
        self,
        run: Run,
        journal: Journal,
        connection: Connection,
        *,
        progress: Progress | None = None,
        stop: Stop | None = None,
        settles: bool = True,
        reopen_failed: bool = False,
        lost_versions: Collection[str] = (),
        on_joined: Callable[[Worker], Awaitable[None]] | None = None,
    ) -> Engine:
        """Returns the engine that works on the opened run."""
        return Engine(
            run=run,
            journal=journal,
            policy=connection.policy,
            renderer=connection.renderer,
            processor=self.processor,
            scorer=self.scorer,
            settles=settles,
            settings=self.settings,
            progress=progress,
            stop=stop,
            reopen_failed=reopen_failed,
            lost_versions=lost_versions,
            command=self.spec.command,
            on_joined=on_joined,
            worlds=self._worlds(run, journal, connection),
        )

    def _worlds(self, run: Run, journal: Journal, connection: Connection) -> Worlds:
        named = {spec.identity: spec for task in self.tasks if (spec := spec_of(task)) is not None}
        wanted = [*named.values(), *([] if self.world is None else [self.world])]
        return Worlds(
            journal,
            run,
            default=self.world,
            wanted=wanted,
            at_once=self.settings.worlds,
            patience=self.settings.patience,
            notify=getattr(connection.policy, "notify", no_progress),
        )


def with_fork(plan: RunPlan, origin: ForkOrigin, spec: RunSpec, fork: Fork | None) -> RunPlan:
    """Returns the plan of a run of forks. The sampling comes from `spec`. `fork` is None if the run
    has begun."""
    made = structs.replace(plan.spec, fork=origin.to_text(), sampling=spec.sampling)
    return structs.replace(plan, spec=made, fork=fork)


def check_supported(connection: Connection, sampling: Sampling) -> None:
    """Raises `Unsupported` if the policy cannot follow the sampling."""
    # Imported late, so that bad input is reported fast.
    from holdfast.policy.client.replicas import EnginePolicy

    renderer_at(connection.renderer, sampling)
    if isinstance(connection.policy, EnginePolicy):
        connection.policy.check_sampling(sampling)


def plan_run(
    name: str,
    *,
    tasks: Sequence[Task],
    processor: RolloutProcessor,
    rollout: Fingerprint,
    scorer: Scorer | None = None,
    scorer_code: Fingerprint = NO_CODE,
    samples: int | None = None,
    sampling: Sampling | None = None,
    seed: int | None = None,
    group: GroupPolicy | None = None,
    settings: Settings | None = None,
    world: WorldSpec | str | None = None,
) -> RunPlan:
    """Makes and checks the plan of a run. Raises `UsageError`.

    `samples` is the number per task. None means the processor's own number, or 1.
    """
    world = None if world is None else as_spec(world)
    spec = RunSpec(
        name=name,
        samples=samples_for(processor, samples),
        model="",
        sampling=Sampling() if sampling is None else sampling,
        seed=seed,
        rollout=rollout[0],
        scorer=scorer_code[0],
        renderer="",
        tasks=tasks_digest(tasks),
        group=GroupPolicy() if group is None else group,
        rollout_code=rollout[1],
        scorer_code=scorer_code[1],
        world="" if world is None else world.identity,
    )
    spec.check(tasks=len(tasks))
    if scorer is not None:
        scorer.check_tasks(tasks)
    return RunPlan(
        spec=spec,
        tasks=tasks,
        processor=processor,
        scorer=scorer,
        settings=Settings() if settings is None else settings,
        world=world,
    )
