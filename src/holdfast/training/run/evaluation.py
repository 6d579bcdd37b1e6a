"""Evaluates held-out tasks. An evaluation is a run of its own in the journal of the training, and
is as durable as any other run."""

from collections.abc import Callable, Sequence
from itertools import chain

from msgspec import Struct, structs

from holdfast.engine.connect import Connection
from holdfast.engine.export.export import history_of
from holdfast.engine.open_run import open_run
from holdfast.engine.progress.counters import Progress
from holdfast.engine.report import many
from holdfast.engine.running.run_plan import RunPlan
from holdfast.engine.settings import Settings
from holdfast.journal.sql.journal import Journal
from holdfast.records.errors import HoldfastError
from holdfast.records.run import Run, RunSpec
from holdfast.records.samples.summary import last_failure
from holdfast.records.task import Task, tasks_digest
from holdfast.records.trajectory import Status
from holdfast.training.report import HELD_OUT
from holdfast.training.run.batches import command_for
from holdfast.training.run.metrics import standard_error
from holdfast.training.settings import TrainingSettings


class EvaluationStopped(HoldfastError):
    """The evaluation ended before every task was settled."""


class HeldOutReward(Struct, frozen=True):
    """The mean reward over all trajectories that have one."""

    reward: float
    error: float | None
    """Its standard error, or None if there are too few tasks."""

    @property
    def numbers(self) -> dict[str, float]:
        """The values by the names that metrics have."""
        error = {} if self.error is None else {"eval_reward_error": self.error}
        return {"eval_reward": self.reward, **error}


class HeldOut(Struct, frozen=True):
    """The held-out tasks of a training."""

    plan: RunPlan
    tasks: Sequence[Task]
    settings: TrainingSettings
    journal: Journal

    async def evaluate(
        self,
        step: int,
        version: str,
        connection: Connection,
        *,
        report: Callable[[str], None],
        progress: Progress | None = None,
    ) -> HeldOutReward | None:
        """Returns the reward with the weights `version`, which are the weights after `step`.
        Continues an evaluation that was interrupted. Returns None if the evaluation fails or
        exceeds its deadline. The failure is reported, and training continues."""
        spec = self._spec(version)
        try:
            # Until a step is trained, the code may differ from the first start.
            run = await open_run(self.journal, spec, self.tasks, accept_changes=step == 0)
            plan = structs.replace(
                self.plan, spec=spec, tasks=self.tasks, settings=self._run_settings()
            )
            ending = await plan.engine(run, self.journal, connection, progress=progress).work()
            if ending.fatal is not None:
                raise ending.fatal
            if ending.stopped:
                raise EvaluationStopped(ending.stopped)
            held_out = await _reward(self.journal, run)
            why = await _why_missing(self.journal, run)
        except HoldfastError as error:
            report(f"the evaluation after step {step} failed, and training goes on: {error}")
            return None
        if held_out is None:
            report(f"the evaluation after step {step} has no rewards, and training goes on: {why}")
        elif why:
            report(f"the evaluation after step {step} is not whole: {why}")
        return held_out

    async def recorded(self, version: str) -> HeldOutReward | None:
        """Returns the recorded reward of `version`, or None if its evaluation is not completely
        recorded. Sends nothing to an engine."""
        spec = self._spec(version)
        run = await self.journal.find_run(spec.name)
        if run is None or run.spec.differences(spec):
            return None
        if not (await self.journal.progress(run)).is_over:
            return None
        return await _reward(self.journal, run)

    def _run_settings(self) -> Settings:
        own = self.plan.settings
        return structs.replace(
            own,
            run_deadline=self.settings.eval_deadline or own.run_deadline,
            max_tokens_total=None,  # This limit belongs to the training's own rollouts.
        )

    def _spec(self, version: str) -> RunSpec:
        spec, limit = self.plan.spec, self.settings.eval_max_tokens
        sampling = spec.sampling
        return structs.replace(
            spec,
            sampling=sampling if limit is None else structs.replace(sampling, max_tokens=limit),
            name=f"{spec.name}{HELD_OUT}{version}",
            command=None,  # The command belongs to the training.
            samples=self.settings.eval_samples,
            tasks=tasks_digest(self.tasks),
        )


async def _reward(journal: Journal, run: Run) -> HeldOutReward | None:
    """Returns the mean reward, or None if no trajectory has one."""
    by_task: dict[str, list[float]] = {}
    for task, reward in await journal.rewards(run):
        by_task.setdefault(task, []).append(reward)
    rewards = list(chain.from_iterable(by_task.values()))
    if not rewards:
        return None
    return HeldOutReward(sum(rewards) / len(rewards), standard_error(list(by_task.values())))


async def _why_missing(journal: Journal, run: Run) -> str:
    """Returns why some trajectories have no reward; "" if all have one."""
    rows = await journal.trajectories(run)
    failed = [row for row in rows if row.status is Status.FAILED]
    unscored = len(rows) - len(failed) - len(await journal.rewards(run))
    more = f"; {command_for('report', run.spec.name, journal)} says more"
    if failed:
        failure = last_failure(await history_of(journal, failed[-1]))
        example = "" if failure is None else f", the last one by: {failure.line}"
        return f"{len(failed)} of {many(len(rows), 'trajectory')} failed{example}{more}"
    return f"the scorer gave no reward for {many(unscored, 'trajectory')}{more}" if unscored else ""
