"""Held-out tasks: evaluated as a run of their own in the same journal, as durable as any other."""

from collections.abc import Callable, Sequence

from msgspec import structs

from holdfast.engine.connect import Connection
from holdfast.engine.open_run import open_run
from holdfast.engine.run_plan import RunPlan
from holdfast.journal.journal import Journal
from holdfast.records.errors import HoldfastError
from holdfast.records.history import History
from holdfast.records.task import Task, tasks_digest


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
    report: Callable[[str], None],
) -> float | None:
    """The mean reward on `tasks` with the weights `version` after `step`; an evaluation that was
    interrupted goes on. None for one that fails, which is reported: training goes on."""
    spec = structs.replace(
        plan.spec,
        name=f"{plan.spec.name}.held-out.{version}",
        samples=samples,
        tasks=tasks_digest(tasks),
    )
    try:
        run = await open_run(journal, spec, tasks)
        ending = (
            await structs.replace(plan, spec=spec, tasks=tasks)
            .engine(run, journal, connection)
            .work()
        )
        if ending.fatal is not None:
            raise ending.fatal
        if ending.stopped:
            raise EvaluationStopped(ending.stopped)
        rewards = [History(records).reward async for _, records in journal.histories(run)]
    except HoldfastError as error:
        report(f"the evaluation after step {step} failed, and training goes on: {error}")
        return None
    valid = [reward for reward in rewards if reward is not None]
    if not valid:
        report(f"the evaluation after step {step} has no rewards, and training goes on")
        return None
    return sum(valid) / len(valid)
