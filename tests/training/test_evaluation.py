"""Evaluations of a training: runs of their own; one that fails does not end the training."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from msgspec import structs

from holdfast.engine.connect import connect_policy
from holdfast.engine.running.run_plan import NO_CODE, plan_run
from holdfast.engine.scoring.scorer import Scorer
from holdfast.journal.sqlite.journal import MemoryJournal
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.records.sampling import Sampling
from holdfast.records.task import as_tasks
from holdfast.rollout.processors.processor import as_processor
from holdfast.testing import FakeEngine
from holdfast.training.run.evaluation import HeldOut
from holdfast.training.settings import TrainingSettings

HELD_OUT = as_tasks([{"id": name, "prompt": "?", "ground_truth": name} for name in "abcd"])


async def solve(t):
    t.add(*t.task.messages)
    await t.generate()


def score(trajectory):
    return float(trajectory.task.id in "abc")


def planned(scorer=score):
    plan = plan_run(
        "first",
        tasks=HELD_OUT[:1],
        processor=as_processor(solve),
        rollout=("solve", None),
        scorer=None if scorer is None else Scorer(scorer),
        scorer_code=NO_CODE if scorer is None else ("score", None),
        samples=8,
        sampling=Sampling(max_tokens=4),
        seed=1,
    )
    return structs.replace(plan, spec=structs.replace(plan.spec, model="fake", renderer="bytes"))


@asynccontextmanager
async def connected(engine):
    policy = EnginePolicy(engine.url, engine.model)
    try:
        yield await connect_policy(policy)
    finally:
        await policy.aclose()


@pytest.fixture(scope="module")
def engine():
    with FakeEngine(mean_length=3) as result:
        yield result


def evaluated(engine, journal, plan, *, messages, tasks=HELD_OUT, version="step-3"):
    async def body():
        async with connected(engine) as connection:
            held_out = HeldOut(plan, tasks, TrainingSettings(eval_samples=2), journal)
            result = await held_out.evaluate(3, version, connection, report=messages.append)
            return result and result.reward

    return asyncio.run(body())


def test_it_is_a_run_of_its_own_and_repeating_it_samples_nothing(engine):
    journal, messages = MemoryJournal(), []
    assert evaluated(engine, journal, planned(), messages=messages) == 0.75
    (run,) = asyncio.run(journal.runs())
    assert (run.name, run.tasks, run.samples) == ("first.held-out.step-3", 4, 2)
    engine.reset()
    assert evaluated(engine, journal, planned(), messages=messages) == 0.75
    assert len(asyncio.run(journal.runs())) == 1
    assert evaluated(engine, journal, planned(), messages=messages, version="step-3.2") == 0.75
    assert len(asyncio.run(journal.runs())) == 2, "other weights are another evaluation"
    assert messages == []


def test_one_that_fails_is_reported_and_none(engine):
    journal, messages = MemoryJournal(), []
    evaluated(engine, journal, planned(), messages=messages)
    assert evaluated(engine, journal, planned(), messages=messages, tasks=HELD_OUT[:2]) is None
    assert len(messages) == 1
    assert "the evaluation after step 3 failed, and training goes on" in messages[0]


def test_one_without_rewards_is_reported_and_none(engine):
    messages = []
    assert evaluated(engine, MemoryJournal(), planned(None), messages=messages) is None
    (line,) = messages
    assert line.startswith("the evaluation after step 3 has no rewards, and training goes on: ")
    assert "the scorer gave no reward for 8 trajectories; `holdfast report first.held-out" in line


async def fails_on_a(t):
    if t.task.id == "a":
        raise ValueError("no such file: sums.txt")
    await solve(t)


@pytest.mark.parametrize(("tasks", "reward"), [(HELD_OUT, 2 / 3), (HELD_OUT[:1], None)])
def test_one_whose_rollouts_fail_says_why(engine, tasks, reward):
    messages = []
    plan = structs.replace(planned(), processor=as_processor(fails_on_a))
    assert evaluated(engine, MemoryJournal(), plan, messages=messages, tasks=tasks) == reward
    assert len(messages) == 1
    assert f"2 of {2 * len(tasks)} trajectories failed, the last one by: " in messages[0]
    assert "no such file: sums.txt" in messages[0]
    assert ("has no rewards" if reward is None else "is not whole") in messages[0]


def test_the_reward_has_the_error_of_its_tasks(engine):
    async def body():
        async with connected(engine) as connection:
            held_out = HeldOut(
                planned(), HELD_OUT, TrainingSettings(eval_samples=2), MemoryJournal()
            )
            return await held_out.evaluate(3, "step-3", connection, report=print)

    result = asyncio.run(body())
    assert result.numbers == {"eval_reward": 0.75, "eval_reward_error": pytest.approx(0.25)}


def test_a_limit_on_tokens_is_of_the_training_s_own_rollouts(engine):
    plan = planned()
    plan = structs.replace(plan, settings=structs.replace(plan.settings, max_tokens_total=1))
    assert evaluated(engine, MemoryJournal(), plan, messages=[]) == 0.75


def test_one_that_stopped_early_gives_no_number(engine):
    """A mean over what happened to be done would be a point of the curve that is wrong."""
    messages = []
    plan = planned()
    settings = structs.replace(plan.settings, run_deadline=1e-9)
    assert (
        evaluated(
            engine, MemoryJournal(), structs.replace(plan, settings=settings), messages=messages
        )
        is None
    )
    assert "deadline" in messages[0]
