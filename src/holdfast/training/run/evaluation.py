"""Held-out tasks: evaluated as a run of their own in the same journal, as durable as any other."""

from collections.abc import Callable, Sequence

from msgspec import structs

from holdfast.engine.connect import Connection
from holdfast.engine.open_run import open_run
from holdfast.engine.running.run_plan import RunPlan
from holdfast.journal.journal import Journal
from holdfast.records.errors import HoldfastError
from holdfast.records.history import History
from holdfast.records.run import Run, RunSpec
from holdfast.records.task import Task, tasks_digest
from holdfast.training.report import HELD_OUT
from holdfast.training.run.progress import TrainingProgress


class EvaluationStopped(HoldfastError):
    """It ended before every task was settled."""


async def evaluate(
    plan: RunPlan,
    tasks: Sequence[Task],
    step: int,
    version: str,
    *,
    journal: Journal,
    connection: Connection,
    samples: int,
    deadline: float | None = None,
    max_tokens: int | None = None,
    report: Callable[[str], None],
    progress: TrainingProgress | None = None,
) -> float | None:
    """The mean reward on `tasks` with the weights `version` after `step`; an evaluation that was
    interrupted goes on. None for one that fails, or that takes longer than `deadline` seconds,
    which is reported: training goes on."""
    settings = structs.replace(
        plan.settings,
        run_deadline=deadline or plan.settings.run_deadline,
        max_tokens_total=None,  # Of the training's own rollouts.
    )
    spec = _spec(plan, tasks, version, samples=samples, max_tokens=max_tokens)
    try:
        # Before anything is trained, code may be another than at the first start.
        run = await open_run(journal, spec, tasks, accept_changes=step == 0)
        ending = (
            await structs.replace(plan, spec=spec, tasks=tasks, settings=settings)
            .engine(run, journal, connection, progress=progress and progress.evaluate(step))
            .work()
        )
        if ending.fatal is not None:
            raise ending.fatal
        if ending.stopped:
            raise EvaluationStopped(ending.stopped)
        reward = await _mean_reward(journal, run)
    except HoldfastError as error:
        report(f"the evaluation after step {step} failed, and training goes on: {error}")
        return None
    if reward is None:
        report(f"the evaluation after step {step} has no rewards, and training goes on")
    return reward


async def recorded_reward(
    plan: RunPlan,
    tasks: Sequence[Task],
    version: str,
    *,
    journal: Journal,
    samples: int,
    max_tokens: int | None = None,
) -> float | None:
    """What `evaluate` came to with `version`, if all of it is recorded: no engine is asked."""
    spec = _spec(plan, tasks, version, samples=samples, max_tokens=max_tokens)
    run = await journal.find_run(spec.name)
    if run is None or run.spec.differences(spec) or not (await journal.progress(run)).is_over:
        return None
    return await _mean_reward(journal, run)


def _spec(
    plan: RunPlan, tasks: Sequence[Task], version: str, *, samples: int, max_tokens: int | None
) -> RunSpec:
    sampling = plan.spec.sampling
    if max_tokens is not None:
        sampling = structs.replace(sampling, max_tokens=max_tokens)
    return structs.replace(
        plan.spec,
        sampling=sampling,
        name=f"{plan.spec.name}{HELD_OUT}{version}",
        command=None,  # That is the training's.
        samples=samples,
        tasks=tasks_digest(tasks),
    )


async def _mean_reward(journal: Journal, run: Run) -> float | None:
    """None where nothing has a reward."""
    rewards = [History(records).reward async for _, records in journal.histories(run)]
    valid = [reward for reward in rewards if reward is not None]
    return sum(valid) / len(valid) if valid else None
