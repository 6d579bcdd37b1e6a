"""Session: one attempt at one trajectory, as the durable context sees it.

Matches each step that the rollout asks for with what is recorded (I9), appends what is new, and
remembers the first error that was not the policy's doing, so that a rollout which swallows it
cannot turn an accident into an outcome (I5).
"""

from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

from holdfast.clock import Clock
from holdfast.journal.journal import Journal, Lease
from holdfast.policy.policy import Policy
from holdfast.policy.renderer import Renderer
from holdfast.records.errors import Cause, Diverged, HoldfastError, RunStopped
from holdfast.records.history import History
from holdfast.records.run import seed_for
from holdfast.records.sampling import Sampling
from holdfast.records.step import Contract, Forked, Record, Step, ToolIntent
from holdfast.records.task import Task
from holdfast.records.trajectory import Status

Recorded = TypeVar("Recorded", bound=Step)


class OnDivergence(StrEnum):
    FORK = "fork"
    """Keep the old steps as history and go live from the first that differs."""
    FAIL = "fail"
    """Fail the trajectory."""


class Session:
    """What an attempt needs to know. Owned by one attempt, dropped with it."""

    def __init__(
        self,
        *,
        task: Task,
        lease: Lease,
        history: History,
        journal: Journal,
        policy: Policy,
        renderer: Renderer,
        sampling: Sampling,
        seed: int | None,
        clock: Clock,
        on_divergence: OnDivergence = OnDivergence.FORK,
        stopping: Callable[[], bool] = lambda: False,
        on_live: Callable[[Record], None] = lambda record: None,
        prelude: tuple[Record, ...] = (),
    ):
        self.task = task
        self.lease = lease
        self.history = history
        self.policy = policy
        self.renderer = renderer
        self.sampling = sampling
        self.clock = clock
        self.broken: BaseException | None = None
        self.step = ""
        self._journal = journal
        self._seed = seed
        self._on_divergence = on_divergence
        self._stopping = stopping
        self._on_live = on_live
        # Written together with the first record of the attempt: one commit less for each.
        self._prelude = prelude

    async def append(
        self, *records: Record, status: Status | None = None, settled: bool | None = None
    ) -> None:
        """Durable first, visible after (I1)."""
        if self._prelude:
            records, self._prelude = (*self._prelude, *records), ()
            status = Status.RUNNING if status is None else status
        await self._journal.append(self.lease, records, status=status, settled=settled)
        for record in records:
            self.history.take(record)
            self._on_live(record)

    async def match(
        self,
        path: str,
        kind: type[Recorded],
        fingerprint: bytes,
        difference: Callable[[Step], str],
    ) -> Recorded | None:
        """What is recorded at `path`, if it is this step; None when the step has to run."""
        self.step = path
        if self.broken is not None:
            raise self.broken
        recorded = self.history.steps.get(path)
        if recorded is None:
            self.check_running()
            return None
        if isinstance(recorded, kind) and recorded.fingerprint == fingerprint:
            return recorded
        await self._diverge(path, difference(recorded))
        return None

    async def _diverge(self, path: str, difference: str) -> None:
        if self._on_divergence is OnDivergence.FAIL:
            raise self.failed(
                Diverged(
                    f"at step {path} the rollout no longer does what is recorded: {difference}"
                )
            )
        fork = Forked(path, "diverged on replay", difference, self.clock.now())
        # Cut before waiting: a sibling step that starts meanwhile must not replay what is cut.
        self.history.cut(path)
        await self.append(fork)

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

    def check_running(self) -> None:
        if self._stopping():
            raise RunStopped("the run is stopping; this trajectory goes on when it is resumed")

    def failed(self, error: BaseException) -> BaseException:
        """Remembers an error that no `except` in a rollout may turn into an outcome."""
        if self.broken is None:
            self.broken = error
        return error

    @property
    def has_prelude(self) -> bool:
        """Whether the attempt has recorded nothing yet."""
        return bool(self._prelude)

    def seed_at(self, path: str) -> int | None:
        key = self.lease.key
        return seed_for(
            self._seed, task=key.task, sample=key.sample, life=self.history.life, path=path
        )

    @property
    def name(self) -> str:
        return str(self.lease.key)


def is_accident(error: BaseException) -> bool:
    """Whether a step's error is something that the policy did not do."""
    return not (isinstance(error, HoldfastError) and error.cause is Cause.POLICY)
