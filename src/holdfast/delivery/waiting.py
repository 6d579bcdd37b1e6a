"""Tells a consumer, while there is nothing to deliver, who has to do what, and why.

If nobody works on the run, a consumer would wait for ever. A warning then names the command that
continues the run, and is repeated at long intervals. A limit ends the wait.
"""

import logging
import shlex

from holdfast.clock import Clock, SystemClock
from holdfast.engine.export.export import history_of
from holdfast.engine.report import many
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import Consumer
from holdfast.records.errors import DeliveryTimeout
from holdfast.records.group import Dismissal
from holdfast.records.run import Run
from holdfast.records.samples.summary import last_failure
from holdfast.records.trajectory import Status

ASK_SECONDS = 5.0
"""The longest time, in seconds, for which one request waits for groups."""
LOOK_SECONDS = 60.0
"""Seconds between two checks of who works on the run."""
REPEAT_SECONDS = 600.0
"""Seconds between two log lines which say that nobody works on the run."""
_log = logging.getLogger("holdfast.delivery")


class GroupWait:
    """One wait for groups, of at most `limit` seconds. None means no limit."""

    def __init__(
        self,
        journal: Journal,
        run: Run,
        *,
        address: str | None,
        limit: float | None,
        clock: Clock | None = None,
    ):
        """`address` is the journal's address without secrets, or None if it is unknown."""
        self._journal = journal
        self._run = run
        self._address = address
        self._limit = limit
        self._clock = clock or SystemClock()
        self._began = self._next_look = self._clock.elapsed()

    @property
    def ask_seconds(self) -> float:
        """The seconds for which the next request to the journal may wait."""
        if self._limit is None:
            return ASK_SECONDS
        return max(0.0, min(ASK_SECONDS, self._began + self._limit - self._clock.elapsed()))

    async def go_on(self) -> None:
        """Checks a wait after a request that found too few groups. Raises `DeliveryTimeout` if the
        limit is reached. Logs a warning if nobody works on the run."""
        now = self._clock.elapsed()
        if self._limit is not None and now >= self._began + self._limit:
            raise DeliveryTimeout(
                f"no batch within wait={self._limit:g} seconds: {await self._describe()}"
            )
        if now < self._next_look:
            return
        if await self._journal.live_workers(self._run):
            self._next_look = now + LOOK_SECONDS
        else:
            self._next_look = now + REPEAT_SECONDS
            _log.warning("waiting for groups: %s", await self._describe())

    async def _describe(self) -> str:
        progress = await self._journal.progress(self._run)
        far = f"{progress.settled} of {many(progress.planned, 'trajectory')} settled"
        if not progress.sealed:
            far += ", and it is open for more tasks"
        workers = await self._journal.live_workers(self._run)
        who = f"{', '.join(workers)} works on it" if workers else f"nobody works on it; {self._how}"
        return f"run {self._run.spec.name!r}: {far}; {who}"

    @property
    def _how(self) -> str:
        """Describes how to continue the run, with its command if the command is recorded."""
        if self._run.spec.command is None:
            return "start the program again that rolls it out"
        arguments = ["holdfast", "resume", self._run.spec.name]
        arguments += [] if self._address is None else ["--journal", self._address]
        return f"to go on: {shlex.join(arguments)}"


async def log_undelivered(journal: Journal, consumer: Consumer) -> None:
    """Logs, at the end of a run, the groups that were not delivered because they have too few valid
    members."""
    run = consumer.run
    ledger = await journal.ledger(run, consumer.name)
    short = [entry for entry in ledger if entry.reason == Dismissal.TOO_FEW_VALID]
    if not short:
        return
    progress = await journal.progress(run)
    _log.warning(
        "run %r is over, and %s of %s %s not delivered (%s): %s of %s failed for good%s; "
        "`holdfast show %s` lists them",
        run.spec.name,
        len(short),
        many(len(ledger), "group"),
        "was" if len(short) == 1 else "were",
        Dismissal.TOO_FEW_VALID,
        progress.failed,
        many(progress.planned, "trajectory"),
        await _for_instance(journal, run),
        shlex.quote(run.spec.name),
    )


async def _for_instance(journal: Journal, run: Run) -> str:
    for row in await journal.trajectories(run):
        if row.settled and row.status is Status.FAILED and not row.resting:
            failure = last_failure(await history_of(journal, row))
            return "" if failure is None else f", for instance {row.key} ({failure.line})"
    return ""
