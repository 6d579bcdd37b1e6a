"""Scorers at their worst: each costs its own trajectory, and stops or silences nothing else."""

import asyncio
import sys
import threading

import pytest
from msgspec import structs

from holdfast.engine.export.export import What
from holdfast.engine.open_run import open_run
from holdfast.engine.report import as_text
from holdfast.engine.scoring import scorer as scorers
from holdfast.engine.scoring.scorer import Score, group_scorer
from holdfast.engine.settings import ScoringPolicy
from holdfast.records.errors import JournalCorrupt, ThreadsHang
from holdfast.records.task import tasks_digest
from support.engine.local_run import LocalRun, turn


async def one_turn(t):
    await turn(t)


class Exits:
    def __float__(self):
        sys.exit(0)

    __str__ = __repr__ = __float__


async def cancels_itself(view):
    asyncio.current_task().cancel()
    await asyncio.sleep(60)


async def reads_a_journal(view):
    raise JournalCorrupt("none of ours")


BAD = {
    "cancels itself": (cancels_itself, "cancelled itself"),
    "fails to read a journal of its own": (reads_a_journal, "none of ours"),
    "a number that exits": (lambda view: Exits(), "SystemExit"),
    "a name that exits": (lambda view: Score(1.0, {Exits(): 1.0}), "SystemExit"),
    "more details than a record holds": (
        lambda view: Score(1.0, details={"log": "x" * 2000}),
        "bytes of details",
    ),
}


@pytest.mark.parametrize("how", BAD)
def test_what_a_scorer_does_to_itself_fails_its_own_trajectory(how, monkeypatch):
    monkeypatch.setattr(scorers, "MAX_RESULT", 1000)
    bad, message = BAD[how]

    async def scorer(view):
        if view.key.task != "b":
            return 1.0
        result = bad(view)
        return await result if asyncio.iscoroutine(result) else result

    local = LocalRun(*"abc")
    ending = local.run(one_turn, scorer)
    assert (ending.stopped, ending.fatal) == ("", None)
    assert local.statuses() == {
        "a/0": ("COMPLETED", True),
        "b/0": ("FAILED", True),
        "c/0": ("COMPLETED", True),
    }
    assert message in local.history("b/0").scoring_failures[-1].message


def test_names_that_cannot_be_encoded_are_kept_readable():
    local = LocalRun()
    ending = local.run(one_turn, lambda view: Score(1.0, {"m\udc80": 2.0}, {"r\udc80": "why"}))
    assert ending.fatal is None
    (row,) = local.rows(What.TRAJECTORIES)
    assert (row["metrics"], row["reasons"]) == ({"m\\udc80": 2.0}, {"r\\udc80": "why"})


def test_a_trajectory_s_task_that_somebody_cancels_stops_the_run_and_is_not_forgotten():
    async def scorer(view):
        name = str(view.key)
        next(task for task in asyncio.all_tasks() if task.get_name() == name).cancel()
        await asyncio.sleep(60)

    local = LocalRun("a")
    ending = local.run(one_turn, scorer)
    assert "cancelled the task of run/a/0" in ending.stopped
    local.run(one_turn, lambda view: 1.0)
    assert local.statuses() == {"a/0": ("COMPLETED", True)}
    assert len(local.policy.requests) == 1


def test_scorers_that_hang_stop_the_run_before_they_fail_others(monkeypatch):
    monkeypatch.setattr(scorers, "MOST_HANGING", 3)
    free = threading.Event()

    def scorer(view):
        if int(view.key.task) % 3 == 0:
            free.wait()
        return 1.0

    local = LocalRun(*map(str, range(12)))
    policy = ScoringPolicy(timeout=0.1, concurrency=2)
    runs = 0
    try:
        ending = local.run(one_turn, scorer, scoring=policy, concurrency=2)
        assert isinstance(ending.fatal, ThreadsHang)
        assert "still hang" in ending.stopped
        while ending.fatal is not None and runs < 10:
            runs += 1
            ending = local.run(one_turn, scorer, scoring=policy, concurrency=2)
    finally:
        free.set()
    assert ending.stopped == "", "each process gets further"
    failed = [name for name, (status, _) in local.statuses().items() if status == "FAILED"]
    assert failed == ["0/0", "3/0", "6/0", "9/0"], "nobody fails for another"
    assert len(local.policy.requests) == 12


def test_a_call_that_ends_late_hangs_no_more(monkeypatch):
    monkeypatch.setattr(scorers, "MOST_HANGING", 1)
    free = threading.Event()
    local = LocalRun("a", samples=2)

    def scorer(view):
        if not view.key.sample:
            free.wait()
        return 1.0

    async def second_comes_later(t):
        await turn(t)
        if t.key.sample:
            run = await local.journal.find_run("run")
            while not (await local.journal.trajectories(run))[0].settled:
                await asyncio.sleep(0.01)
            free.set()
            await asyncio.sleep(0.2)

    ending = local.run(second_comes_later, scorer, scoring=ScoringPolicy(timeout=1.0, tries=1))
    assert ending.fatal is None
    assert local.statuses() == {"a/0": ("FAILED", True), "a/1": ("COMPLETED", True)}


def test_what_a_group_scorer_does_to_a_task_is_not_seen_by_its_next_try():
    local = LocalRun("a", samples=2)
    local.tasks = [structs.replace(local.tasks[0], metadata={"answer": 42})]
    local.spec = structs.replace(local.spec, tasks=tasks_digest(local.tasks))
    broken, results = [1], []

    async def rollout(t):
        await turn(t)
        if t.key.sample in broken:
            raise KeyError("bug")

    @group_scorer
    def scorer(views):
        results.append([view.task.metadata.pop("answer", None) for view in views])
        if len(results) == 2:
            raise KeyError("flake")
        return [1.0] * len(views)

    local.run(rollout, scorer)
    broken.clear()
    local.run(rollout, scorer, reopen_failed=True)
    assert results == [[42], [42, 42], [42, 42]]


# --- budgets


def failing(times):
    """A scorer that raises so often, and then scores."""
    left = [KeyError("flake")] * times

    def scorer(view):
        if left:
            raise left.pop()
        return 2.0

    return scorer


def test_a_reopened_trajectory_has_all_its_tries_also_after_a_kill_before_its_score():
    local = LocalRun("a")
    local.run(one_turn, failing(9))
    assert local.statuses() == {"a/0": ("FAILED", True)}

    async def stopped(view):
        local.stop.request("enough")
        await asyncio.sleep(60)

    local.run(one_turn, stopped, reopen_failed=True, grace=0.0)
    assert local.statuses() == {"a/0": ("COMPLETED", False)}
    local.run(one_turn, failing(1))
    assert local.history().reward == 2.0


def test_another_scorer_has_all_its_tries():
    local = LocalRun("a")
    local.run(one_turn, failing(1))

    local.spec = structs.replace(local.spec, scorer="other")
    asyncio.run(open_run(local.journal, local.spec, local.tasks, accept_changes=True))
    assert local.statuses() == {"a/0": ("COMPLETED", False)}
    local.run(one_turn, failing(1))
    assert local.statuses() == {"a/0": ("COMPLETED", True)}


def test_a_failure_for_good_is_that_of_the_phase_it_came_from():
    async def broken(t):
        await turn(t)
        raise ValueError("in the rollout")

    local = LocalRun("a")
    local.run(one_turn, failing(9))
    local.run(broken, failing(9), reopen_failed=True)
    causes = {cause.phase: cause.permanent for cause in local.report().causes}
    assert causes == {"scoring": 0, "rollout": 1}
    assert local.report().retried_attempts == 1
    assert "in rollout" not in as_text(local.report()).split("ValueError")[0]


async def test_a_group_that_waits_for_its_last_member_does_not_run_after_a_stop():
    local = LocalRun("a", samples=2)

    async def rollout(t):
        if t.key.sample:
            local.stop.request("enough")
        await turn(t)

    engine = await local.engine(rollout, group_scorer(lambda views: [1.0] * len(views)))
    await engine.work()
    message = engine._progress
    assert (message.done, message.running) == (0, 0)
