"""Attempts: one failure is one failure (I4), and infrastructure is never a reward (I5)."""

import asyncio
import contextvars

import pytest

from holdfast.engine.running.attempt import TrajectoryRunner
from holdfast.journal import open_journal
from holdfast.journal.sqlite.journal import MemoryJournal
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.records.encoding import codec
from holdfast.records.errors import (
    BadRequest,
    EngineUnavailable,
    EnvironmentBroken,
    RecordTooLarge,
)
from holdfast.records.group import GroupPolicy
from holdfast.records.sampling import Sampling
from holdfast.records.step import Generated
from holdfast.rollout.tools.tool import Tool
from holdfast.testing import Fault, FaultKind
from support.engine.local_run import LocalRun, turn
from support.hostile_errors import NoAttributes, NoClass
from support.rollout.stage import Oracle, call


async def group_fails(t):
    async def fail():
        raise LookupError("inside the group")

    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(60))
        group.create_task(fail())


async def raises(t):
    raise KeyError("plain") from ValueError("its cause")


async def cancels_itself(t):
    asyncio.current_task().cancel()
    await asyncio.sleep(60)


async def awaits_the_cancelled(t):
    job = asyncio.create_task(asyncio.sleep(60))
    job.cancel()
    await job


async def exits(t):
    raise SystemExit(3)


async def interrupts(t):
    raise KeyboardInterrupt


async def base_group(t):
    raise BaseExceptionGroup("all", [KeyboardInterrupt(), LookupError("beside")])


class Unreadable(Exception):
    def __str__(self):
        raise ValueError("no words")


class NotAnException(BaseException):
    """What test frameworks raise."""


def raising(error):
    async def rollout(t):
        raise error

    return rollout


BROKEN = {
    "raise": (raises, "KeyError"),
    "cancel itself": (cancels_itself, "RuntimeError"),
    "await the cancelled": (awaits_the_cancelled, "ExitCalled"),
    "sys.exit": (exits, "ExitCalled"),
    "interrupt": (interrupts, "ExitCalled"),
    "task group": (group_fails, "LookupError"),
    "base group": (base_group, "ExitCalled"),
    "unreadable": (raising(Unreadable()), "Unprintable"),
    "no attributes": (raising(NoAttributes()), "Unprintable"),
    "no class": (raising(NoClass()), "Unprintable"),
    "a bug beside an outage": (
        raising(ExceptionGroup("two", [ConnectionError("lost"), TypeError("bug")])),
        "TypeError",
    ),
    "base exception": (raising(NotAnException("x")), "ExitCalled"),
    "surrogate": (raising(ValueError("half \ud800")), "ValueError"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_one_broken_trajectory_touches_no_sibling(how):
    broken, kind = BROKEN[how]

    async def rollout(t):
        await turn(t)
        if t.key.sample == 1:
            await broken(t)
        await turn(t, "more")
        return 1.0

    local = LocalRun("a", samples=3)
    ending = local.run(rollout)
    assert (ending.stopped, ending.fatal) == ("", None)
    assert local.statuses() == {
        "a/0": ("COMPLETED", True),
        "a/1": ("FAILED", True),
        "a/2": ("COMPLETED", True),
    }
    history = local.history("a/1")
    assert [failure.type for failure in history.failures] == [kind, kind]
    assert [failure.attempt for failure in history.failures] == [1, 2]
    assert {failure.step for failure in history.failures} == {"0"}
    assert history.reward is None
    assert len(local.policy.requests) == 5, "the turn before the failure is replayed"


def test_a_rollout_that_uses_the_context_of_another_that_is_over_fails_and_is_not_forgotten():
    over = []

    async def rollout(t):
        await turn(t)
        if t.key.task == "a":
            over.append(t)
            return
        while not over or not over[0]._session.state.concluded.is_set():
            await asyncio.sleep(0.01)
        # In a context of its own, such as that of a server: nobody can tell whose rollout it is.
        await contextvars.Context().run(asyncio.create_task, turn(over[0], "more"))

    local = LocalRun("a", "b")
    ending = local.run(rollout)
    assert (ending.stopped, ending.fatal) == ("", None)
    assert local.statuses() == {"a/0": ("COMPLETED", True), "b/0": ("FAILED", True)}
    (failure,) = local.history("b/0").failures
    assert (failure.cause, failure.type) == ("code", "UsageError")
    assert "that is over was used" in failure.message
    assert "await contextvars.Context().run" in failure.traceback


def test_the_root_error_is_kept_with_its_causes_and_traceback():
    local = LocalRun()
    local.run(raises)
    shown = local.history().failures[0].traceback
    assert "ValueError: its cause" in shown
    assert "in raises" in shown
    assert "KeyError: 'plain'" in shown


def test_the_traceback_of_a_broken_tool_is_kept_even_through_branches():
    def breaks() -> str:
        raise ConnectionError("in the tool")

    async def aside(t):
        await t.value(lambda: 1, name="v")
        await t.tool(call("breaks"), Tool(breaks, contract="idempotent"))

    async def rollout(t):
        await t.branch(aside, lambda t: asyncio.sleep(60))

    local = LocalRun(group=GroupPolicy(refill=0))
    local.run(rollout, max_retry=0)
    (failure,) = local.history().failures
    assert (failure.type, failure.cause, failure.step) == (
        "EnvironmentBroken",
        "environment",
        "0.0.1",
    )
    assert "in breaks" in failure.traceback
    assert "ConnectionError: in the tool" in failure.traceback


# --- the table

CAUSES = {
    # cause: (what is raised, attempts in each life, lives with refill=1)
    "infrastructure": (EngineUnavailable("down"), 3, 2),
    "environment": (EnvironmentBroken("broken"), 3, 2),
    "code": (KeyError("bug"), 2, 1),
    "code, pointless to repeat": (BadRequest("no such parameter"), 1, 1),
}


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("refill", [0, 1])
def test_each_cause_has_its_attempts_and_refills(cause, refill):
    error, attempts, lives = CAUSES[cause]
    local = LocalRun(group=GroupPolicy(refill=refill))

    async def rollout(t):
        await turn(t)
        raise error

    local.run(rollout, max_retry=2)
    history = local.history()
    lives = min(lives, refill + 1)
    assert len(history.attempts) == len(history.failures) == attempts * lives
    assert history.life == lives - 1
    assert local.statuses() == {"a/0": ("FAILED", True)}
    assert (history.reward, local.rows()) == (None, [])
    assert len(local.policy.requests) == lives, "each life samples once; attempts replay"
    assert len({request.seed for request in local.policy.requests}) == lives


def test_what_the_runs_own_rule_does_not_retry_is_not_refilled() -> None:
    local = LocalRun(group=GroupPolicy(refill=1))
    local.run(raising(EngineUnavailable("down")), retry_rule=lambda error: False)
    assert (len(local.history().attempts), local.history().life) == (1, 0)


def test_a_reply_of_a_branch_that_was_cut_short_truncates_no_trajectory() -> None:
    async def asks(b):
        b.add("in short")
        return await b.generate(max_tokens=1)

    async def rollout(t):
        await turn(t)
        (reply,) = await t.branch(asks)
        assert reply.finish_reason == "length"

    local = LocalRun()
    local.run(rollout)
    assert local.statuses() == {"a/0": ("COMPLETED", True)}


def test_failures_before_a_trajectory_was_opened_again_use_up_no_attempts():
    local = LocalRun()
    local.run(raising(KeyError("bug")))
    local.run(raising(KeyError("bug")), reopen_failed=True)
    assert len(local.history().attempts) == 4


def test_without_retries_one_failure_is_final():
    local = LocalRun(group=GroupPolicy(refill=0))
    local.run(raising(EngineUnavailable("down")), max_retry=0)
    assert len(local.history().attempts) == 1
    assert local.statuses() == {"a/0": ("FAILED", True)}


def test_a_bug_is_tried_once_more_even_after_other_trouble():
    trouble = iter([EngineUnavailable("down"), KeyError("bug"), KeyError("bug"), KeyError("bug")])

    async def rollout(t):
        raise next(trouble)

    local = LocalRun()
    local.run(rollout)
    kinds = [failure.type for failure in local.history().failures]
    assert kinds == ["EngineUnavailable", "KeyError", "KeyError"]


def test_a_flake_becomes_an_outcome_on_its_second_attempt():
    trouble = iter([KeyError("flake")])

    async def rollout(t):
        await turn(t)
        for error in trouble:
            raise error
        return 0.5

    local = LocalRun()
    local.run(rollout)
    history = local.history()
    assert (history.status.name, history.reward, len(history.attempts)) == ("COMPLETED", 0.5, 2)
    assert len(local.policy.requests) == 1


def test_a_refill_replays_nothing_of_the_old_life():
    values = []

    async def rollout(t):
        values.append(await t.value(lambda: len(values), name="v"))
        await turn(t)
        if len(values) == 1:
            raise EnvironmentBroken("once")

    local = LocalRun()
    local.run(rollout, max_retry=0)
    assert values == [0, 1]
    history = local.history()
    assert (history.status.name, history.life) == ("COMPLETED", 1)
    assert len(local.rows()) == 1


@pytest.mark.parametrize("error", [EngineUnavailable("down"), EnvironmentBroken("broken")])
@pytest.mark.parametrize("hides", ["returns", "raises", "truncates"])
def test_a_swallowed_accident_never_becomes_an_outcome(error, hides):
    async def rollout(t):
        try:
            await turn(t)
        except Exception:
            if hides == "raises":
                raise ValueError("something else") from None
            if hides == "truncates":
                t.truncate("gave up")
            return 0.0

    local = LocalRun(policy=Oracle(lambda request: error), group=GroupPolicy(refill=0))
    local.run(rollout, max_retry=1)
    assert local.statuses() == {"a/0": ("FAILED", True)}
    assert {failure.type for failure in local.history().failures} == {type(error).__name__}


# --- retries meet the engine


async def turn_only(t):
    await turn(t)
    return 1.0


def test_a_retried_attempt_asks_nothing_that_is_durable(served, tmp_path):
    fails = iter([KeyError("once")])

    async def rollout(t):
        await turn(t)
        await turn(t, "second")
        for error in fails:
            raise error
        await turn(t, "third")

    async def main():
        policy = EnginePolicy(served.url, served.model)
        journal = open_journal(tmp_path / "journal.db")
        try:
            local = LocalRun(policy=policy, journal=journal, sampling=Sampling(max_tokens=32))
            return await local.work(rollout)
        finally:
            await journal.close()
            await policy.aclose()

    asyncio.run(main())
    assert [name for name, _ in served.requests()] == ["run/a/0/0", "run/a/0/1", "run/a/0/2"]


def test_a_fault_of_the_engine_costs_a_try_and_not_an_attempt(served):
    from holdfast.policy.retry import RetryPolicy

    served.set_faults(Fault(FaultKind.NAN_LOGPROB), Fault(FaultKind.ERROR_500))

    async def main():
        policy = EnginePolicy(
            served.url, served.model, retry=RetryPolicy(tries=5, base=0.01, cap=0.01)
        )
        try:
            local = LocalRun(policy=policy, sampling=Sampling(max_tokens=32))
            await local.work(turn_only)
            return local
        finally:
            await policy.aclose()

    local = asyncio.run(main())
    assert len(local.history().attempts) == 1
    assert local.report().call_retries == 2


async def _adds_much(t):
    t.add("x" * 4096)


async def _values_much(t):
    await t.value(lambda: "x" * 4096)


@pytest.mark.parametrize("much", [_adds_much, _values_much])
@pytest.mark.parametrize("swallows", [False, True])
def test_a_record_that_is_too_large_fails_its_own_trajectory(monkeypatch, much, swallows):
    monkeypatch.setattr(codec, "MAX_RECORD", 4096)

    async def rollout(t):
        await turn(t)
        if t.key.task == "a":
            try:
                await much(t)
            except RecordTooLarge:
                if not swallows:
                    raise
        return 1.0

    local = LocalRun("a", "b")
    ending = local.run(rollout)
    assert (ending.stopped, ending.fatal) == ("", None)
    assert local.statuses() == {"a/0": ("FAILED", True), "b/0": ("COMPLETED", True)}
    (failure,) = local.history().failures
    assert failure.type == "RecordTooLarge"
    assert "bytes is too large: the limit is 4,096" in failure.line


class LateAnswer(MemoryJournal):
    """Its answer to the first sample comes when the caller waits no longer. The sample is
    durable."""

    def __init__(self):
        super().__init__()
        self.is_late = True

    async def append(self, lease, records, **options):
        await super().append(lease, records, **options)
        if self.is_late and any(isinstance(record, Generated) for record in records):
            self.is_late = False
            await asyncio.sleep(60)


def test_after_an_append_that_was_cancelled_the_engine_goes_on_with_what_is_durable(monkeypatch):
    """For example, it counts what the sample cost."""
    run, results = TrajectoryRunner.run, []

    async def noting(*arguments):
        results.append(await run(*arguments))
        return results[-1]

    async def rollout(t):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await turn(t)
        await turn(t, "more")
        return 1.0

    monkeypatch.setattr(TrajectoryRunner, "run", noting)
    local = LocalRun("a", journal=LateAnswer())
    assert local.run(rollout).fatal is None
    durable = local.history()
    assert [step.path for step in durable.generations] == ["1"]
    assert [result.used for result in results] == [durable.used]
