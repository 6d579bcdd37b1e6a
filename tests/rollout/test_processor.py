"""Processors: how rows become asyncio tasks, and what a run is known by."""

import asyncio
import functools

import pytest
from stage import Play, call

from holdfast.records.errors import UsageError
from holdfast.records.sampling import Sampling
from holdfast.records.task import as_tasks
from holdfast.rollout.context import Rollout
from holdfast.rollout.processor import (
    FunctionProcessor,
    RolloutConfig,
    RolloutProcessor,
    SingleTurnRolloutProcessor,
    as_processor,
    fingerprint_of,
)


async def solve(t):
    return 1.0


async def solve_otherwise(t, how=None):
    return 2.0


def test_task_i_belongs_to_row_i():
    class Slowest(RolloutProcessor):
        async def rollout(self, t):
            await asyncio.sleep(0.02 if t == "a" else 0)
            return ord(t)

    async def main():
        rows = as_tasks([{"id": name, "prompt": name} for name in "abc"])
        config = RolloutConfig("m", Sampling(), lambda task: task.id)
        jobs = Slowest()(rows, config)
        return [chr(reward) for reward in await asyncio.gather(*jobs)]

    assert asyncio.run(main()) == ["a", "b", "c"]


def test_a_row_that_exits_is_one_failed_task():
    class Exits(RolloutProcessor):
        async def rollout(self, t):
            raise SystemExit(3)

    async def main():
        (job,) = Exits()(as_tasks([{"prompt": "x"}]), RolloutConfig("m", Sampling(), lambda t: t))
        await asyncio.wait({job})
        return job.exception()

    assert "SystemExit(3)" in str(asyncio.run(main()))


def test_the_single_turn_processor_asks_once():
    play = Play()

    async def main():
        session = await play.session()
        config = RolloutConfig("m", Sampling(), lambda task: Rollout(session))
        (job,) = SingleTurnRolloutProcessor()([play.task], config)
        await job
        return await play.history()

    history = asyncio.run(main())
    assert [step.message.text for step in history.generations] == ["re run/t/0/0"]


def test_a_processor_without_a_rollout_says_so():
    with pytest.raises(UsageError, match="defines no `async def rollout"):
        asyncio.run(RolloutProcessor().rollout(None))


def test_functions_classes_and_instances_are_processors():
    assert isinstance(as_processor(solve), FunctionProcessor)
    assert isinstance(as_processor(functools.partial(solve_otherwise, how=1)), FunctionProcessor)
    assert isinstance(as_processor(SingleTurnRolloutProcessor), SingleTurnRolloutProcessor)
    mine = SingleTurnRolloutProcessor()
    assert as_processor(mine) is mine


@pytest.mark.parametrize("candidate", [lambda t: 1, 3, None, "solve", call])
def test_anything_else_is_refused_with_what_is_wanted(candidate):
    with pytest.raises(UsageError, match="is no rollout: it wants an async function"):
        as_processor(candidate)


def test_a_fingerprint_names_the_function_and_covers_its_file(tmp_path):
    assert fingerprint_of(solve).startswith("solve@")
    assert fingerprint_of(solve) == fingerprint_of(as_processor(solve))
    assert fingerprint_of(SingleTurnRolloutProcessor).startswith("SingleTurnRolloutProcessor@")
    assert fingerprint_of(SingleTurnRolloutProcessor()) == fingerprint_of(
        SingleTurnRolloutProcessor
    )


def test_a_fingerprint_sees_through_wrappers():
    @functools.wraps(solve)
    async def wrapped(t):
        return await solve(t)

    partial = functools.partial(solve_otherwise, how=1)
    assert fingerprint_of(wrapped) == fingerprint_of(solve)
    assert fingerprint_of(partial) == fingerprint_of(solve_otherwise)


def test_a_changed_file_is_another_fingerprint(tmp_path):
    def made(text):
        path = tmp_path / "mine.py"
        path.write_text(text)
        scope = {}
        exec(compile(text, str(path), "exec"), scope)
        return fingerprint_of(scope["go"])

    before = made("PROMPT = 'a'\nasync def go(t): ...\n")
    assert made("PROMPT = 'b'\nasync def go(t): ...\n") != before
    assert made("PROMPT = 'a'\nasync def go(t): ...\n") == before
