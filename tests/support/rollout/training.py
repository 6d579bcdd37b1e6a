"""Rollouts whose samples are looked at as a trainer gets them."""

import asyncio

from holdfast.records.message import user
from holdfast.records.sampling import Sampling
from holdfast.records.task import Task
from holdfast.rollout.processors.processor import start_rollout
from holdfast.rollout.processors.training import TrainingRolloutProcessor
from support.rollout.stage import Oracle, TrajectoryUnderTest


def answered(
    processor: TrainingRolloutProcessor | None = None,
    task: Task | None = None,
    *,
    sampling: Sampling | None = None,
    model: str = "oracle",
) -> Oracle:
    """One row through the processor, as the engine drives it."""
    subject = TrajectoryUnderTest(task=task, model=model)

    async def main() -> None:
        session = await subject.session(sampling=sampling)
        made = processor or TrainingRolloutProcessor()
        await made.setup()
        try:
            await (await start_rollout(made, session))
        finally:
            await made.acleanup()

    asyncio.run(main())
    return subject.oracle


def with_params(**params: object) -> Task:
    metadata: dict[str, object] = {"completion_params": params}
    return Task(id="t", messages=(user("do it"),), metadata=metadata)
