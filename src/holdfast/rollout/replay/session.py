"""Session: one attempt at one trajectory, as the durable context sees it.

Composed of three parts: the `log` of steps, the `state` of the attempt and the set of its
`episodes`. It matches each step that the rollout asks for with what is recorded (I9).
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from holdfast.journal.journal import Lease
from holdfast.policy.off_loop import MIN_THREAD_SIZE, off_loop
from holdfast.records.history import History
from holdfast.records.message import Message
from holdfast.records.run import seed_for
from holdfast.records.step import Generated, Record, Step
from holdfast.records.task import Task
from holdfast.records.trajectory import Status
from holdfast.rollout.replay.attempt_state import AttemptState
from holdfast.rollout.replay.episode_set import EpisodeSet
from holdfast.rollout.replay.nested_steps import is_in_step
from holdfast.rollout.replay.run_context import RunContext
from holdfast.rollout.replay.step_log import StepLog

Recorded = TypeVar("Recorded", bound=Step)


class Session:
    """Owned by one attempt, dropped with it."""

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
        """The messages after the last reply of the main conversation, as they are recorded: whoever
        leads that says it."""

    async def match(
        self,
        path: str,
        kind: type[Recorded],
        fingerprint: bytes,
        describe: Callable[[Step], str],
    ) -> Recorded | None:
        """What is recorded at `path`, if it is this step; None when the step has to run.
        `describe`: how this step differs from the recorded one."""
        state, log = self.state, self.log
        if log.is_replaying:
            # A live step waits, so that tasks made before it begin, and take their places, before
            # what follows it. So does a replayed one; and all do, to keep the order of places.
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
        """Before the first step that is not replayed: the replayed environments come back."""
        if not is_in_step(self):  # What runs inside a step is live, or is on its way back.
            await self.episodes.go_live()

    async def keep_episodes(self) -> None:
        """Between turns: the present states of environments become durable."""
        if not is_in_step(
            self
        ):  # It may be the environment's own code, in the middle of an action.
            await self.episodes.keep()

    async def conclude(
        self, *records: Record, status: Status | None = None, settled: bool | None = None
    ) -> None:
        """The attempt's last append: a task that the rollout left behind adds nothing to it."""
        self.state.end()
        records = (*self.state.closing_records, *records)
        await self.log.write(records, status=status, settled=settled)
        self.state.concluded.set()

    def seed_at(self, path: str, *, always: bool = False) -> int | None:
        """`always`: also in a run that has no seed."""
        key, run_seed = self.lease.key, self.context.spec.seed
        seed = 0 if always and run_seed is None else run_seed
        return seed_for(seed, task=key.task, sample=key.sample, life=self.history.life, path=path)
