"""Keeps the workers of one run on a cluster, and their scorers, running until the run is over.

This module neither samples nor schedules. It looks how many trajectories of the run are open,
starts missing processes, and at once gives back the work of a process that is known to be gone.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.cluster.fleet import Fleet, FleetSize
from holdfast.cluster.member import FleetMember, HowEnded, MemberEnd, Resources
from holdfast.cluster.messages import Order, ProcessJob, ScorerAddress, WorkerReport
from holdfast.cluster.scorer_process import ScorerJob
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import RunProgress
from holdfast.records.errors import JournalError
from holdfast.records.run import Run


class ClusterSettings(Struct, frozen=True, kw_only=True):
    """The number of processes of each kind, and the resources of each."""

    size: FleetSize
    worker: Resources = Resources()
    scorers: int = 0
    scorer: Resources = Resources(cpus=0.0)
    off_gpu_nodes: bool = False
    one_per_node: bool = False
    """If True, exactly one process runs on each node, and `size` is ignored. Used for gateways."""
    grace: float = 20.0
    """Seconds for which stopped workers may finish their work in flight."""
    patience: float = 900.0
    """Seconds for which an unreachable journal is asked again."""


WorkerJobOf = Callable[[list[ScorerAddress]], ProcessJob]


class RunWorkers:
    """Runs the workers and scorers. Call `until_over`, and then always `end`. It is used once."""

    def __init__(
        self,
        ray: Any,
        journal: Journal,
        run: Run,
        *,
        settings: ClusterSettings,
        worker_job: WorkerJobOf,
        scorer_job: Callable[[], ProcessJob] | None = None,
        notify: Callable[[str], None],
        on_log: Callable[[FleetMember, str], None] = lambda member, role: None,
        on_report: Callable[[WorkerReport, FleetMember], Awaitable[None]] | None = None,
    ):
        """`worker_job` makes the job of a worker, and gets the addresses of the scorers that
        listen."""
        self._journal = journal
        self._run = run
        self._settings = settings
        self._notify = notify
        self._on_log = on_log
        self._more_reports = on_report
        self._idle_at: tuple[int, int] | None = None
        self._lost = 0
        self._settled = -1
        self.workers = Fleet(
            ray,
            lambda: worker_job(self.addresses()),
            what="worker",
            resources=settings.worker,
            notify=notify,
            on_gone=self._worker_gone,
            on_report=self._reported,
            off_gpu_nodes=settings.off_gpu_nodes,
            one_per_node=settings.one_per_node,
        )
        self.scorers: Fleet | None = None
        if scorer_job is not None and settings.scorers:
            self.scorers = Fleet(
                ray,
                scorer_job,
                what="scorer",
                resources=settings.scorer,
                notify=notify,
                on_gone=self._scorer_gone,
                on_report=self._scorer_reported,
            )

    async def until_over(
        self, stopping: asyncio.Event, *, on_look: Callable[[RunProgress], None]
    ) -> None:
        """Keeps the workers and scorers running. Returns when no trajectory of the run is open, or
        when `stopping` is set. Raises an error that ends all workers."""
        while not stopping.is_set():
            now = await self._progress()
            on_look(now)
            if now.is_over:
                return
            self._check()
            await self._keep_scorers()
            await self._grow(now)
            await self._until_change(stopping)

    async def end(self, reason: str) -> None:
        """Ends all processes."""
        for fleet in self._fleets:
            await fleet.stop(reason, grace=self._settings.grace)

    def addresses(self, but: FleetMember | None = None) -> list[ScorerAddress]:
        """Returns the addresses of the scorers that listen, except the scorer of the member
        `but`."""
        members = [] if self.scorers is None else self.scorers.members
        return [
            ScorerAddress(member.place.address, member.listens.port, _token_of(member))
            for member in members
            if member is not but and member.place is not None and member.listens is not None
        ]

    @property
    def _fleets(self) -> list[Fleet]:
        return [self.workers, *([self.scorers] if self.scorers is not None else [])]

    async def _progress(self) -> RunProgress:
        """Returns the run's progress. If the journal is out of reach, asks it again each second for
        as long as the setting `patience` allows."""
        loop = asyncio.get_running_loop()
        deadline, is_known = loop.time() + self._settings.patience, False
        while True:
            try:
                return await self._journal.progress(self._run)
            except JournalError as error:
                if loop.time() > deadline:
                    raise
                if not is_known:
                    self._notify(f"the journal cannot be reached, and is tried again: {error}")
                is_known = True
                await asyncio.sleep(1.0)

    def _check(self) -> None:
        for fleet in self._fleets:
            if fleet.error is not None:
                raise fleet.error

    async def _keep_scorers(self) -> None:
        if self.scorers is not None:
            await self.scorers.grow(self._settings.scorers)

    async def _grow(self, now: RunProgress) -> None:
        if now.settled != self._settled:
            self._settled = now.settled
            for fleet in self._fleets:
                fleet.progressed()
        # A worker found nothing to do and ended. Another worker would find nothing either, until
        # tasks are admitted or a worker dies.
        if self._idle_at == (now.planned, self._lost) and self.workers.members:
            return
        self._idle_at = None
        wanted = self._settings.size.wanted(
            now.planned - now.settled, room=await self.workers.room()
        )
        await self.workers.grow(wanted)

    async def _until_change(self, stopping: asyncio.Event) -> None:
        looking = asyncio.create_task(self.workers.until_change())
        stopped = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait({looking, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (looking, stopped):
                task.cancel()
            await asyncio.gather(looking, stopped, return_exceptions=True)

    async def _worker_gone(self, member: FleetMember, end: MemberEnd) -> None:
        await self._give_back(member, end)
        self._on_log(member, "worker")

    async def _give_back(self, member: FleetMember, end: MemberEnd) -> None:
        if end.how is HowEnded.DONE:
            with contextlib.suppress(JournalError):
                self._idle_at = ((await self._journal.progress(self._run)).planned, self._lost)
            return
        self._lost += 1
        if member.worker is not None:
            # The machine or Ray reports the worker dead, so its lease is ended now. If the journal
            # cannot be reached, the lease ends by itself.
            with contextlib.suppress(JournalError):
                await self._journal.leave(member.worker)

    async def _reported(self, report: WorkerReport, member: FleetMember) -> None:
        if report.worker is not None and self.scorers is not None:
            await member.send(Order(scorers=self.addresses()))
        if self._more_reports is not None:
            await self._more_reports(report, member)

    async def _scorer_gone(self, member: FleetMember, end: MemberEnd) -> None:
        await self.workers.order(Order(scorers=self.addresses(but=member)))
        self._on_log(member, "scorer")

    async def _scorer_reported(self, report: WorkerReport, member: FleetMember) -> None:
        await self.workers.order(Order(scorers=self.addresses()))


def _token_of(member: FleetMember) -> str:
    return msgspec.json.decode(member.job.message, type=ScorerJob).token
