"""Rollouts whose samples are looked at as a trainer gets them."""

import asyncio

from holdfast.records.message import user
from holdfast.records.sampling import Sampling
from holdfast.records.task import Task
from holdfast.rollout.context import Rollout
from holdfast.rollout.processors.processor import RolloutConfig
from holdfast.rollout.processors.training import TrainingRolloutProcessor
from support.rollout.stage import Oracle, Play


def answered(
    processor: TrainingRolloutProcessor | None = None,
    task: Task | None = None,
    *,
    sampling: Sampling | None = None,
    **config: object,
) -> Oracle:
    """One row through the processor, as the engine drives it."""
    play = Play(task=task)

    async def main() -> None:
        session = await play.session(sampling=sampling)
        given = RolloutConfig(
            "oracle", sampling or Sampling(), lambda task: Rollout(session), **config
        )
        made = processor or TrainingRolloutProcessor()
        await made.setup()
        try:
            (job,) = made([play.task], given)
            await job
        finally:
            await made.acleanup()

    asyncio.run(main())
    return play.oracle


def with_params(**params: object) -> Task:
    metadata: dict[str, object] = {"completion_params": params}
    return Task(id="t", messages=(user("do it"),), metadata=metadata)
