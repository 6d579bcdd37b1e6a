"""Processors: how rows become asyncio tasks, and what a run is known by."""

import asyncio
import functools
import os
import subprocess
import sys

import pytest

from holdfast.records.errors import UsageError
from holdfast.records.sampling import Sampling
from holdfast.records.task import as_tasks
from holdfast.rollout.context import Rollout
from holdfast.rollout.processors.processor import (
    FunctionProcessor,
    RolloutConfig,
    RolloutProcessor,
    SingleTurnRolloutProcessor,
    as_processor,
    fingerprint_of,
    fingerprinted,
)
from support.rollout.stage import TrajectoryUnderTest, call


async def solve(t):
    return 1.0


async def solve_otherwise(t, how=None):
    return 2.0


async def test_task_i_belongs_to_row_i():
    class Slowest(RolloutProcessor):
        async def rollout(self, t):
            await asyncio.sleep(0.02 if t == "a" else 0)
            return ord(t)

    rows = as_tasks([{"id": name, "prompt": name} for name in "abc"])
    config = RolloutConfig("m", Sampling(), lambda task: task.id)
    jobs = Slowest()(rows, config)
    assert ([chr(reward) for reward in await asyncio.gather(*jobs)]) == ["a", "b", "c"]


async def test_a_row_that_exits_is_one_failed_task():
    class Exits(RolloutProcessor):
        async def rollout(self, t):
            raise SystemExit(3)

    (job,) = Exits()(as_tasks([{"prompt": "x"}]), RolloutConfig("m", Sampling(), lambda t: t))
    await asyncio.wait({job})
    assert "SystemExit(3)" in str(job.exception())


async def test_the_single_turn_processor_asks_once():
    subject = TrajectoryUnderTest()
    session = await subject.session()
    config = RolloutConfig("m", Sampling(), lambda task: Rollout(session))
    (job,) = SingleTurnRolloutProcessor()([subject.task], config)
    await job
    history = await subject.history()
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


def test_an_object_that_is_called_like_an_async_function_is_one():
    class Solver:
        async def __call__(self, t):
            return 1.0

    assert asyncio.run(as_processor(Solver()).rollout(None)) == 1.0


async def takes_nothing(): ...


async def takes_two(t, other): ...


class Named(RolloutProcessor):
    def __init__(self, name):
        self.name = name


@pytest.mark.parametrize(
    ("candidate", "arguments"),
    [
        (takes_nothing, r"takes_nothing\(\): .*a rollout takes one argument"),
        (takes_two, r"takes_two\(t, other\): .*'other'; a rollout takes one argument"),
        (Named, r"Named\(name\): .*'name'; a class is made without arguments: give an instance"),
    ],
)
def test_what_could_not_be_called_is_refused_before_any_trajectory_fails(candidate, arguments):
    with pytest.raises(UsageError, match=arguments):
        as_processor(candidate)


def test_a_rollout_that_is_not_async_is_told_so():
    class Plain(RolloutProcessor):
        def rollout(self, t):
            return 1.0

    async def first():
        config = RolloutConfig("m", Sampling(), lambda task: None)
        (job,) = Plain()(as_tasks([{"prompt": "a"}]), config)
        await job

    with pytest.raises(UsageError, match=r"Plain.rollout has to be `async def`"):
        asyncio.run(first())


@pytest.mark.parametrize("candidate", [lambda t: 1, 3, None, "solve", call])
def test_anything_else_is_refused_with_what_is_wanted(candidate):
    with pytest.raises(UsageError, match="is not a rollout: it wants an async function"):
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
    assert fingerprint_of(wrapped).partition("@")[0] == "solve"
    inner, outer = (set(fingerprinted(each)[1].parts.values()) for each in (solve, wrapped))
    assert inner < outer
    assert fingerprint_of(partial).partition("@")[0] == "solve_otherwise"


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ("async def go(t): t.add('one')", "async def go(t): t.add('two')"),
        ("async def go(t): await t.one()", "async def go(t): await t.two()"),
        (
            "def go():\n  async def inner(t): return 1\n  return inner",
            "def go():\n  async def inner(t): return 2\n  return inner",
        ),
        (
            "class go:\n  async def rollout(self, t): 'one'",
            "class go:\n  def rollout(self, t): 'two'",
        ),
    ],
    ids=["words", "names", "nested", "class"],
)
def test_code_without_a_file_has_another_fingerprint_when_it_says_something_else(then, now):
    def made(text):
        scope = {"__name__": "a notebook"}
        exec(compile(text, "<a notebook's cell>", "exec"), scope)
        return fingerprint_of(scope["go"])

    assert made(then) == made(then)
    assert made(then) != made(now)


def test_code_without_a_file_has_the_same_fingerprint_in_every_process():
    program = (
        "from holdfast.rollout.processors.processor import fingerprint_of\n"
        "async def go(t): return t in {'a', 'b', 'c', 'd', 'e'}\n"
        "print(fingerprint_of(go))"
    )
    results = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(results) == 1


def test_a_changed_file_is_another_fingerprint(tmp_path):
    def made(text):
        path = tmp_path / "mine.py"
        path.write_text(text)
        scope = {}
        exec(compile(text, str(path), "exec"), scope)
        return fingerprint_of(scope["go"])

    before = made("PROMPT = 'a'\nasync def go(t): t.add(PROMPT)\n")
    assert made("PROMPT = 'b'\nasync def go(t): t.add(PROMPT)\n") != before
    assert made("PROMPT = 'a'\nasync def go(t): t.add(PROMPT)\n") == before
