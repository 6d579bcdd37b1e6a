"""One trajectory, attempt after attempt, until it has an outcome or its budgets are spent.

Every failure is caught here, once: classified, recorded with its root traceback, and answered by
the table in `records.failure` (retry with replay, refill, or FAILED). Nothing that a rollout does
reaches another trajectory (I4), and no accident becomes an outcome (I5).
"""

import asyncio
import math
import random
from collections.abc import Callable

from msgspec import Struct, structs

from holdfast.clock import Clock
from holdfast.engine.settings import Settings
from holdfast.journal.journal import Cut, Journal, Lease
from holdfast.policy.policy import Policy
from holdfast.policy.rendering.renderer import Renderer
from holdfast.records.errors import (
    AttemptTimeout,
    Cause,
    EndpointDown,
    HoldfastError,
    JournalCorrupt,
    JournalError,
    PolicyRefused,
    Rewound,
    RunStopped,
    ScoringStopped,
    ThreadsHang,
    Truncated,
    UsageError,
)
from holdfast.records.failure import TREATMENT, Failure, failure_of
from holdfast.records.history import History
from holdfast.records.run import RunSpec
from holdfast.records.step import (
    AttemptFailed,
    AttemptStarted,
    Finished,
    Record,
    Refilled,
)
from holdfast.records.task import Task, own
from holdfast.records.trajectory import Status, Truncation
from holdfast.rollout.context import Rollout
from holdfast.rollout.episodes.environment import as_number, earns_rewards
from holdfast.rollout.processors.processor import (
    Returned,
    Reward,
    RolloutConfig,
    RolloutProcessor,
    completion_params_of,
)
from holdfast.rollout.replay.nested_steps import begins
from holdfast.rollout.replay.session import Session
from holdfast.rollout.threads.contain import as_exception, end, finished
from holdfast.rollout.tools.tool import result_text

FATAL = (JournalError, PolicyRefused, EndpointDown, ThreadsHang, ScoringStopped)
"""What ends the run and leaves the trajectory as it is, to go on later."""


class AttemptOutcome(Struct, frozen=True):
    """How a rollout ended, when that is the policy's doing."""

    status: Status
    reason: str
    reward: Reward
    turns_used: int | None = None


class Workbench(Struct, frozen=True):
    """What all attempts of a run share."""

    spec: RunSpec
    settings: Settings
    journal: Journal
    policy: Policy
    renderer: Renderer
    processor: RolloutProcessor
    clock: Clock
    worker: str
    stopping: Callable[[], bool]
    on_record: Callable[[Record], None]
    on_cut: Callable[[Cut], None]
    settles: bool
    """Whether an outcome needs no scoring and is settled as soon as it is there."""


async def load(bench: Workbench, lease: Lease) -> History:
    """What is recorded so far; a torn log is cut to its last good record, and that is told."""
    if lease.next_seq == 0:
        return History()
    try:
        return History(await bench.journal.history(lease.id))
    except JournalCorrupt:
        cut = await bench.journal.cut(lease)
        if cut is None:
            raise
        bench.on_cut(cut)
        return History(await bench.journal.history(lease.id))


async def drive(bench: Workbench, lease: Lease, task: Task, history: History) -> History:
    """Works until the trajectory is finished. Raises only what is fatal to the run."""
    rewound = False
    while history.finished is None:
        session = _session(bench, lease, task, history, goes_on=rewound)
        rewound = False
        try:
            await session.restart_if_interrupted()
            outcome = await _outcome(bench, session)
        except FATAL:
            raise
        except RunStopped as stopped:
            if bench.stopping():
                raise
            await _failed(bench, session, _misused(stopped))
            history = await load(bench, lease)
        except Rewound:
            # No failure: the same attempt begins again before the steps that are history now.
            rewound, history = True, await load(bench, lease)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            await _failed(bench, session, error)
            # Read again: an append whose waiter was cancelled may have become durable.
            history = await load(bench, lease)
        else:
            await _finish(bench, session, outcome)
            if session.unsure:
                history = await load(bench, lease)
    return history


def _misused(stopped: RunStopped) -> UsageError:
    """The run goes on, so that this came from the context of an attempt that is over."""
    error = UsageError(
        "the context of a trajectory that is over was used: keep `t` in the rollout that was given "
        "it, and nowhere that others find it"
    )
    return error.with_traceback(stopped.__traceback__)


def _session(
    bench: Workbench, lease: Lease, task: Task, history: History, *, goes_on: bool = False
) -> Session:
    started = AttemptStarted(len(history.attempts) + 1, bench.worker, bench.clock.now())
    return Session(
        task=own(task),
        lease=lease,
        history=history,
        journal=bench.journal,
        policy=bench.policy,
        renderer=bench.renderer,
        sampling=bench.spec.sampling,
        seed=bench.spec.seed,
        clock=bench.clock,
        on_divergence=bench.settings.on_divergence,
        stopping=bench.stopping,
        on_live=bench.on_record,
        prelude=() if goes_on else (started,),
        partial_tokens=bench.settings.partial_tokens,
    )


async def _outcome(bench: Workbench, session: Session) -> AttemptOutcome:
    """What the rollout came to. Raises what is no outcome."""
    try:
        found = await _perform(bench, session)
    except HoldfastError as error:
        if error.cause is not Cause.POLICY:
            raise
        # The policy's doing, whatever it is: were it a failure, crashing would be an escape.
        limit = error if isinstance(error, Truncated) else Truncated(type(error).__name__)
        outcome = AttemptOutcome(Status.TRUNCATED, limit.reason, *_returned(limit.returned))
    else:
        outcome = AttemptOutcome(Status.COMPLETED, "", *_returned(found))
    await session.cut_unvisited()
    if outcome.status is Status.COMPLETED and _was_cut_short(session.history):
        outcome = structs.replace(outcome, status=Status.TRUNCATED, reason=Truncation.MAX_TOKENS)
    if outcome.reward is None:
        outcome = structs.replace(outcome, reward=_environments_reward(session))
    return outcome


def _environments_reward(session: Session) -> Reward:
    """The reward of a rollout that names none, if it was in an environment that gives any: the sum
    of its steps'. A policy that did nothing there earned 0, which is no escape."""
    earned = session.history.step_rewards
    earns = any(earns_rewards(one.environment) for one in session.episodes)
    return math.fsum(earned) if earned or earns else None


async def _perform(bench: Workbench, session: Session) -> object:
    """Runs the rollout once, as a task of its own that never outlives this call."""
    job = await _start(bench, session)
    error: BaseException | None
    try:
        await _within_deadline(bench, session, job)
    except AttemptTimeout as late:
        error = late
    else:
        error = _error_of(job)
    finally:
        await session.close_episodes()
    # A rollout that hides an accident behind another error, or a result, does not change it.
    if session.broken is not None and not isinstance(error, (*FATAL, RunStopped)):
        error = session.broken
    if error is not None:
        raise error
    return job.result()


async def _start(bench: Workbench, session: Session) -> "asyncio.Task[Returned]":
    spec = bench.spec
    params = completion_params_of(spec.model, spec.sampling, n=spec.samples)
    config = RolloutConfig(spec.model, spec.sampling, lambda row: Rollout(session), params)
    begins(session)
    jobs: object = bench.processor([session.task], config)
    if isinstance(jobs, list) and len(jobs) == 1 and isinstance(jobs[0], asyncio.Task):
        return jobs[0]
    raise await _wrong_jobs(bench.processor, jobs)


async def _wrong_jobs(processor: RolloutProcessor, jobs: object) -> UsageError:
    """The error of a processor that gave something else; what it gave is ended."""
    given = list(jobs) if isinstance(jobs, list | tuple) else [jobs]
    for job in given:
        if isinstance(job, asyncio.Task):
            await end(job)
        elif asyncio.iscoroutine(job):
            job.close()
    kinds = ", ".join(type(job).__name__ for job in given[:5])
    found = f"{len(given)} of {kinds}" if isinstance(jobs, list | tuple) else kinds
    return UsageError(
        f"{type(processor).__name__} returned {found} for 1 row; it wants a list of asyncio tasks, "
        "of which task i belongs to row i"
    )


def _error_of(job: "asyncio.Task[Returned]") -> Exception | None:
    if job.cancelled():
        return RuntimeError("the rollout cancelled itself")
    error = job.exception()
    return None if error is None else as_exception(error)


async def _within_deadline(
    bench: Workbench, session: Session, job: "asyncio.Task[Returned]"
) -> None:
    """Waits for the job. Time during which the endpoint was down, or held, is not counted."""
    left, down = bench.settings.attempt_deadline, session.voice.policy.seconds_down
    try:
        while not await finished(job, left):
            outage = session.voice.policy.seconds_down - down
            if outage <= 0:
                late = AttemptTimeout(
                    f"the attempt did not finish within {bench.settings.attempt_deadline:g} s"
                )
                raise session.failed(late)
            left, down = outage, down + outage
    finally:
        await end(job)


def _returned(found: object) -> tuple[Reward, int | None]:
    """What a rollout may return: nothing, its reward, or (turns used, reward)."""
    turns, given = (None, found)
    if isinstance(found, tuple) and len(found) == 2 and _is_count(found[0]):
        turns, given = found
    if given is None:
        return None, turns
    reward = as_number(given)
    if reward is None:
        raise TypeError(
            f"a rollout returns None, its reward, or (turns_used, reward), not {found!r:.200}"
        )
    if not math.isfinite(reward):
        raise ValueError(f"a rollout returned {reward}, which is no reward")
    return reward, turns


def _is_count(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 2**31


def _was_cut_short(history: History) -> bool:
    """Whether the last reply, branches and sub-rollouts aside, was cut by its length."""
    own = [step for step in history.generations if "." not in step.path]
    return bool(own) and own[-1].finish_reason == "length"


async def _finish(bench: Workbench, session: Session, outcome: AttemptOutcome) -> None:
    finished = Finished(
        outcome.status,
        result_text(outcome.reason),
        outcome.reward,
        bench.clock.now(),
        tuple(session.unseen),
        outcome.turns_used,
    )
    await session.conclude(finished, status=outcome.status, settled=bench.settles)


async def _failed(bench: Workbench, session: Session, error: BaseException) -> None:
    """Records the failure together with what follows from it, and waits before the next try."""
    history, now = session.history, bench.clock.now()
    attempt = len(history.attempts) + (1 if session.has_prelude else 0)
    found = as_exception(error)
    again = _ruled(bench, found)
    if isinstance(again, Exception):
        found, again = again, False
    failure = failure_of(found, step=session.step_of(error), attempt=attempt)
    record = AttemptFailed(failure, now)
    if _may_retry(bench, failure, history, again):
        await session.conclude(record)
        await _back_off(bench, history.spent)
    elif again is not False and _refillable(bench, failure, history):
        await session.conclude(record, Refilled(history.life + 1, failure.root, now))
        await _back_off(bench, 1)
    else:
        finished = Finished(Status.FAILED, failure.root, None, now)
        await session.conclude(record, finished, status=Status.FAILED, settled=True)


def _ruled(bench: Workbench, error: Exception) -> bool | Exception | None:
    """What the run's own rule says; a rule that raises fails the trajectory with that."""
    if bench.settings.retry_rule is None:
        return None
    try:
        return bench.settings.retry_rule(error)
    except Exception as worse:
        worse.__cause__ = error
        return worse


def _may_retry(
    bench: Workbench, failure: Failure, history: History, again: bool | None = None
) -> bool:
    """A cause with a limit of its own counts its own failures; all share the run's budget."""
    if again is not None:
        return again and history.spent < bench.settings.max_retry
    if not failure.retryable:
        return False
    limit = TREATMENT[failure.cause].attempts
    lately = history.failures[len(history.failures) - history.spent :]
    alike = sum(one.cause is failure.cause for one in lately)
    return history.spent < bench.settings.max_retry and (limit is None or alike < limit)


def _refillable(bench: Workbench, failure: Failure, history: History) -> bool:
    return TREATMENT[failure.cause].refill and history.life < bench.spec.group.refill


async def _back_off(bench: Workbench, failures: int) -> None:
    settings = bench.settings
    grown = settings.backoff * settings.backoff_growth ** min(failures - 1, 30)
    longest = min(settings.backoff_cap, grown)
    is_constant = settings.backoff_growth == 1
    await bench.clock.sleep(longest if is_constant else random.uniform(0, longest))
