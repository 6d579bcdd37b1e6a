"""Session: one attempt at one trajectory, as the durable context uses it.

It has three parts: the `log` of steps, the `state` of the attempt and the set of its `episodes`. It
compares each step that the rollout asks for with the recorded step (I9).
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, TypeVar

from holdfast.journal.types import Lease
from holdfast.off_loop import MIN_THREAD_SIZE, off_loop
from holdfast.records.errors import (
    Cause,
    Diverged,
    EnvironmentBroken,
    JournalError,
    Rewound,
    RunStopped,
)
from holdfast.records.failure import classify
from holdfast.records.history import WEIGHTS_LOST, History
from holdfast.records.message import Message
from holdfast.records.run import seed_for
from holdfast.records.samples.summary import summarize
from holdfast.records.step import (
    AttemptStarted,
    Contract,
    Forked,
    Generated,
    Record,
    Step,
    ToolIntent,
    ancestors,
    call_turn,
    is_cut_by,
)
from holdfast.records.task import Task
from holdfast.records.trajectory import Status
from holdfast.rollout.replay import divergence
from holdfast.rollout.replay.current_code import is_in_step
from holdfast.rollout.replay.run_context import OnDivergence, RunContext

if TYPE_CHECKING:
    from holdfast.rollout.episodes.episode import Episode

SUSPECT_AFTER_CRASHES = 5
"""The number of crashes of its process after which a trajectory is a suspect. The more crashes, the
fewer suspects run at the same time. So trajectories that did not cause the crashes can finish (see
`engine.guards.crash_suspects`)."""
MAX_CRASHES = 25
Recorded = TypeVar("Recorded", bound=Step)


class Session:
    """One attempt at one trajectory."""

    def __init__(
        self,
        context: RunContext,
        lease: Lease,
        task: Task,
        history: History,
        *,
        continues: bool = False,
    ):
        """With `continues`, begins no new attempt, but continues the last recorded one."""
        self.context = context
        self.lease = lease
        self.task = task
        self.history = history
        self.name = str(lease.key)
        self.speaker = context.speaker
        self.clock = context.clock
        self.blobs = context.journal
        self.state = AttemptState(context.stop)
        self.log = StepLog(context, lease, history, self.state, continues=continues)
        self.episodes = EpisodeSet()
        self.added_last: Callable[[], tuple[str | Message, ...]] = tuple
        """Returns the messages after the last reply of the main conversation, as recorded. The code
        that leads this conversation sets it."""

    async def match(
        self,
        path: str,
        kind: type[Recorded],
        fingerprint: bytes,
        describe: Callable[[Step], str],
    ) -> Recorded | None:
        """Returns the record of the step at `path` if it has the same kind and fingerprint. Returns
        None if the step must run.

        If another step is recorded at `path`, that step and all later ones become history first, or
        `Diverged` is raised. `describe` says in words how the step differs from the record.
        """
        state, log = self.state, self.log
        if log.is_replaying:
            # A live step yields to the loop, so that tasks created before it begin first and take
            # their places. A replayed step does the same, to keep the order of places.
            await asyncio.sleep(0)
        state.check_unbroken()
        state.step = path
        recorded = log.take(path)
        if isinstance(recorded, kind) and recorded.fingerprint == fingerprint:
            log.mark_replayed(path)
            return recorded
        state.check_running()
        if recorded is not None:
            # Comparing two large prompts takes time.
            size = MIN_THREAD_SIZE if isinstance(recorded, Generated) else 0
            await log.fork(path, await off_loop(partial(describe, recorded), size=size))
        await self.go_live()
        return None

    async def go_live(self) -> None:
        """Restores the replayed environments before the first step that is not replayed."""
        # A step inside of another step is live, or is being restored.
        if not self.episodes.is_live and not is_in_step(self):
            await self.episodes.go_live()

    async def keep_episodes(self) -> None:
        """Makes the present states of the environments durable. Called between turns."""
        # This may be the environment's own code, in the middle of an action.
        if self.episodes and not is_in_step(self):
            await self.episodes.keep()

    def check_alive(self, path: str, call: str) -> None:
        """Raises an error if the process has died too often during the call at `path`.

        A call that ran when the process died may have caused the death. Nearly always it did not:
        drivers are killed, and machines are taken away. So the call is repeated many times before
        it is given up. A call that kills the process each time is given up in the end, because
        otherwise the run would never end.
        """
        crashes = self.history.interruptions[path]
        if crashes >= MAX_CRASHES:
            raise self.state.fail(
                EnvironmentBroken(
                    f"the process died, or was stopped, {crashes} times in the same call of "
                    f"{call}; it is not tried again"
                ),
                path,
            )

    async def conclude(
        self, *records: Record, status: Status | None = None, settled: bool | None = None
    ) -> None:
        """Ends the attempt and makes its last append. Tasks that the rollout left behind cannot
        append anything afterwards."""
        self.state.end()
        records = (*self.state.closing_records, *records)
        await self.log.write(records, status=status, settled=settled)
        self.state.concluded.set()

    def seed_at(self, path: str, *, always: bool = False) -> int | None:
        """Returns the seed of the step at `path`, or None if the run has no seed. With `always`, a
        run without a seed counts as a run with seed 0."""
        key, run_seed = self.lease.key, self.context.spec.seed
        seed = 0 if always and run_seed is None else run_seed
        return seed_for(seed, task=key.task, sample=key.sample, life=self.history.life, path=path)


class AttemptState:
    """Whether an attempt may continue, and which error broke it. An attempt is open at first, may
    break, and ends.

    The first error that the policy did not cause is kept. So a rollout that catches this error and
    goes on cannot turn an accident into an outcome (I5).
    """

    def __init__(self, stop: asyncio.Event):
        """`stop` is set when the run is asked to stop."""
        self.broken: BaseException | None = None
        """The first error that no `except` in a rollout may turn into an outcome."""
        self.step = ""
        """The path of the step that began last."""
        self.closing_records: list[Record] = []
        """Errors from closing environments. They are written with the attempt's last record."""
        self.concluded = asyncio.Event()
        """Set when the attempt's last record is durable."""
        self._stop = stop
        self._is_over = False
        self._blamed: list[tuple[BaseException, str]] = []

    @property
    def is_stopping(self) -> bool:
        """Whether the run is asked to stop. Then no new step begins."""
        return self._stop.is_set()

    def end(self) -> None:
        """Ends the attempt. From now on, `check_open` raises."""
        self._is_over = True

    def check_open(self) -> None:
        """Raises `RunStopped` if the attempt is over."""
        if self._is_over:
            raise RunStopped("the attempt is over; a task that it left behind does nothing more")

    def check_running(self) -> None:
        """Breaks the attempt and raises `RunStopped` if the run is asked to stop."""
        if self.is_stopping:
            stopped = RunStopped("the run is stopping; this trajectory goes on when it is resumed")
            raise self.fail(stopped)

    def check_unbroken(self) -> None:
        """Raises an error if the attempt is over or broken, so that it may take no step, not even a
        recorded one."""
        self.check_open()
        if self.broken is not None:
            raise self.broken

    def check_usable(self) -> None:
        """Raises an error if the attempt may take no new step: it is over, it is broken, or the run
        is asked to stop."""
        self.check_unbroken()
        self.check_running()

    def fail(self, error: BaseException, path: str | None = None) -> BaseException:
        """Breaks the attempt with `error`, unless it is broken already, and returns `error` for the
        caller to raise. `path` is the step that raised the error."""
        if self.broken is None:
            self.broken = error
        if path is not None:
            self.blame(error, path)
        return error

    def blame(self, error: BaseException, path: str) -> None:
        """Remembers which step raised an error. With concurrent branches, this may not be the step
        that began last."""
        self._blamed.append((error, path))

    def step_of(self, error: BaseException) -> str:
        """Returns the step that raised `error`: the blamed step, or else the last one that
        began."""
        return next((path for blamed, path in self._blamed if blamed is error), self.step)


def is_accident(error: BaseException) -> bool:
    """Returns whether an error has a cause other than the policy."""
    return classify(error)[0] is not Cause.POLICY


class StepLog:
    """The recorded steps of a trajectory, and the steps that this attempt has taken.

    A new step is durable before the rollout sees its result (I1). If a step differs from the
    record, the log forks there: that recorded step and all later ones become history (I9). The log
    is written only while `state` is open. If the journal fails, the attempt is broken.
    """

    def __init__(
        self,
        context: RunContext,
        lease: Lease,
        history: History,
        state: AttemptState,
        *,
        continues: bool,
    ):
        self.history = history
        self.is_unsure = False
        """Whether a cancelled append may have become durable without our history knowing."""
        self.unseen: list[str] = []
        """Generations that are not part of the rollout although they may be durable."""
        self.is_replaying = bool(history.steps)
        """Whether there were steps to replay when the attempt began."""
        self._context = context
        self._lease = lease
        self._state = state
        # No process had reached any step of a trajectory that nobody claimed before.
        self._reached_before = history.furthest if lease.epoch > 1 else -1
        self._taken: set[str] = set()
        self._replayed: set[str] = set()
        self._cancelled_scopes: list[str] = []
        # Written together with the attempt's first record, which saves one commit per attempt.
        self._unwritten: tuple[Record, ...] = () if continues else (self._start(context.worker),)

    # --- the attempt's first record

    def _start(self, worker: str) -> AttemptStarted:
        return AttemptStarted(len(self.history.attempts) + 1, worker, self._context.clock.now())

    @property
    def is_unstarted(self) -> bool:
        """Whether the record of the attempt's start is not written yet."""
        return any(isinstance(record, AttemptStarted) for record in self._unwritten)

    async def start_attempt(self) -> None:
        """Records the attempt's start durably, before the attempt does anything. The number of the
        attempt then distinguishes its holder from the holders of earlier attempts."""
        if self._unwritten:
            return await self.append()
        before = self.history.attempts
        return await self.append(self._start(before[-1].worker if before else ""))

    def continue_attempt(self) -> None:
        """Continues the last recorded attempt, whose agent is alive, instead of a new one."""
        self._unwritten = ()

    # --- writing

    async def append(
        self, *records: Record, status: Status | None = None, settled: bool | None = None
    ) -> None:
        """Appends records, and returns when they are durable. Raises `RunStopped` if the attempt is
        over."""
        self._state.check_open()
        await self.write(records, status=status, settled=settled)

    async def write(
        self, records: tuple[Record, ...], *, status: Status | None, settled: bool | None
    ) -> None:
        """Appends records as `append` does, but also accepts an attempt's last records after its
        end."""
        unwritten, self._unwritten = self._unwritten, ()
        if unwritten:
            records = (*unwritten, *records)
            status = Status.RUNNING if status is None else status
        elif not records:
            return
        if settled:
            self._lease.summary = summarize(self.history.after(records))
        try:
            await self._context.journal.append(self._lease, records, status=status, settled=settled)
        except asyncio.CancelledError:
            self.is_unsure = True
            self.unseen += [record.path for record in records if isinstance(record, Generated)]
            raise
        except JournalError as error:
            self._state.fail(error)
            raise
        except Exception:
            self._unwritten = unwritten  # The records could not be encoded, so nothing was written.
            raise
        for record in records:
            self.history.take(record)
            self._context.on_record(record)

    # --- which steps belong to this attempt

    def take(self, path: str) -> Step | None:
        """Marks the step at `path` as taken by this attempt. Returns its record, or None if there
        is none."""
        if "." in path:
            self._scopes_with_steps.update(ancestors(path))
        self._taken.add(path)
        return self.history.steps.get(path)

    def keep(self, path: str) -> None:
        """Marks the step at `path` as taken by this attempt, so that the step is not cut at the end
        of the attempt."""
        self._taken.add(path)

    def mark_replayed(self, path: str) -> None:
        """Notes that the result of the step at `path` comes from its record, so that its code does
        not run."""
        self._replayed.add(path)

    def mark_running(self, path: str) -> None:
        """Notes that the code of the step at `path` runs, for the first time or again."""
        self._replayed.discard(path)

    @property
    def is_on_old_ground(self) -> bool:
        """Whether an earlier process has already recorded as many steps as there are now."""
        return len(self.history.steps) <= self._reached_before

    def sampled_below(self, path: str) -> list[Generated]:
        """Returns the policy's generations inside the step at `path`."""
        steps = (self.history.steps[below] for below in self._steps_below(path))
        generations = [step for step in steps if isinstance(step, Generated)]
        return [step for step in generations if step.trainable or not step.ids]

    def _steps_below(self, path: str) -> list[str]:
        if path not in self._scopes_with_steps:
            return []
        return [below for below in self.history.steps if below.startswith(f"{path}.")]

    @cached_property
    def _scopes_with_steps(self) -> set[str]:
        """The paths of all steps that contain other steps. Most trajectories have no such step."""
        return {scope for path in self.history.steps if "." in path for scope in ancestors(path)}

    # --- where the attempt leaves what is recorded

    async def fork(self, path: str, difference: str) -> None:
        """Turns the step at `path` and all later steps into history. Raises `Diverged` if that is
        not allowed."""
        await self.append(self._cut(path, difference))

    def _cut(self, path: str, difference: str) -> Forked:
        if self._context.on_divergence is OnDivergence.FAIL:
            raise self._state.fail(
                Diverged(
                    f"at step {path} the rollout no longer does what is recorded: {difference}"
                )
            )
        self.check_own(path, difference)
        # Cut before the first await: a concurrent step that starts in the meantime must not replay
        # cut steps.
        self.history.cut(path)
        return Forked(path, "diverged on replay", difference, self._context.clock.now())

    def check_own(self, path: str, difference: str) -> None:
        """Raises `Diverged` if a cut at `path` would remove steps that this fork shares with its
        original trajectory."""
        if any(is_cut_by(step, path) for step in self.history.shared):
            raise self._state.fail(
                Diverged(
                    "a fork keeps everything before the step that it forks at, and at step "
                    f"{path} something else happens now: {difference}"
                )
            )

    def open_scope(self, path: str, what: str) -> None:
        """Opens a scope at `path`, so that steps can be recorded below `path`. No step is recorded
        at `path` itself.

        If the journal has a step at `path`, that step and all later ones become history. This
        change is durable before any step in the scope.
        """
        recorded = self.history.steps.get(path)
        if recorded is not None:
            self._state.check_usable()
            fork = self._cut(path, f"recorded {divergence.name_of(recorded)}, now {what}")
            self._unwritten = (*self._unwritten, fork)

    async def rewind(self, paths: Sequence[str], reason: str, details: str) -> BaseException:
        """Turns the steps at `paths`, and the later steps in their scopes, into history. Breaks the
        attempt and returns the error to raise, because the rollout has to start again."""
        now = self._context.clock.now()
        first, *rest = paths
        follows = f"follows from step {first}"
        await self.append(
            Forked(first, reason, details, now),
            *(Forked(path, follows, "", now) for path in rest),
        )
        return self._state.fail(Rewound(f"{reason}: {details}" if details else reason))

    async def begin_anew_if_needed(self) -> None:
        """Turns the whole trajectory into history if it cannot continue from its records."""
        if reason := self._why_anew():
            await self.append(Forked("0", reason, "", self._context.clock.now()))

    def _why_anew(self) -> str:
        """Returns the reason why the trajectory has to begin anew, or "" if it need not.

        There are two reasons. The process died during a call of a tool with the contract `restart`.
        Or the trajectory was sampled with weights that no engine has any more.
        """
        for path in self.history.unfinished:
            step = self.history.steps[path]
            if isinstance(step, ToolIntent) and step.contract is Contract.RESTART:
                return f"tool {step.name!r} was interrupted and its contract is to start anew"
        lost = self._context.lost_versions
        return WEIGHTS_LOST if lost and self.history.sampled_by(lost) else ""

    def keep_cancelled(self, scope: str) -> None:
        """Protects the records of the cancelled branches under `scope` from being cut. How far a
        cancelled branch gets on replay depends on timing."""
        self._cancelled_scopes.append(scope)

    async def cut_untaken(self) -> None:
        """Cuts the recorded steps that this attempt has not taken: they become history. Called when
        the rollout ends.

        Raises `Diverged` if this is not allowed, or if the rollout ended before the turn that its
        fork edits.
        """
        for path in [path for path in self.history.steps if path not in self._taken]:
            if path in self.history.steps and not self._is_kept(path):
                await self.fork(path, "recorded, but the rollout ends without it")
        calls = {call_turn(key, occurrence) for key, occurrence in self.history.calls}
        if self.history.edits.keys() - self._taken - calls:
            raise self._state.fail(Diverged("the rollout ends before the turn that its fork edits"))

    async def cut_below(self, path: str) -> None:
        """Cuts the recorded steps below `path` that the code of this step has not taken: they
        become history. Called when that code has run."""
        for below in self._steps_below(path):
            is_open = below not in self._taken and below in self.history.steps
            if is_open and not self._is_kept(below):
                await self.fork(below, f"recorded, but step {path} ends without it")

    def _is_kept(self, path: str) -> bool:
        """Returns whether the step at `path` must not be cut: it lies in a cancelled branch, or
        below a replayed step whose code did not run."""
        if path.startswith(tuple(self._cancelled_scopes)):
            return True
        around = (step for step in ancestors(path) if step in self._replayed)
        return any(not isinstance(self.history.steps.get(step), Generated) for step in around)


class EpisodeSet(list["Episode"]):
    """The episodes of one attempt, in the order of their opening. Their environments are restored
    together and closed together."""

    def __init__(self) -> None:
        super().__init__()
        self.is_live = False
        self._going_live = asyncio.Lock()

    add = list.append

    async def go_live(self) -> None:
        """Restores each environment to the state after the replayed steps. Only the first call does
        anything."""
        if self.is_live:
            return
        async with self._going_live:
            if not self.is_live:
                for episode in self:
                    await episode.revive()
                self.is_live = True

    async def keep(self) -> None:
        """Takes a durable snapshot of each environment that needs one."""
        for episode in self:
            await episode.keep()

    async def close(self) -> None:
        """Closes all environments, the last opened first. If the caller is cancelled, waits until
        all are closed, and is cancelled then."""
        if not self:
            return
        closing = asyncio.ensure_future(self._close())
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            await asyncio.wait({closing})
            raise

    async def _close(self) -> None:
        for episode in reversed(self):
            await episode.close()
