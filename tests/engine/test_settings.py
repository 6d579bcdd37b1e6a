"""Mistakes in what a run is set up with, and how those of a rollout look in its report."""

import asyncio
import linecache

import pytest

from holdfast.engine.report import RunReport, as_text
from holdfast.engine.running.run import run
from holdfast.engine.settings import Settings
from holdfast.journal.sqlite.journal import MemoryJournal
from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.records.errors import UsageError
from holdfast.records.failure import fold_traceback
from holdfast.records.group import GroupPolicy, Shortfall
from holdfast.rollout.replay.run_context import OnDivergence
from support.engine.local_run import LocalRun, turn
from support.rollout.stage import Oracle


def test_a_setting_is_its_member_or_the_members_name():
    assert GroupPolicy(shortfall="drop").shortfall is Shortfall.DROP
    assert Settings(on_divergence="fail").on_divergence is OnDivergence.FAIL
    assert not GroupPolicy(shortfall="drop").keeps(1, of=2)


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        (lambda: GroupPolicy(shortfall="dropp"), "shortfall='dropp' is none of partial, drop"),
        (lambda: GroupPolicy(shortfall=None), "shortfall=None is none of"),
        (lambda: Settings(on_divergence="fial"), "on_divergence='fial' is none of fork, fail"),
    ],
)
def test_an_unknown_setting_is_refused_and_the_known_are_named(make, arguments):
    with pytest.raises(UsageError, match=arguments):
        make()


def test_a_group_that_is_short_is_dropped_when_the_policy_says_so_by_name():
    async def solve(t):
        await turn(t)
        if t.key.sample == 0:
            raise ValueError("a bug")

    local = LocalRun(samples=2, group=GroupPolicy(refill=0, shortfall="drop"))
    local.run(solve, max_retry=0)
    assert (local.report().groups_kept, local.report().groups_dropped) == (0, 1)


def test_a_run_without_tasks_is_refused():
    async def solve(t): ...

    with pytest.raises(UsageError, match="tasks is empty"):
        asyncio.run(
            run(
                solve,
                tasks=[],
                policy=Oracle(),
                journal=MemoryJournal(),
                name="r",
                renderer=ByteRenderer(),
            )
        )


def test_a_forgotten_await_is_no_outcome():
    async def solve(t):
        t.add("go")
        t.generate()
        return 1.0

    local = LocalRun()
    local.run(solve)
    assert local.statuses() == {"a/0": ("FAILED", True)}
    (failure,) = local.history().failures
    assert failure.line == (
        "UsageError: t.generate() was called and never awaited: await t.generate(…)"
    )


def test_the_traceback_of_a_mistake_shows_the_users_lines_alone():
    async def solve(t):
        t.add(t.task.messages)

    local = LocalRun()
    local.run(solve)
    (failure,) = local.history().failures
    lines = fold_traceback(failure.traceback).splitlines()
    files = [line for line in lines if line.startswith("  File ")]
    assert len(files) == 1
    assert __file__ in files[0]
    assert linecache.getline(__file__, solve.__code__.co_firstlineno + 1).strip() in (
        failure.traceback
    )


def test_the_traceback_of_a_bug_is_whole():
    async def solve(t):
        await t.value(lambda: 1 / 0)

    local = LocalRun()
    local.run(solve, max_retry=0)
    (failure,) = local.history().failures
    assert "rollout/context.py" in failure.traceback


def test_one_of_a_thing_is_told_in_the_singular():
    report = RunReport(
        "r", trajectories=1, by_status={"COMPLETED": 1}, turns=1, groups=1, refills=1
    )
    report.groups_kept = report.seams = report.retried_attempts = report.closes_failed = (
        report.sampled_tokens
    ) = 1
    assert as_text(report).splitlines() == [
        "run r: 1 trajectory: 1 COMPLETED",
        "  1 turn, 1 sampled token; 1 of 1 group kept, 0 dropped",
        "  1 attempt retried, 1 refill, 1 reply gone on with, 1 environment not closed",
    ]
    two = RunReport("r", trajectories=2, by_status={"COMPLETED": 2}, seams=2, call_retries=1_000)
    assert "2 trajectories" in as_text(two)
    assert "1,000 calls retried, 2 replies gone on with" in as_text(two)
