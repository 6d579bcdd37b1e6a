"""Runs one trajectory, attempt after attempt, until it has an outcome or its budgets are spent.

Every failure is caught here once: it is classified, recorded with its root traceback, and answered
by the table in `records.failure` (retry with replay, refill, or FAILED). A rollout cannot affect
another trajectory (I4), and an accident never becomes an outcome (I5).
"""

import asyncio
import math
import random

from msgspec import Struct, structs

from holdfast.engine.settings import Settings
from holdfast.journal.types import Lease
from holdfast.records.errors import (
    AttemptTimeout,
    EndpointDown,
    InterruptedCall,
    JournalCorrupt,
    JournalError,
    PolicyRefused,
    Rewound,
    RunStopped,
    ScorerUnloadable,
    ScoringStopped,
    ThreadsHang,
    Truncated,
    UsageError,
)
from holdfast.records.failure import TREATMENT, Failure, as_exception, failure_of
from holdfast.records.history import History
from holdfast.records.message import Message
from holdfast.records.step import (
    AttemptFailed,
    Finished,
    Refilled,
)
from holdfast.records.task import Task, own
from holdfast.records.trajectory import Status, Truncation
from holdfast.rollout.episodes.environment import as_number, earns_rewards
from holdfast.rollout.processors.processor import Returned, Reward, RolloutProcessor, start_rollout
from holdfast.rollout.replay.current_code import enter_attempt
from holdfast.rollout.replay.run_context import RunContext
from holdfast.rollout.replay.session import Session, is_accident
from holdfast.rollout.threads.contain import end_task, finishes_within
from holdfast.rollout.tools.tool import result_text


class NotAReward(UsageError, TypeError):
    """A rollout returned a value that is not a reward."""


FATAL = (
    JournalError,
    PolicyRefused,
    EndpointDown,
    ThreadsHang,
    ScorerUnloadable,
    ScoringStopped,
)
"""Errors that end the run. The trajectory stays as it is, and can continue later."""


class AttemptOutcome(Struct, frozen=True):
    """The end of a rollout that did not fail."""

    status: Status
    reason: str
    reward: Reward
    turns_used: int | None = None
    added: tuple[str | Message, ...] = ()


class TrajectoryRunner:
    """Runs the trajectories of one run. Each trajectory runs attempt after attempt."""

    def __init__(
        self,
        context: RunContext,
        processor: RolloutProcessor,
        *,
        settings: Settings,
        settles: bool,
    ):
        """With `settles`, an outcome needs no scoring and is settled at once."""
        self._context = context
        self._processor = processor
        self._settings = settings
        self._settles = settles
        self._keeps_interrupted = context.spec.group.keep_interrupted

    async def load(self, lease: Lease) -> History:
        """Loads the records so far. If the log is torn, cuts it to its last good record and reports
        the cut. Raises `JournalCorrupt` if the log cannot be cut."""
        if lease.next_seq == 0:
            return History()
        journal = self._context.journal
        try:
            return History(await journal.history(lease.id))
        except JournalCorrupt:
            cut = await journal.cut(lease)
            if cut is None:
                raise
            self._context.on_cut(cut)
            return History(await journal.history(lease.id))

    async def run(self, lease: Lease, task: Task, history: History) -> History:
        """Works until the trajectory is finished. Raises only errors that end the run."""
        rewound = False
        while history.finished is None:
            session = Session(self._context, lease, own(task), history, continues=rewound)
            rewound = False
            try:
                await session.log.begin_anew_if_needed()
                outcome = await self._outcome(session)
                await _record_outcome(session, outcome, settled=self._settles)
            except FATAL:
                raise
            except RunStopped as stopped:
                if self._context.stop.is_set():
                    raise
                await _record_failure(session, _misused(stopped), self._settings)
                history = await self.load(lease)
            except Rewound:
                # Not a failure: the attempt begins again before the steps that are now history.
                rewound, history = True, await self.load(lease)
                history.end_calls()
            except (Exception, SystemExit, KeyboardInterrupt) as error:
                await _record_failure(session, error, self._settings)
                # Reads the log again: a cancelled append may have become durable.
                history = await self.load(lease)
            else:
                if session.log.is_unsure:
                    history = await self.load(lease)
        return history

    async def _outcome(self, session: Session) -> AttemptOutcome:
        """Returns the outcome of the rollout. Raises an error if an accident prevented an
        outcome."""
        try:
            returned = await self._perform(session)
        except Exception as error:
            if is_accident(error):
                raise
            # The policy caused this error. If it counted as a failure, a policy could escape by
            # crashing.
            root = as_exception(error)
            limit = root if isinstance(root, Truncated) else Truncated(type(root).__name__)
            outcome = AttemptOutcome(Status.TRUNCATED, limit.reason, *_returned(limit.returned))
        else:
            outcome = AttemptOutcome(Status.COMPLETED, "", *_returned(returned))
        await session.log.cut_untaken()
        if (interrupted := session.history.interrupted_calls) and not self._keeps_interrupted:
            raise InterruptedCall(interrupted[0])
        if outcome.status is Status.COMPLETED and (reason := _cut_by(session.history)):
            outcome = structs.replace(outcome, status=Status.TRUNCATED, reason=reason)
        if outcome.reward is None:
            outcome = structs.replace(outcome, reward=_environments_reward(session))
        return structs.replace(outcome, added=session.added_last())

    async def _perform(self, session: Session) -> object:
        """Runs the rollout once, in its own task, which never outlives this call."""
        enter_attempt(session)
        job = await start_rollout(self._processor, session)
        error: BaseException | None
        try:
            await _within_deadline(session, job, self._settings.attempt_deadline)
        except AttemptTimeout as late:
            error = late
        else:
            error = _error_of(job)
        finally:
            await session.episodes.close()
        # If the rollout hides an infrastructure error behind another error or a result, the first
        # error still counts.
        if session.state.broken is not None and not isinstance(error, (*FATAL, RunStopped)):
            error = session.state.broken
        if error is not None:
            raise error
        return job.result()


def _misused(stopped: RunStopped) -> UsageError:
    """Returns the error for a rollout that raised `RunStopped` while the run goes on.

    Such a rollout has used the context of an attempt that is over.
    """
    error = UsageError(
        "the context of a trajectory that is over was used: keep `t` in the rollout that was given "
        "it, and nowhere that others find it"
    )
    return error.with_traceback(stopped.__traceback__)


def _environments_reward(session: Session) -> Reward:
    """Returns the reward for a rollout that returned none: the sum of its environment's step
    rewards.

    If the environment gives rewards but no step was made, the reward is 0, so that a model cannot
    avoid bad rewards by doing nothing. Returns None if there are no step rewards and no environment
    gives rewards.
    """
    earned = session.history.step_rewards
    earns = any(earns_rewards(episode.environment) for episode in session.episodes)
    return math.fsum(earned) if earned or earns else None


def _error_of(job: "asyncio.Task[Returned]") -> Exception | None:
    if job.cancelled():
        return RuntimeError("the rollout cancelled itself")
    error = job.exception()
    # An exception group stays whole, so all its members are recorded.
    return error if error is None or isinstance(error, Exception) else as_exception(error)


async def _within_deadline(
    session: Session, job: "asyncio.Task[Returned]", deadline: float
) -> None:
    """Waits for the job. Raises `AttemptTimeout` after `deadline` seconds, not counting the time in
    which the endpoint was down or held. The job has ended when this returns or raises."""
    policy = session.speaker.policy
    left, down = deadline, policy.seconds_down
    try:
        while not await finishes_within(job, left):
            outage = policy.seconds_down - down
            if outage <= 0:
                late = AttemptTimeout(f"the attempt did not finish within {deadline:g} s")
                raise session.state.fail(late)
            left, down = outage, down + outage
    finally:
        await end_task(job)


def _returned(returned: object) -> tuple[Reward, int | None]:
    """Reads the value that a rollout returned: None, its reward, or (turns used, reward). Returns
    the reward and the number of turns used."""
    turns, value = (None, returned)
    if isinstance(returned, tuple) and len(returned) == 2 and _is_count(returned[0]):
        turns, value = returned
    if value is None:
        return None, turns
    reward = as_number(value)
    if reward is None:
        raise NotAReward(
            f"a rollout returns None, its reward, or (turns_used, reward), not {returned!r:.200}"
        )
    if not math.isfinite(reward):
        raise NotAReward(f"a rollout returned {reward}, which is not a reward")
    return reward, turns


def _is_count(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 2**31


_CUTS = {"length": Truncation.MAX_TOKENS, "content_filter": Truncation.CONTENT_FILTER}


def _cut_by(history: History) -> Truncation | None:
    """Returns the reason why the last reply was cut short, or None. Ignores branches and
    sub-rollouts."""
    own = [step for step in history.generations if "." not in step.path]
    return _CUTS.get(own[-1].finish_reason) if own else None


async def _record_outcome(session: Session, outcome: AttemptOutcome, *, settled: bool) -> None:
    finished = Finished(
        outcome.status,
        result_text(outcome.reason),
        outcome.reward,
        session.clock.now(),
        tuple(session.log.unseen),
        outcome.turns_used,
        outcome.added,
    )
    await session.conclude(finished, status=outcome.status, settled=settled)


async def _record_failure(session: Session, error: BaseException, settings: Settings) -> None:
    """Records the failure together with its consequence (a retry, a refill, or FAILED). If another
    attempt follows, also waits."""
    history, clock = session.history, session.clock
    attempt = len(history.attempts) + (1 if session.log.is_unstarted else 0)
    root = as_exception(error)
    again = _ruled(root, settings)
    if isinstance(again, Exception):
        error, again = again, False
    now = clock.now()
    failure = failure_of(error, step=session.state.step_of(root), attempt=attempt)
    record = AttemptFailed(failure, now)
    if _may_retry(failure, history, settings, again=again):
        await session.conclude(record)
        await clock.sleep(_back_off_seconds(settings, history.spent))
    elif again is not False and _refillable(failure, session):
        await session.conclude(record, Refilled(history.life + 1, failure.root, now))
        await clock.sleep(_back_off_seconds(settings, 1))
    else:
        finished = Finished(Status.FAILED, failure.root, None, now)
        await session.conclude(record, finished, status=Status.FAILED, settled=True)


def _ruled(error: Exception, settings: Settings) -> bool | Exception | None:
    """Returns the decision of the retry rule in the settings, or None without a rule.

    If the rule raises, returns its error, which fails the trajectory.
    """
    if settings.retry_rule is None:
        return None
    try:
        return settings.retry_rule(error)
    except Exception as worse:
        worse.__cause__ = error
        return worse


def _may_retry(
    failure: Failure, history: History, settings: Settings, *, again: bool | None
) -> bool:
    """Returns whether the attempt may be retried.

    All failures count towards `max_retry`. Some causes have a lower limit, for which only failures
    with the same cause count. `again` is the decision of the retry rule in the settings, or None.
    """
    if again is not None:
        return again and history.spent < settings.max_retry
    if not failure.retryable:
        return False
    limit = TREATMENT[failure.cause].attempts
    lately = history.failures[len(history.failures) - history.spent :]
    alike = sum(earlier.cause is failure.cause for earlier in lately)
    return history.spent < settings.max_retry and (limit is None or alike < limit)


def _refillable(failure: Failure, session: Session) -> bool:
    group = session.context.spec.group
    return TREATMENT[failure.cause].refill and group.refills(session.history.life)


def _back_off_seconds(settings: Settings, failures: int) -> float:
    grown = settings.backoff * settings.backoff_growth ** min(failures - 1, 30)
    longest = min(settings.backoff_cap, grown)
    is_constant = settings.backoff_growth == 1
    return longest if is_constant else random.uniform(0, longest)
