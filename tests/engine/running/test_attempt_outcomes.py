"""Outcomes: what a rollout returns, and how the policy's own limits end it."""

import asyncio
import math

import pytest

from holdfast.engine.report import as_text
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.records.errors import (
    ContextOverflow,
    ToolSaysNo,
)
from holdfast.records.sampling import Sampling
from support.engine.local_run import LocalRun, turn
from support.rollout.stage import Oracle


async def turn_only(t):
    await turn(t)
    return 1.0


def raising(error):
    async def rollout(t):
        raise error

    return rollout


@pytest.mark.parametrize(
    ("returned", "reward"), [(None, None), (0.25, 0.25), (1, 1.0), (True, 1.0), (-3, -3.0)]
)
def test_a_rollout_may_return_its_reward(returned, reward):
    async def rollout(t):
        await turn(t)
        return returned

    local = LocalRun()
    local.run(rollout)
    assert local.history().reward == reward
    assert [row["reward"] for row in local.rows()] == [reward]


@pytest.mark.parametrize("returned", ["good", math.nan, math.inf, [1.0], object()])
def test_what_is_no_reward_is_a_bug_of_the_rollout(returned):
    async def rollout(t):
        return returned

    local = LocalRun()
    local.run(rollout)
    history = local.history()
    assert (history.status.name, history.failures[0].cause) == ("FAILED", "code")
    assert "reward" in history.failures[0].message


def test_a_context_overflow_is_kept_and_scored(served):
    async def rollout(t):
        while True:
            await turn(t, "x" * 100)

    async def main():
        policy = EnginePolicy(served.url, served.model)
        try:
            local = LocalRun(policy=policy, sampling=Sampling(max_tokens=32))
            await local.work(rollout, lambda view: 0.5)
            return local
        finally:
            await policy.aclose()

    local = asyncio.run(main())
    history = local.history()
    assert (history.status.name, history.finished.reason) == ("TRUNCATED", "context_overflow")
    assert history.reward == 0.5
    assert local.report().truncations == {"context_overflow": 1}
    assert sum(local.rows()[0]["loss_mask"]) == history.sampled_tokens > 0


def test_a_context_overflow_that_the_rollout_handles_is_no_failure():
    answers = iter([ContextOverflow("too long"), "short"])

    async def rollout(t):
        try:
            await turn(t)
        except ContextOverflow:
            t.messages.clear()
            await turn(t, "summary")

    local = LocalRun(policy=Oracle(lambda request: next(answers)))
    local.run(rollout)
    assert local.statuses() == {"a/0": ("COMPLETED", True)}


def test_a_last_reply_that_was_cut_by_its_length_truncates():
    local = LocalRun(sampling=Sampling(max_tokens=4))
    local.run(turn_only)
    history = local.history()
    assert (history.status.name, history.finished.reason) == ("TRUNCATED", "max_tokens")


@pytest.mark.parametrize("reason", ["max_turns", "half \ud800", 7, None])
def test_a_rollout_truncates_for_any_reason_that_it_gives(reason):
    async def rollout(t):
        await turn(t)
        t.truncate(reason)

    local = LocalRun()
    local.run(rollout)
    history = local.history()
    assert history.status.name == "TRUNCATED"
    assert history.finished.reason == str(reason).encode("utf-8", "backslashreplace").decode()


def test_what_the_policy_did_is_never_a_failure():
    local = LocalRun()
    local.run(raising(ToolSaysNo("called by hand")))
    assert local.statuses() == {"a/0": ("TRUNCATED", True)}
    assert local.history().finished.reason == "ToolSaysNo"


def test_steps_that_the_rollout_no_longer_takes_are_not_in_its_samples():
    turns = iter([3, 1])

    async def rollout(t):
        for _ in range(n := next(turns)):
            await turn(t)
        if n == 3:
            raise KeyError("and now for something shorter")

    local = LocalRun()
    local.run(rollout)
    history = local.history()
    assert [step.path for step in history.generations] == ["0"]
    assert [fork.path for fork in history.forks] == ["1"]


def test_a_run_stops_when_more_have_failed_than_may():
    async def solve(t):
        await turn(t)
        raise KeyError("a bug in everything")

    local = LocalRun(*(f"t{number}" for number in range(40)))
    ending = local.run(solve, max_failures=3, concurrency=2, max_retry=0)
    assert ending.stopped == "3 failed for good: max_failures (3) is reached"
    assert ending.fatal is None
    failed = local.report().by_status["FAILED"]
    assert 3 <= failed <= 5, "those that were in flight"
    # Earlier ones are not counted again: what was mended is tried.
    ending = local.run(turn_only, max_failures=3, concurrency=2, reopen_failed=True)
    assert ending.stopped == ""
    assert local.report().by_status == {"COMPLETED": 40}


def test_the_report_shows_a_traceback_for_every_root_and_names_on_one_line():
    tries = []

    async def solve(t):
        await turn(t)
        tries.append(t)
        if len(tries) == 1:
            raise KeyError("a flake")

    local = LocalRun("a\nb")
    local.run(solve)
    text = as_text(local.report())
    assert "1 × KeyError: 'a flake' (healed; for instance in run/a\\nb/0)" in text
    assert 'raise KeyError("a flake")' in as_text(local.report(), full_tracebacks=True)
