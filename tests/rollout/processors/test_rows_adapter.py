"""A processor is its rollout; one that takes rows is called with a list of one."""

import asyncio

from holdfast.rollout.processors.processor import RolloutProcessor, start_rollout
from support.rollout.stage import TrajectoryUnderTest


class Plain(RolloutProcessor):
    async def rollout(self, t):
        return float(len(t.task.messages))


class Rows(Plain):
    calls = 0

    def __call__(self, tasks, config):
        self.calls += 1
        self.given = tasks, config
        return super().__call__(tasks, config)


async def returned(processor, subject):
    return await (await start_rollout(processor, await subject.session()))


def test_a_rollout_is_called_directly_without_a_config():
    assert asyncio.run(returned(Plain(), TrajectoryUnderTest())) == 1.0


def test_a_processor_that_overrides_call_gets_one_row_and_the_runs_params():
    processor, subject = Rows(), TrajectoryUnderTest(samples=2)
    assert asyncio.run(returned(processor, subject)) == 1.0
    (tasks, config), calls = processor.given, processor.calls
    assert (tasks, calls) == ([subject.task], 1)
    assert (config.model, config.completion_params["n"]) == ("oracle", 2)
