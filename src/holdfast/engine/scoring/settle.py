"""Scoring is a separate durable phase, which overlaps with rollouts.

If a scorer raises or hangs, only its own trajectory (or group) fails. The call is retried by the
scorer's own policy, and never causes a new rollout. If the process dies after a trajectory finished
but before it was scored, the continued run scores the trajectory and does not roll it out again.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct, structs

from holdfast.clock import Clock
from holdfast.engine.options import PATIENCE
from holdfast.engine.scoring.scorer import Score, Scorer, ScorerFailed
from holdfast.engine.settings import ScoringPolicy
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import Lease
from holdfast.records.errors import (
    EndpointDown,
    PolicyRefused,
    RecordTooLarge,
    ScorerUnloadable,
    ScoringStopped,
    ThreadsHang,
)
from holdfast.records.failure import as_exception, failure_of
from holdfast.records.history import History
from holdfast.records.samples.summary import summarize
from holdfast.records.step import Finished, Record, Scored, ScoringFailed
from holdfast.records.task import Task, own
from holdfast.records.trajectory import Status, TrajectoryKey
from holdfast.records.usage import judge_usage
from holdfast.records.view import TrajectoryView

STOPS = (ThreadsHang, ScoringStopped, ScorerUnloadable, EndpointDown, PolicyRefused)
"""Errors that end the run and leave the trajectory to be scored later. An unusable engine of a
scorer is not the fault of the scored trajectory."""


class Member(Struct):
    """A finished trajectory that waits for its score."""

    lease: Lease
    task: Task
    history: History
    failures: int = 0
    """How often its scoring has failed since the trajectory finished."""

    @property
    def is_unscored(self) -> bool:
        """Whether the member needs a score: it has an outcome, and was not reused with its
        score.
        """
        return self.history.status.is_outcome and not self.lease.settled

    @property
    def view(self) -> TrajectoryView:
        return TrajectoryView(self.lease.key, own(self.task), self.history, id=self.lease.id)


def tries_spent(records: Iterable[Record]) -> int:
    """Returns how often scoring has failed since the trajectory last finished or was scored.

    Failures before a reopening, or under another scorer, do not count.
    """
    spent = 0
    for record in records:
        if isinstance(record, ScoringFailed):
            spent += 1
        elif isinstance(record, Finished | Scored):
            spent = 0
    return spent


Place = Callable[[TrajectoryKey], tuple[int, ...]]
"""Returns the position of a trajectory among those that are scored together."""


def by_sample(key: TrajectoryKey) -> tuple[int, ...]:
    return (key.sample,)


class Scoring:
    """Scores members one by one or as a group, and settles them."""

    def __init__(
        self,
        scorer: Scorer,
        policy: ScoringPolicy,
        journal: Journal,
        clock: Clock,
        *,
        place: Place = by_sample,
        on_record: Callable[[Record], None] = lambda record: None,
        patience: float = PATIENCE.default,
        is_spent: Callable[[], bool] = lambda: False,
    ):
        """`patience` is how long an engine that the scorer asks may be down.

        `is_spent` says whether a spending limit is reached. Then a scorer that costs tokens begins
        no new call.
        """
        self.scorer = scorer
        self._place = place
        self._on_record = on_record
        self._policy = policy
        self._journal = journal
        self._clock = clock
        self._patience = patience
        self._slots = asyncio.Semaphore(policy.concurrency)
        self._is_spent = is_spent
        self._costs = False
        """Whether a score of this scorer has used tokens so far."""

    async def settle(
        self, members: Sequence[Member], settled: Sequence[TrajectoryView] = ()
    ) -> bool:
        """Scores the members. Returns True when every member is durably scored, or has durably
        failed for good.

        Returns False if the spending limit prevents the scoring. A group scorer also sees
        `settled`: members of the group that already have scores.
        """
        if not members:
            return True
        failures = max(member.failures for member in members)
        while True:
            try:
                async with self._slots:
                    if self._costs and self._is_spent():
                        return False
                    scores = await self._score(members, settled)
            except STOPS:
                raise
            except (Exception, SystemExit, KeyboardInterrupt) as error:
                failed: BaseException | None = error
            else:
                failed = await self._scored(members, scores)
            if failed is None:
                return True
            failures += 1
            final = failures >= self._policy.tries
            await self._failed(members, failed, attempt=failures, final=final)
            if final:
                return True

    async def _score(
        self, members: Sequence[Member], settled: Sequence[TrajectoryView]
    ) -> list[Score]:
        # Each try gets its own views, so that changes by one try do not affect another.
        settled_views = (
            TrajectoryView(view.key, own(view.task), view.history, id=view.id) for view in settled
        )
        views = [*settled_views, *(member.view for member in members)]
        views.sort(key=lambda view: self._place(view.key))
        scores = await self.scorer.score(
            views, seconds=self._policy.timeout, patience=self._patience, read=self._read
        )
        scores_by_key = {view.key: score for view, score in zip(views, scores, strict=True)}
        return [scores_by_key[member.lease.key] for member in members]

    async def _read(self, view: TrajectoryView) -> Sequence[Record]:
        assert view.id is not None, "it is in the journal"
        return await self._journal.history(view.id)

    async def _scored(
        self, members: Sequence[Member], scores: Sequence[Score]
    ) -> RecordTooLarge | None:
        """Records the scores. Returns None when they are durable, or the error if a record is
        too large.
        """
        now = self._clock.now()
        self._costs = self._costs or any(judge_usage(score.details) for score in scores)
        records = [
            Scored(
                self.scorer.name,
                score.reward,
                dict(score.metrics),
                dict(score.reasons),
                now,
                dict(score.details),
            )
            for score in scores
        ]
        try:
            await self._append(members, records, status=None, settled=True)
        except RecordTooLarge as error:
            return error
        return None

    async def _failed(
        self, members: Sequence[Member], error: BaseException, *, attempt: int, final: bool
    ) -> None:
        root = as_exception(error)
        failure = (
            structs.replace(root.failure, attempt=attempt)
            if isinstance(root, ScorerFailed)
            else failure_of(error, attempt=attempt, phase="scoring")
        )
        record = ScoringFailed(failure, self._clock.now(), final)
        status = Status.FAILED if final else None
        await self._append(members, [record] * len(members), status=status, settled=final or None)

    async def _append(
        self,
        members: Sequence[Member],
        records: Sequence[Record],
        *,
        status: Status | None,
        settled: bool | None,
    ) -> None:
        """Appends the records of all members in one transaction, so that either all or none are
        recorded.
        """
        pairs = list(zip(members, records, strict=True))
        for member, record in pairs if settled else ():
            member.lease.summary = summarize(member.history.after([record]))
        await self._journal.append_together(
            [(member.lease, [record], status) for member, record in pairs], settled=settled
        )
        for member, record in pairs:
            member.history.take(record)
            self._on_record(record)
