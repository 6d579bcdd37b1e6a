"""Held-out tasks: evaluated as a run of their own in the same journal, as durable as any other."""

from collections.abc import Callable, Sequence

from msgspec import Struct, structs

from holdfast.engine.connect import Connection
from holdfast.engine.open_run import open_run
from holdfast.engine.progress.counters import Progress
from holdfast.engine.running.run_plan import RunPlan
from holdfast.engine.settings import Settings
from holdfast.journal.journal import Journal
from holdfast.records.errors import HoldfastError
from holdfast.records.run import Run, RunSpec
from holdfast.records.task import Task, tasks_digest
from holdfast.training.report import HELD_OUT
from holdfast.training.settings import TrainingSettings


class EvaluationStopped(HoldfastError):
    """It ended before every task was settled."""


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
    ) -> float | None:
        """The mean reward with the weights `version` after `step`; an evaluation that was
        interrupted goes on. None for one that fails, or that takes longer than its deadline, which
        is reported: training goes on."""
        spec = self._spec(version)
        try:
            # Before anything is trained, code may be another than at the first start.
            run = await open_run(self.journal, spec, self.tasks, accept_changes=step == 0)
            plan = structs.replace(
                self.plan, spec=spec, tasks=self.tasks, settings=self._run_settings()
            )
            ending = await plan.engine(run, self.journal, connection, progress=progress).work()
            if ending.fatal is not None:
                raise ending.fatal
            if ending.stopped:
                raise EvaluationStopped(ending.stopped)
            reward = await _mean_reward(self.journal, run)
        except HoldfastError as error:
            report(f"the evaluation after step {step} failed, and training goes on: {error}")
            return None
        if reward is None:
            report(f"the evaluation after step {step} has no rewards, and training goes on")
        return reward

    async def recorded(self, version: str) -> float | None:
        """The result of `evaluate` with `version`, if all of it is recorded; no engine is asked."""
        spec = self._spec(version)
        run = await self.journal.find_run(spec.name)
        if run is None or run.spec.differences(spec):
            return None
        if not (await self.journal.progress(run)).is_over:
            return None
        return await _mean_reward(self.journal, run)

    def _run_settings(self) -> Settings:
        own = self.plan.settings
        return structs.replace(
            own,
            run_deadline=self.settings.eval_deadline or own.run_deadline,
            max_tokens_total=None,  # Of the training's own rollouts.
        )

    def _spec(self, version: str) -> RunSpec:
        spec, limit = self.plan.spec, self.settings.eval_max_tokens
        sampling = spec.sampling
        return structs.replace(
            spec,
            sampling=sampling if limit is None else structs.replace(sampling, max_tokens=limit),
            name=f"{spec.name}{HELD_OUT}{version}",
            command=None,  # That is the training's.
            samples=self.settings.eval_samples,
            tasks=tasks_digest(self.tasks),
        )


async def _mean_reward(journal: Journal, run: Run) -> float | None:
    """None if nothing has a reward."""
    rewards = [reward for _, reward in await journal.rewards(run)]
    return sum(rewards) / len(rewards) if rewards else None
