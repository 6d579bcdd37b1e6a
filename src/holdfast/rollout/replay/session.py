"""Session: one attempt at one trajectory, as the durable context sees it.

Matches each step that the rollout asks for with what is recorded (I9), appends what is new, and
remembers the first error that was not the policy's doing, so that a rollout which swallows it
cannot turn an accident into an outcome (I5).
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, TypeVar

from holdfast.journal.journal import Lease
from holdfast.policy.off_loop import LARGE, off_loop
from holdfast.records.errors import (
    Cause,
    Diverged,
    HoldfastError,
    JournalError,
    Rewound,
    RunStopped,
)
from holdfast.records.history import History
from holdfast.records.run import seed_for
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
from holdfast.records.task import Task
from holdfast.records.trajectory import Status
from holdfast.rollout.replay import divergence
from holdfast.rollout.replay.nested_steps import is_inside
from holdfast.rollout.replay.run_context import OnDivergence, RunContext

if TYPE_CHECKING:
    from holdfast.rollout.episodes.episode import Episode

Recorded = TypeVar("Recorded", bound=Step)


class Session:
    """What an attempt needs to know. Owned by one attempt, dropped with it."""

    def __init__(
        self,
        context: RunContext,
        lease: Lease,
        task: Task,
        history: History,
        *,
        continues: bool = False,
    ):
        """`continues`: no new attempt begins; the last recorded one goes on."""
        self.context = context
        self.task = task
        self.lease = lease
        self.history = history
        self.speaker = context.speaker
        self.clock = context.clock
        self.broken: BaseException | None = None
        self.unsure = False
        """Whether a cancelled append may have become durable without our history knowing."""
        self.unseen: list[str] = []
        """Generations that the rollout gave up on, and that may be durable all the same."""
        self.episodes: list[Episode] = []
        """Environments of this attempt, in the order of their opening."""
        self.afterwards: list[Record] = []
        """What happened on clearing up; written with the attempt's last record."""
        self.concluded = asyncio.Event()
        """Set when the attempt's last record is durable."""
        self.blobs = context.journal
        self.step = ""
        """The step that was begun last."""
        self._is_live = False
        # A trajectory that nobody claimed before was in no process that is gone.
        self._ground = history.furthest if lease.epoch > 1 else -1
        self._going_live = asyncio.Lock()
        self._blamed: list[tuple[BaseException, str]] = []
        self._visited: set[str] = set()
        self._replayed: set[str] = set()
        self._replays = bool(history.steps)
        self._over = False
        self._cut_short: list[str] = []
        # Written together with the first record of the attempt: one commit less for each.
        self._prelude: tuple[Record, ...] = () if continues else (self._started(context.worker),)

    def _started(self, worker: str) -> AttemptStarted:
        return AttemptStarted(len(self.history.attempts) + 1, worker, self.clock.now())

    async def append(
        self, *records: Record, status: Status | None = None, settled: bool | None = None
    ) -> None:
        """Durable first, visible after (I1)."""
        self._check_open()
        await self._write(records, status=status, settled=settled)

    def _check_open(self) -> None:
        if self._over:
            raise RunStopped("the attempt is over; a task that it left behind does nothing more")

    async def conclude(
        self, *records: Record, status: Status | None = None, settled: bool | None = None
    ) -> None:
        """The attempt's last append: a task that the rollout left behind adds nothing to it."""
        self._over = True
        await self._write((*self.afterwards, *records), status=status, settled=settled)
        self.concluded.set()

    async def begin(self) -> None:
        """Makes the attempt durable before anything is done in it: whoever holds it can then be
        told, by its number, from those that held the ones before."""
        if self._prelude:
            return await self.append()
        before = self.history.attempts
        return await self.append(self._started(before[-1].worker if before else ""))

    def go_on(self) -> None:
        """No new attempt: whoever made the last one is alive, and still at it."""
        self._prelude = ()

    async def _write(
        self, records: tuple[Record, ...], *, status: Status | None, settled: bool | None
    ) -> None:
        prelude, self._prelude = self._prelude, ()
        if prelude:
            records = (*prelude, *records)
            status = Status.RUNNING if status is None else status
        elif not records:
            return
        try:
            await self.context.journal.append(self.lease, records, status=status, settled=settled)
        except asyncio.CancelledError:
            self.unsure = True
            self.unseen += [one.path for one in records if isinstance(one, Generated)]
            raise
        except JournalError as error:
            self.failed(error)
            raise
        except Exception:
            self._prelude = prelude  # The records cannot be encoded: nothing was written.
            raise
        for record in records:
            self.history.take(record)
            self.context.on_record(record)

    async def match(
        self,
        path: str,
        kind: type[Recorded],
        fingerprint: bytes,
        words: Callable[[Step], str],
    ) -> Recorded | None:
        """What is recorded at `path`, if it is this step; None when the step has to run."""
        if self._replays:
            # A live step waits, so that tasks made before it begin, and take their places, before
            # what follows it. So does a replayed one; and all do, to keep the order of places.
            await asyncio.sleep(0)
        self._check_open()
        if self.broken is not None:
            raise self.broken
        self.step = path
        if "." in path:
            self._has_below.update(ancestors(path))
        self._visited.add(path)
        recorded = self.history.steps.get(path)
        if recorded is None:
            self.check_running()
            await self.go_live()
            return None
        if isinstance(recorded, kind) and recorded.fingerprint == fingerprint:
            self._replayed.add(path)
            return recorded
        self.check_running()
        # Two large prompts may have to be told apart.
        size = LARGE if isinstance(recorded, Generated) else 0
        await self._diverge(path, await off_loop(partial(words, recorded), size=size))
        await self.go_live()
        return None

    def is_recorded(self, path: str) -> bool:
        return path in self.history.steps

    def visit(self, path: str) -> None:
        """The step at `path` is part of this attempt: its end does not make it history."""
        self._visited.add(path)

    def check_usable(self) -> None:
        """Raises what keeps this attempt from doing anything new."""
        self._check_open()
        if self.broken is not None:
            raise self.broken
        self.check_running()

    async def go_live(self) -> None:
        """Before the first step that is not replayed: the worlds of the replayed ones come back."""
        if self._is_live or is_inside(self):
            return  # What runs inside a step is live, or is on its way back.
        async with self._going_live:
            if not self._is_live:
                for episode in self.episodes:
                    await episode.revive()
                self._is_live = True

    @property
    def is_on_old_ground(self) -> bool:
        """Whether an earlier process had come as far as this."""
        return len(self.history.steps) <= self._ground

    async def keep_worlds(self) -> None:
        """Between turns: what environments are now becomes durable, where they can be restored."""
        if is_inside(self):
            return  # It may be the environment's own code, in the middle of an action.
        for episode in self.episodes:
            await episode.keep()

    async def close_episodes(self) -> None:
        """The attempt is over, however it ended: nothing of it stays open."""
        if not self.episodes:
            return
        closing = asyncio.ensure_future(self._close_episodes())
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            # Each has its deadline: what was begun is let finish.
            await asyncio.wait({closing})
            raise

    async def _close_episodes(self) -> None:
        for episode in reversed(self.episodes):
            await episode.close()

    async def rewind(self, paths: Sequence[str], reason: str, words: str) -> BaseException:
        """Makes the steps at `paths`, and what follows them in their scopes, history. The error
        to raise: the rollout has to begin again."""
        now = self.clock.now()
        first, *rest = paths
        follows = f"follows from step {first}"
        await self.append(
            Forked(first, reason, words, now),
            *(Forked(path, follows, "", now) for path in rest),
        )
        return self.failed(Rewound(f"{reason}: {words}" if words else reason))

    def cut_short(self, scope: str) -> None:
        """Branches under `scope` were cancelled: how far they came on replay is a matter of
        timing, so what is recorded of them stands."""
        self._cut_short.append(scope)

    async def cut_unvisited(self) -> None:
        """A rollout that ends before its recorded steps do has diverged from them, too."""
        for path in [path for path in self.history.steps if path not in self._visited]:
            if path in self.history.steps and not self._stands(path):
                await self._diverge(path, "recorded, but the rollout ends without it")

    def _stands(self, path: str) -> bool:
        """Whether it lies in a branch that was cancelled, or below a step that was replayed: the
        code that took it did not run."""
        if path.startswith(tuple(self._cut_short)):
            return True
        around = (step for step in ancestors(path) if step in self._replayed)
        return any(not isinstance(self.history.steps.get(step), Generated) for step in around)

    def runs(self, path: str) -> None:
        """The code of the step at `path` runs, for the first time or again."""
        self._replayed.discard(path)

    async def cut_below(self, path: str) -> None:
        """The code of the step at `path` has run: what is recorded below it, and was not done now,
        belongs to another step that was in its place."""
        for one in self.steps_below(path):
            if one not in self._visited and one in self.history.steps and not self._stands(one):
                await self._diverge(one, f"recorded, but step {path} ends without it")

    def sampled_below(self, path: str) -> list[Generated]:
        """What the policy said inside the step at `path`."""
        found = (self.history.steps[one] for one in self.steps_below(path))
        said = [step for step in found if isinstance(step, Generated)]
        return [step for step in said if step.trainable or not step.ids]

    def steps_below(self, path: str) -> list[str]:
        if path not in self._has_below:
            return []
        return [one for one in self.history.steps if one.startswith(f"{path}.")]

    @cached_property
    def _has_below(self) -> set[str]:
        """Places below which there are steps; most trajectories have none."""
        return {one for path in self.history.steps if "." in path for one in ancestors(path)}

    def open_scope(self, path: str, what: str) -> None:
        """There is no step at `path`, but others below it: one that is recorded there, and all that
        followed it, are history. That is durable before anything below is."""
        recorded = self.history.steps.get(path)
        if recorded is not None:
            self.check_usable()
            fork = self._fork(path, f"recorded {divergence.name_of(recorded)}, now {what}")
            self._prelude = (*self._prelude, fork)

    async def _diverge(self, path: str, words: str) -> None:
        await self.append(self._fork(path, words))

    def _fork(self, path: str, words: str) -> Forked:
        if self.context.on_divergence is OnDivergence.FAIL:
            raise self.failed(
                Diverged(f"at step {path} the rollout no longer does what is recorded: {words}")
            )
        # Cut before waiting: a sibling step that starts meanwhile must not replay what is cut.
        self.history.cut(path)
        return Forked(path, "diverged on replay", words, self.clock.now())

    async def restart_if_interrupted(self) -> None:
        """A call under the `restart` contract that never ended takes its world with it."""
        for path, step in self.history.steps.items():
            if (
                isinstance(step, ToolIntent)
                and step.contract is Contract.RESTART
                and path not in self.history.results
            ):
                reason = f"tool {step.name!r} was interrupted and its contract is to start anew"
                await self.append(Forked("0", reason, "", self.clock.now()))
                return

    @property
    def is_stopping(self) -> bool:
        """Whether the run is asked to stop: nothing new is begun."""
        return self.context.is_stopping()

    def check_running(self) -> None:
        if self.context.is_stopping():
            stopped = RunStopped("the run is stopping; this trajectory goes on when it is resumed")
            raise self.failed(stopped)

    def failed(self, error: BaseException, path: str | None = None) -> BaseException:
        """Remembers an error that no `except` in a rollout may turn into an outcome."""
        if self.broken is None:
            self.broken = error
        if path is not None:
            self.blame(error, path)
        return error

    def blame(self, error: BaseException, path: str) -> None:
        """Remembers at which step an error was raised, where branches run side by side."""
        self._blamed.append((error, path))

    def step_of(self, error: BaseException) -> str:
        """The step that `error` came from: the blamed one, else the last that was begun."""
        return next((path for one, path in self._blamed if one is error), self.step)

    @property
    def has_prelude(self) -> bool:
        """Whether the attempt has recorded nothing yet."""
        return any(isinstance(one, AttemptStarted) for one in self._prelude)

    def seed_at(self, path: str, *, always: bool = False) -> int | None:
        """`always`: also in a run that has no seed."""
        key, life = self.lease.key, self.history.life
        run_seed = self.context.spec.seed
        seed = 0 if always and run_seed is None else run_seed
        return seed_for(seed, task=key.task, sample=key.sample, life=life, path=path)

    @property
    def name(self) -> str:
        return str(self.lease.key)


def is_accident(error: BaseException) -> bool:
    """Whether a step's error is something that the policy did not do."""
    return not (isinstance(error, HoldfastError) and error.cause is Cause.POLICY)
