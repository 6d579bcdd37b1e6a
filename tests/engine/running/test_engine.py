"""How a run is worked on and how it ends: whatever happens, nothing is left behind (I4, I8)."""

import asyncio
import time

import pytest

from holdfast.journal.sql import leases
from holdfast.journal.sql.store import Store
from holdfast.journal.sqlite.journal import MemoryJournal
from holdfast.records.errors import (
    AttemptTimeout,
    EndpointDown,
    EngineUnavailable,
    JournalFull,
    LeaseLost,
    PolicyRefused,
    ScoringStopped,
)
from holdfast.records.group import GroupPolicy
from holdfast.testing.virtual_time import run_in_virtual_time
from support.engine.local_run import LocalRun, turn
from support.journal.faulty_journal import FaultyJournal, When
from support.records import someone_else
from support.rollout.stage import Oracle


async def one_turn(t):
    await turn(t)
    return 1.0


def hanging(request):
    return asyncio.sleep(60, "late")


def test_concurrency_is_bounded_and_reached():
    running, most, reached = 0, 0, asyncio.Event()

    async def rollout(t):
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 5:
            reached.set()
        await asyncio.wait_for(reached.wait(), 60)
        await asyncio.sleep(0.005)
        running -= 1

    LocalRun(*"abcdefgh", samples=3).run(rollout, concurrency=5)
    assert most == 5


def test_retries_and_scoring_do_not_leak_slots():
    trouble = [EngineUnavailable("once")] * 6

    async def rollout(t):
        if trouble:
            raise trouble.pop()

    local = LocalRun(*"abcdef", samples=2)
    local.run(rollout, lambda view: 1.0, concurrency=2)
    assert set(local.statuses().values()) == {("COMPLETED", True)}


# --- deadlines


def test_an_attempt_that_takes_too_long_is_ended_and_tried_again():
    answers = iter([hanging, lambda request: "quick"])
    policy = Oracle(lambda request: next(answers)(request))
    local = LocalRun(policy=policy)
    local.run(one_turn, attempt_deadline=2.0)
    history = local.history()
    assert [failure.type for failure in history.failures] == ["AttemptTimeout"]
    assert (history.failures[0].cause, history.failures[0].step) == ("infrastructure", "0")
    assert local.statuses() == {"a/0": ("COMPLETED", True)}


def test_an_attempt_has_as_much_more_time_as_its_policy_was_down():
    policy, ended = Oracle(), []

    async def rollout(t):
        loop = asyncio.get_running_loop()
        begun = loop.time()
        loop.call_later(5, setattr, policy, "seconds_down", 3.0)
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append(loop.time() - begun)

    local = LocalRun(policy=policy, group=GroupPolicy(refill=0))
    run_in_virtual_time(local.work(rollout, attempt_deadline=10.0, max_retry=0))
    assert ended == [13]


def test_a_rollout_that_swallows_its_cancellation_cannot_go_on():
    seen = []

    async def rollout(t):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            with pytest.raises(AttemptTimeout):
                await turn(t)
            seen.append(True)
            return 1.0

    local = LocalRun(group=GroupPolicy(refill=0))
    local.run(rollout, attempt_deadline=0.5, max_retry=0)
    assert seen == [True]
    assert local.statuses() == {"a/0": ("FAILED", True)}
    assert not local.policy.requests


@pytest.mark.parametrize("how", ["deadline", "stop", "fatal"])
def test_an_error_during_a_cancelled_rollout_s_cleanup_is_not_lost_in_the_loop(how):
    async def rollout(t):
        if how == "fatal" and t.key.sample == 1:
            await asyncio.sleep(0.01)
            raise PolicyRefused("no")
        try:
            await asyncio.sleep(60)
        finally:
            raise ValueError("in the cleanup")

    local = LocalRun(samples=2, group=GroupPolicy(refill=0))

    async def main():
        if how == "stop":
            asyncio.get_running_loop().call_later(0.03, lambda: local.stop.request("enough"))
        await local.work(
            rollout, attempt_deadline=0.5 if how == "deadline" else 600, max_retry=0, grace=0.01
        )

    asyncio.run(main())
    local.assert_nothing_left()


class Down(Oracle):
    """Down while it is asked."""

    since, until = None, None

    @property
    def seconds_down(self):
        return 0.0 if self.since is None else (self.until or time.monotonic()) - self.since

    @seconds_down.setter
    def seconds_down(self, seconds):
        assert not seconds


def test_time_of_an_outage_does_not_count_against_an_attempt():
    policy = Down()

    async def slow(request):
        policy.since = time.monotonic()
        await asyncio.sleep(2.0)
        policy.until = time.monotonic()
        return "after the outage"

    policy.answer = slow
    local = LocalRun(policy=policy)
    local.run(one_turn, attempt_deadline=1.5)
    assert policy.seconds_down > 1.5
    assert not local.history().failures


def test_a_run_past_its_deadline_stops_and_can_be_resumed():
    local = LocalRun(*"ab", policy=Oracle(hanging))
    ending = local.run(one_turn, run_deadline=0.03, grace=0.01)
    assert "deadline of 0.03 s" in ending.stopped
    assert ending.fatal is None
    local.policy.answer = lambda request: "now"
    local.run(one_turn)
    assert set(local.statuses().values()) == {("COMPLETED", True)}
    assert not local.report().causes


# --- stopping


def stopping_when(local: LocalRun, answer):
    """Asks the run to stop while its first request is in flight."""

    def answer_and_stop(request):
        local.stop.request("enough")
        return answer(request)

    return answer_and_stop


def test_a_stop_lets_what_is_in_flight_finish_its_step():
    local = LocalRun(*"abc")
    local.policy.answer = stopping_when(local, lambda request: asyncio.sleep(0.02, "in flight"))

    async def rollout(t):
        await turn(t)
        await turn(t, "second")

    ending = local.run(rollout, concurrency=1)
    assert (ending.stopped, ending.fatal) == ("enough", None)
    assert local.statuses() == {
        name: (status, False)
        for name, status in {"a/0": "RUNNING", "b/0": "PENDING", "c/0": "PENDING"}.items()
    }
    assert list(local.history("a/0").steps) == ["0"]
    assert not local.history("a/0").failures
    local.policy.answer = lambda request: "resumed"
    local.run(rollout)
    assert local.policy.request_ids.count("run/a/0/0") == 1


def test_a_scorer_that_ends_it_all_lets_replies_that_are_on_their_way_become_durable():
    local = LocalRun(*"ab")

    async def answer(request):
        if "/b/" in request.id:
            await local.stop.event.wait()
            await asyncio.sleep(0.05)
        return "x"

    def skip(view):
        raise ScoringStopped(RuntimeError("skip"))

    local.policy.answer = answer
    ending = local.run(one_turn, skip)
    assert isinstance(ending.fatal, ScoringStopped)
    assert {name: list(local.history(name).steps) for name in ("a/0", "b/0")} == {
        "a/0": ["0"],
        "b/0": ["0"],
    }


def test_a_stop_cancels_what_does_not_finish_within_the_grace():
    local = LocalRun(*"ab")
    local.policy.answer = stopping_when(local, hanging)
    ending = local.run(one_turn, grace=0.02)
    assert ending.stopped == "enough"
    assert {settled for _, settled in local.statuses().values()} == {False}


def test_a_rollout_that_swallows_the_stop_gets_no_outcome():
    local = LocalRun()
    local.policy.answer = stopping_when(local, lambda request: "x")

    async def rollout(t):
        await turn(t)
        try:
            await turn(t, "second")
        except Exception:
            return 0.0

    local.run(rollout)
    assert local.statuses() == {"a/0": ("RUNNING", False)}
    assert local.history().finished is None


async def test_a_stop_before_the_work_does_nothing():
    local = LocalRun()
    engine = await local.engine(one_turn)
    engine.stop.request("not now")
    assert (await engine.work()).stopped == "not now"
    assert not local.policy.requests


# --- what ends a run


@pytest.mark.parametrize("error", [PolicyRefused("404: no such model"), EndpointDown("gone")])
def test_an_endpoint_that_will_never_work_stops_the_run_and_fails_no_trajectory(error):
    local = LocalRun(*"abcd", samples=2)
    local.policy.answer = lambda request: error if "b/0" in request.id else asyncio.sleep(0.01, "x")

    async def rollout(t):
        try:
            await turn(t)
            await turn(t, "second")
        except PolicyRefused:
            return 0.0

    ending = local.run(rollout, concurrency=3)
    assert ending.fatal is error
    assert local.statuses()["b/0"] == ("PENDING", False)
    assert not local.report().permanent_failures
    local.policy.answer = lambda request: "back"
    local.run(rollout)
    assert set(local.statuses().values()) == {("COMPLETED", True)}
    assert not local.report().causes, "a stopped run is not a failure of its trajectories"


def test_an_endpoint_that_is_down_at_admission_stops_the_run():
    local = LocalRun()

    async def never():
        raise EndpointDown("patience is at its end")

    local.policy.ready = never
    assert isinstance(local.run(one_turn).fatal, EndpointDown)
    assert local.statuses() == {"a/0": ("PENDING", False)}


@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("error", [JournalFull("disk full"), LeaseLost("taken over")])
def test_a_journal_that_fails_at_any_operation_stops_the_run_and_loses_nothing(error, when):
    async def rollout(t):
        try:
            await turn(t)
            await t.value(lambda: 1)
        except Exception:
            return 0.0  # Must not become an outcome.
        return 1.0

    counting = FaultyJournal(MemoryJournal())
    LocalRun(*"ab", samples=2, journal=counting).run(rollout, lambda view: 2.0, concurrency=2)
    first = counting.operations.index("join") + 1
    for k in range(first, len(counting.operations) + 1):
        faulty = FaultyJournal(MemoryJournal(), k, when=when, error=lambda: error)
        local = LocalRun(*"ab", samples=2, journal=faulty)
        try:
            fatal = local.run(rollout, lambda view: 2.0, concurrency=2).fatal
        except type(error) as raised:
            fatal = raised
        local.assert_nothing_left()
        assert fatal is error, counting.operations[k - 1]
        asyncio.run(_bury(faulty))
        local.run(rollout, lambda view: 2.0, concurrency=2)
        assert set(local.statuses().values()) == {("COMPLETED", True)}, k
        assert {history.reward for history in local.histories().values()} == {2.0}
        assert not local.report().causes


async def _bury(faulty: FaultyJournal) -> None:
    """What a new process finds: the worker that could not leave is dead."""
    await release_all(faulty.journal)


async def release_all(journal: MemoryJournal) -> None:
    def release(store: Store) -> None:
        for (worker,) in store.rows("SELECT id FROM workers"):
            leases.release(store, worker)

    await journal.transact(release)


def test_a_worker_that_was_declared_dead_stops():
    local = LocalRun(policy=Oracle(hanging))

    async def main():
        work = asyncio.create_task(local.work(one_turn, lease_seconds=0.06, grace=30.0))
        while not local.policy.requests:
            await asyncio.sleep(0.005)
        await release_all(local.journal)
        return await work

    assert isinstance(asyncio.run(main()).fatal, LeaseLost)
    local.assert_nothing_left()


def test_a_run_that_another_worker_holds_is_refused_or_shared():
    from holdfast.records.errors import RunHeld

    local = LocalRun()

    async def held():
        run = await local.journal.create_run(local.spec, local.tasks)
        await local.journal.join(run, someone_else(), lease_seconds=600, share=False)

    asyncio.run(held())
    with pytest.raises(RunHeld):
        local.run(one_turn)
    local.run(one_turn, join=True)
    assert local.statuses() == {"a/0": ("COMPLETED", True)}


def test_cancelling_the_work_leaves_nothing_behind():
    local = LocalRun(*"abc", samples=2, policy=Oracle(hanging))

    async def main():
        work = asyncio.create_task(local.work(one_turn))
        while len(local.policy.requests) < 6:
            await asyncio.sleep(0.005)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

    asyncio.run(main())
    local.assert_nothing_left()
    local.policy.answer = lambda request: "again"
    local.run(one_turn)
    assert set(local.statuses().values()) == {("COMPLETED", True)}


def test_a_bug_of_ours_stops_the_run_and_is_shown(monkeypatch):
    local = LocalRun(*"ab", policy=Oracle())

    async def broken(runner, lease):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("holdfast.engine.running.attempt.TrajectoryRunner.load", broken)
    assert isinstance(local.run(one_turn).fatal, ZeroDivisionError)
