"""Progress: what a display is told while a run works."""

import asyncio

from holdfast.engine.progress.counters import Progress, WatchedProgress
from holdfast.journal.types import TrajectoryRow
from holdfast.records.errors import EnvironmentBroken, PolicyRefused
from holdfast.records.group import GroupPolicy
from holdfast.records.trajectory import Status, TrajectoryKey
from support.engine.local_run import LocalRun, turn
from support.rollout.stage import Oracle


def progress_of(local: LocalRun, rollout, scorer=None, **options) -> Progress:
    async def main():
        engine = await local.engine(rollout, scorer, **options)
        await engine.work()
        return engine._progress

    return asyncio.run(main())


def test_everything_is_counted_once():
    trouble = {"b/0": [EnvironmentBroken("once")], "c/0": [KeyError("bug"), KeyError("bug")]}

    async def rollout(t):
        await turn(t)
        for error in trouble.get(f"{t.key.task}/{t.key.sample}", []):
            trouble[f"{t.key.task}/{t.key.sample}"].remove(error)
            raise error
        if t.key.task == "d":
            t.truncate("enough")
        return 1.0

    local = LocalRun(*"abcd")
    progress = progress_of(local, rollout, lambda view: 1.0)
    assert (progress.total, progress.done, progress.running) == (4, 4, 0)
    assert (progress.retried, progress.failed, progress.truncated) == (2, 1, 1)
    assert progress.turns == 4
    assert progress.tokens == sum(h.sampled_tokens for h in local.histories().values())
    assert progress.line().startswith("4/4 done in 0s, 1 failed, 2 retried")


def test_a_resumed_run_counts_what_was_done_before():
    local = LocalRun(*"ab")
    local.policy.answer = lambda request: PolicyRefused("no") if "/b/" in request.id else "x"
    first = progress_of(local, turn_only, concurrency=1)
    assert (first.done, first.running) == (1, 0)
    local.policy = Oracle()
    second = progress_of(local, turn_only)
    assert (second.done_before, second.done, second.running) == (1, 1, 0)


async def turn_only(t):
    await turn(t)


def test_a_refill_is_counted():
    trouble = [EnvironmentBroken("gone")]

    async def rollout(t):
        if trouble:
            raise trouble.pop()

    progress = progress_of(LocalRun(group=GroupPolicy(refill=1)), rollout, max_retry=0)
    assert (progress.refilled, progress.done, progress.failed) == (1, 1, 0)


def test_a_bug_of_ours_leaves_nobody_running(monkeypatch):
    async def broken(runner, lease):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("holdfast.engine.running.attempt.TrajectoryRunner.load", broken)
    assert progress_of(LocalRun(*"ab"), turn_only).running == 0


def row(sample: int, status: Status, *, settled: bool, owner: str = "", resting: bool = False):
    key = TrajectoryKey("run", "t", sample)
    return TrajectoryRow(key, sample, 0, status, settled, 1, 0, owner, resting)


def test_a_run_that_others_work_on_is_told_as_the_journal_lists_it():
    progress = WatchedProgress()
    waiting = row(0, Status.PENDING, settled=False)
    running = row(1, Status.RUNNING, settled=False, owner="worker 1")
    done = row(2, Status.COMPLETED, settled=True)
    progress.seen([waiting, running, done, row(3, Status.PENDING, settled=False, resting=True)])
    assert progress.line() == "1/3 done, 1 running"
    # What was done before it looked says nothing about how long the rest will take.
    assert progress.seconds_left is None
    progress.seen([waiting, row(1, Status.FAILED, settled=True), done])
    assert progress.line().startswith("2/3 done, 0s left, 0 running, 1 failed")
