"""StepLog: the recorded steps of a trajectory, and which of them this attempt has taken.

Appends what is new: durable first, visible after (I1). Where the attempt leaves what is recorded,
the log forks: steps from there on are history (I9).
"""

import asyncio
from collections.abc import Sequence
from functools import cached_property

from holdfast.journal.journal import Lease
from holdfast.records.errors import Diverged, JournalError, Rewound
from holdfast.records.history import WEIGHTS_LOST, History
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
)
from holdfast.records.trajectory import Status
from holdfast.rollout.replay import divergence
from holdfast.rollout.replay.attempt_state import AttemptState
from holdfast.rollout.replay.run_context import OnDivergence, RunContext


class StepLog:
    """Of one attempt. Writes only while `state` is open, and breaks it when the journal fails."""

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
        """Generations that are no part of the rollout, though they may be durable."""
        self.is_replaying = bool(history.steps)
        """Whether there were steps to replay when the attempt began."""
        self._context = context
        self._lease = lease
        self._state = state
        # A trajectory that nobody claimed before was in no process that is gone.
        self._reached_before = history.furthest if lease.epoch > 1 else -1
        self._taken: set[str] = set()
        self._replayed: set[str] = set()
        self._cancelled_scopes: list[str] = []
        # Written together with the first record of the attempt: one commit less for each.
        self._unwritten: tuple[Record, ...] = () if continues else (self._start(context.worker),)

    # --- the attempt's first record

    def _start(self, worker: str) -> AttemptStarted:
        return AttemptStarted(len(self.history.attempts) + 1, worker, self._context.clock.now())

    @property
    def is_unstarted(self) -> bool:
        """Whether the attempt has recorded nothing yet."""
        return any(isinstance(record, AttemptStarted) for record in self._unwritten)

    async def start_attempt(self) -> None:
        """Makes the attempt durable before anything is done in it: its number then
        sets its holder apart from those of earlier attempts."""
        if self._unwritten:
            return await self.append()
        before = self.history.attempts
        return await self.append(self._start(before[-1].worker if before else ""))

    def continue_attempt(self) -> None:
        """No new attempt: the agent of the last one is alive and goes on with it."""
        self._unwritten = ()

    # --- writing

    async def append(
        self, *records: Record, status: Status | None = None, settled: bool | None = None
    ) -> None:
        """Durable when it returns; raises `RunStopped` once the attempt is over."""
        self._state.check_open()
        await self.write(records, status=status, settled=settled)

    async def write(
        self, records: tuple[Record, ...], *, status: Status | None, settled: bool | None
    ) -> None:
        """The same, also when the attempt is over: for its last records."""
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
            self._unwritten = unwritten  # The records cannot be encoded: nothing was written.
            raise
        for record in records:
            self.history.take(record)
            self._context.on_record(record)

    # --- which steps belong to this attempt

    def take(self, path: str) -> Step | None:
        """The step at `path` is taken now; what is recorded there."""
        if "." in path:
            self._scopes_with_steps.update(ancestors(path))
        self._taken.add(path)
        return self.history.steps.get(path)

    def keep(self, path: str) -> None:
        """The step at `path` is part of this attempt: its end does not make it history."""
        self._taken.add(path)

    def mark_replayed(self, path: str) -> None:
        """The step at `path` is answered from its record: its code does not run."""
        self._replayed.add(path)

    def mark_running(self, path: str) -> None:
        """The code of the step at `path` runs, for the first time or again."""
        self._replayed.discard(path)

    @property
    def is_on_old_ground(self) -> bool:
        """Whether an earlier process had come as far as this."""
        return len(self.history.steps) <= self._reached_before

    def sampled_below(self, path: str) -> list[Generated]:
        """The policy's generations inside the step at `path`."""
        steps = (self.history.steps[below] for below in self._steps_below(path))
        generations = [step for step in steps if isinstance(step, Generated)]
        return [step for step in generations if step.trainable or not step.ids]

    def _steps_below(self, path: str) -> list[str]:
        if path not in self._scopes_with_steps:
            return []
        return [below for below in self.history.steps if below.startswith(f"{path}.")]

    @cached_property
    def _scopes_with_steps(self) -> set[str]:
        """Positions below which there are steps; most trajectories have none."""
        return {scope for path in self.history.steps if "." in path for scope in ancestors(path)}

    # --- where the attempt leaves what is recorded

    async def fork(self, path: str, difference: str) -> None:
        """Makes the step at `path`, and all that followed it, history; or raises `Diverged`."""
        await self.append(self._cut(path, difference))

    def _cut(self, path: str, difference: str) -> Forked:
        if self._context.on_divergence is OnDivergence.FAIL:
            raise self._state.fail(
                Diverged(
                    f"at step {path} the rollout no longer does what is recorded: {difference}"
                )
            )
        # Cut before waiting: a sibling step that starts meanwhile must not replay what is cut.
        self.history.cut(path)
        return Forked(path, "diverged on replay", difference, self._context.clock.now())

    def open_scope(self, path: str, what: str) -> None:
        """There is no step at `path`, but others below it: one that is recorded there, and all that
        followed it, are history. That is durable before anything below is."""
        recorded = self.history.steps.get(path)
        if recorded is not None:
            self._state.check_usable()
            fork = self._cut(path, f"recorded {divergence.name_of(recorded)}, now {what}")
            self._unwritten = (*self._unwritten, fork)

    async def rewind(self, paths: Sequence[str], reason: str, details: str) -> BaseException:
        """Makes the steps at `paths`, and what follows them in their scopes, history. Returns the
        error to raise: the rollout has to begin again."""
        now = self._context.clock.now()
        first, *rest = paths
        follows = f"follows from step {first}"
        await self.append(
            Forked(first, reason, details, now),
            *(Forked(path, follows, "", now) for path in rest),
        )
        return self._state.fail(Rewound(f"{reason}: {details}" if details else reason))

    async def begin_anew_if_needed(self) -> None:
        """Makes the whole trajectory history where it cannot go on from what is recorded."""
        if reason := self._why_anew():
            await self.append(Forked("0", reason, "", self._context.clock.now()))

    def _why_anew(self) -> str:
        """A call under the `restart` contract in which the process died may have changed anything;
        and a trajectory has one version of the weights, where these may be lost."""
        for path in self.history.unfinished:
            step = self.history.steps[path]
            if isinstance(step, ToolIntent) and step.contract is Contract.RESTART:
                return f"tool {step.name!r} was interrupted and its contract is to start anew"
        lost = self._context.lost_versions
        return WEIGHTS_LOST if lost and self.history.sampled_by(lost) else ""

    def keep_cancelled(self, scope: str) -> None:
        """Branches under `scope` were cancelled: how far they came on replay is a matter of
        timing, so what is recorded of them is kept."""
        self._cancelled_scopes.append(scope)

    async def cut_untaken(self) -> None:
        """A rollout that ends before its recorded steps do has diverged from them, too."""
        for path in [path for path in self.history.steps if path not in self._taken]:
            if path in self.history.steps and not self._is_kept(path):
                await self.fork(path, "recorded, but the rollout ends without it")

    async def cut_below(self, path: str) -> None:
        """The code of the step at `path` has run: what is recorded below it, and was not done now,
        belongs to another step that was in its place."""
        for below in self._steps_below(path):
            is_open = below not in self._taken and below in self.history.steps
            if is_open and not self._is_kept(below):
                await self.fork(below, f"recorded, but step {path} ends without it")

    def _is_kept(self, path: str) -> bool:
        """Whether it lies in a branch that was cancelled, or below a step that was replayed: the
        code that took it did not run."""
        if path.startswith(tuple(self._cancelled_scopes)):
            return True
        around = (step for step in ancestors(path) if step in self._replayed)
        return any(not isinstance(self.history.steps.get(step), Generated) for step in around)
