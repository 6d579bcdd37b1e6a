"""One trajectory, attempt after attempt, until it has an outcome or its budgets are spent.

Every failure is caught here, once: classified, recorded with its root traceback, and answered by
the table in `records.failure` (retry with replay, refill, or FAILED). Nothing that a rollout does
reaches another trajectory (I4), and no accident becomes an outcome (I5).
"""

import asyncio
import math
import random
from collections.abc import Callable

from msgspec import Struct

from holdfast.clock import Clock
from holdfast.engine.settings import Settings
from holdfast.journal.journal import Cut, Journal, Lease
from holdfast.policy.policy import Policy
from holdfast.policy.renderer import Renderer
from holdfast.records.errors import (
    AttemptTimeout,
    EndpointDown,
    JournalCorrupt,
    JournalError,
    PolicyRefused,
    RunStopped,
    Truncated,
)
from holdfast.records.failure import TREATMENT, Failure, failure_of, root_of
from holdfast.records.history import History
from holdfast.records.run import RunSpec
from holdfast.records.step import (
    AttemptFailed,
    AttemptStarted,
    Finished,
    Record,
    Refilled,
)
from holdfast.records.task import Task
from holdfast.records.trajectory import Status, Truncation
from holdfast.rollout.context import Rollout
from holdfast.rollout.processor import Reward, RolloutConfig, RolloutProcessor
from holdfast.rollout.session import Session

FATAL = (JournalError, PolicyRefused, EndpointDown)
"""What ends the run and leaves the trajectory as it is, to go on later."""


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
    while history.finished is None:
        session = _session(bench, lease, task, history)
        try:
            await session.restart_if_interrupted()
            reward = await _perform(bench, session, task)
        except Truncated as limit:
            await _finish(bench, session, Status.TRUNCATED, limit.reason, None)
        except (*FATAL, RunStopped):
            raise
        except Exception as error:
            await _failed(bench, session, error)
            # Read again: an append whose waiter was cancelled may have become durable.
            history = await load(bench, lease)
        else:
            status, reason = _outcome(history)
            await _finish(bench, session, status, reason, reward)
    return history


def _session(bench: Workbench, lease: Lease, task: Task, history: History) -> Session:
    started = AttemptStarted(len(history.attempts) + 1, bench.worker, bench.clock.now())
    return Session(
        task=task,
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
        prelude=(started,),
    )


async def _perform(bench: Workbench, session: Session, task: Task) -> Reward:
    """Runs the rollout once, as a task of its own that never outlives this call."""
    context: list[Rollout] = []

    def open_context(row: Task) -> Rollout:
        context.append(Rollout(session))
        return context[-1]

    config = RolloutConfig(bench.spec.model, bench.spec.sampling, open_context)
    (job,) = bench.processor([task], config)
    try:
        await _within_deadline(bench, job)
        reward = _reward(job.result())
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if current is not None and current.cancelling():
            raise
        raise session.broken or RuntimeError("the rollout cancelled itself") from None
    except Exception as error:
        root = root_of(error)
        # A rollout that hides an accident behind another error does not change what happened.
        if session.broken is not None and not isinstance(root, (*FATAL, RunStopped)):
            raise session.broken from None
        raise root from None
    if session.broken is not None:
        raise session.broken
    return reward


async def _within_deadline(bench: Workbench, job: "asyncio.Task[Reward]") -> None:
    """Waits for the job. Time during which the endpoint was down is not counted."""
    left, down = bench.settings.attempt_deadline, bench.policy.seconds_down
    try:
        while not (await asyncio.wait({job}, timeout=left))[0]:
            outage = bench.policy.seconds_down - down
            if outage <= 0:
                raise AttemptTimeout(
                    f"the attempt did not finish within {bench.settings.attempt_deadline:g} s"
                )
            left, down = outage, down + outage
    finally:
        if not job.done():
            job.cancel()
            await asyncio.wait({job})


def _reward(found: object) -> Reward:
    if found is None:
        return None
    if not isinstance(found, int | float):
        raise TypeError(f"a rollout returns None or its reward, not {found!r}")
    if not math.isfinite(found):
        raise ValueError(f"a rollout returned {found}, which is no reward")
    return float(found)


def _outcome(history: History) -> tuple[Status, str]:
    """A rollout that returned after a reply that was cut by its length is truncated."""
    own = [step for step in history.generations if "." not in step.path]
    if own and own[-1].finish_reason == "length":
        return Status.TRUNCATED, Truncation.MAX_TOKENS
    return Status.COMPLETED, ""


async def _finish(
    bench: Workbench, session: Session, status: Status, reason: str, reward: Reward
) -> None:
    settled = bench.settles or not status.is_outcome
    finished = Finished(status, reason, reward, bench.clock.now())
    await session.append(finished, status=status, settled=settled)


async def _failed(bench: Workbench, session: Session, error: BaseException) -> None:
    """Records the failure together with what follows from it, and waits before the next try."""
    history, now = session.history, bench.clock.now()
    attempt = len(history.attempts) + (1 if session.has_prelude else 0)
    failure = failure_of(error, step=session.step, attempt=attempt)
    record = AttemptFailed(failure, now)
    if failure.retryable and history.spent < _allowed(bench, failure):
        await session.append(record)
        await _back_off(bench, history.spent)
    elif _refillable(bench, failure, history):
        await session.append(record, Refilled(history.life + 1, failure.root, now))
        await _back_off(bench, 1)
    else:
        finished = Finished(Status.FAILED, failure.root, None, now)
        await session.append(record, finished, status=Status.FAILED, settled=True)


def _allowed(bench: Workbench, failure: Failure) -> int:
    limit = TREATMENT[failure.cause].attempts
    retries = bench.settings.max_retry
    return retries if limit is None else min(limit, retries)


def _refillable(bench: Workbench, failure: Failure, history: History) -> bool:
    return TREATMENT[failure.cause].refill and history.life < bench.spec.group.refill


async def _back_off(bench: Workbench, failures: int) -> None:
    settings = bench.settings
    longest = min(settings.backoff_cap, settings.backoff * 2 ** (failures - 1))
    await bench.clock.sleep(random.uniform(0, longest))
