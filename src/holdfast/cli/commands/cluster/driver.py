"""`holdfast run --cluster`: opens the run, keeps its workers going, and reports.

This process samples nothing. It opens the run once, holds it, and lets Ray start workers. The
workers lease their work from the journal. When Ray or a node reports that a worker is gone, the
worker's leases are released at once. A worker that is only silent keeps its leases until they
expire.
"""

import argparse
import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from holdfast import log_files
from holdfast.cli.commands import run as running
from holdfast.cli.commands.cluster import checks
from holdfast.cli.commands.cluster.worker import WorkerJob
from holdfast.cli.commands.supervision import LAST_SECONDS, Supervision, worker_options
from holdfast.cli.setup.command_run import open_command_run
from holdfast.cli.setup.connect import api_key, connect_command
from holdfast.cli.setup.user_code import scorer_place, scorer_reference, split
from holdfast.cli.terminal.progress import displayed
from holdfast.cli.terminal.text import notify
from holdfast.cluster import variables
from holdfast.cluster.connection import connected
from holdfast.cluster.fleet import FleetSize
from holdfast.cluster.member import FleetMember, Resources
from holdfast.cluster.messages import Place, ProcessJob, ScorerAddress, WorkerReport
from holdfast.cluster.nodes import check_gpus, check_resources, live_nodes, probe_nodes
from holdfast.cluster.run_workers import ClusterSettings, RunWorkers
from holdfast.cluster.scorer_process import ScorerJob
from holdfast.engine.progress.counters import WatchedProgress
from holdfast.engine.running.run_plan import RunPlan
from holdfast.engine.scoring.retry import open_for_retry
from holdfast.journal import opened_journal
from holdfast.journal.process import this_process
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import RunProgress, Worker
from holdfast.records.errors import HoldfastError, JournalError, RunHeld
from holdfast.records.run import Run
from holdfast.rollout.threads.contain import in_background

OVER = "the run is over"
IDLE_SECONDS = 20.0
"""Seconds without work after which a worker ends. A new one is started for new work."""


def run(args: argparse.Namespace) -> int:
    wants = checks.check(args, split(args.rollout)[0])
    return asyncio.run(Driver(args, running.read(args), wants).run())


class Driver(Supervision):
    """Runs one command on the cluster."""

    is_training = False
    """Whether a trainer changes the weights of the engines that the workers sample from."""

    def __init__(self, args: argparse.Namespace, work: running.Work, wants: checks.ClusterPlan):
        super().__init__(args, work)
        self.wants = wants
        self._progress = WatchedProgress()
        self._failed_before = 0
        self._model: str | None = None
        self._stopping = asyncio.Event()
        self.log = log_files.new_log(log_files.logs_of(args.run, args.journal), "driver")

    async def run(self) -> int:
        self.watch_signals()
        async with connect_command(self._args) as connection:
            plan = await self.bind_plan(connection)
            self._model = connection.policy.model
            async with connected(
                self._args.cluster,
                self.wants.folder,
                requirements=self.wants.requirements,
                log=self.log,
            ) as ray:
                self.watch_signals()  # Again, because Ray has installed its own handlers.
                await self.check_nodes(ray)
                async with opened_journal(self._args.journal) as journal:
                    return await self._in_journal(ray, plan, journal)

    async def check_nodes(self, ray: Any) -> None:
        args, nodes = self._args, live_nodes(ray)
        workers = self._size.most or 1
        check_gpus(nodes, option="--worker-gpus", wanted=args.worker_gpus * workers)
        check_gpus(nodes, option="--score-gpus", wanted=args.score_gpus * args.score_workers)
        check_resources(
            [node for node in nodes if not (args.off_gpu_nodes and node.gpus)],
            what="a worker", cpus=args.worker_cpus, gpus=args.worker_gpus,
        )  # fmt: skip
        if args.score_workers:
            check_resources(nodes, what="a scorer", cpus=0, gpus=args.score_gpus)
        checks.check_policy(args, await self._probe(ray))
        notify(f"cluster {args.cluster}: {len(nodes)} nodes; workers get {self._described()}")

    async def _probe(self, ray: Any) -> list[Place]:
        return await probe_nodes(ray, live_nodes(ray), modules=checks.imported_modules())

    def _described(self) -> str:
        traveling = self._variables()
        variables.hide_secrets(traveling, named=self._named)
        return variables.describe(traveling, named=self._named)

    def _variables(self) -> dict[str, str]:
        return variables.traveling(self._named)

    @property
    def _named(self) -> tuple[str, ...]:
        """Returns the environment variables that the user's options name."""
        return (self._args.api_key_env, *(self._args.cluster_env or ()))

    @property
    def _size(self) -> FleetSize:
        workers = self._args.workers
        return FleetSize(None if workers == "auto" else workers, each=self._args.concurrency)

    # --- the run

    async def _in_journal(self, ray: Any, plan: RunPlan, journal: Journal) -> int:
        args = self._args
        run = await open_command_run(args, journal, plan)
        self.keep_command(run)
        async with self._held(journal, run):
            if args.retry_failed:
                await open_for_retry(journal, run)
            fatal: HoldfastError | None = None
            async with displayed(self._progress, quiet=args.quiet or args.json):
                try:
                    await self._supervise(ray, run, journal)
                except HoldfastError as error:
                    fatal, self._stopped = error, self._stopped or str(error)
        return await self.report(journal, run, fatal)

    @contextlib.asynccontextmanager
    async def _held(self, journal: Journal, run: Run) -> AsyncIterator[None]:
        """Holds the run for this process until the end of the block. Meanwhile, another command can
        work on the run only if both commands share the run (`--join`)."""
        worker = await self._join(journal, run)
        try:
            async with in_background(self._beat(journal, run, worker), name="heartbeat"):
                yield
        finally:
            with contextlib.suppress(JournalError):
                await journal.leave(worker)

    async def _join(self, journal: Journal, run: Run) -> Worker:
        """Joins the run. If another command holds the run, waits until the leases of that command
        would expire, because it may have been killed. Raises `RunHeld` if the run is still held
        then."""
        args, loop = self._args, asyncio.get_running_loop()
        deadline, is_known = loop.time() + args.lease + LAST_SECONDS, False
        while True:
            try:
                return await journal.join(
                    run, this_process(), lease_seconds=args.lease, share=args.join
                )
            except RunHeld as held:
                if loop.time() > deadline or self._stopping.is_set():
                    raise
                if not is_known:
                    notify(f"waiting, in case it was killed: {held}")
                is_known = True
                await asyncio.sleep(1.0)

    async def _beat(self, journal: Journal, run: Run, worker: Worker) -> None:
        while True:
            await asyncio.sleep(worker.lease_seconds / 3)
            try:
                await journal.heartbeat(worker)
            except JournalError:
                # The command holds no trajectory. It only lost its place in the run, and joins
                # again.
                with contextlib.suppress(JournalError):
                    worker = await journal.join(
                        run, this_process(), lease_seconds=self._args.lease, share=True
                    )

    async def _supervise(self, ray: Any, run: Run, journal: Journal) -> None:
        workers = RunWorkers(
            ray,
            journal,
            run,
            settings=self._settings,
            worker_job=lambda scorers: self._worker_job(run, scorers),
            scorer_job=None if self._work.plan.scorer is None else lambda: self._scorer_job(run),
            notify=notify,
            on_log=lambda member, role: self._note_log(run, member, role),
            on_report=lambda report, member: self._reported(run, report, member),
        )
        try:
            with self.in_time():
                await workers.until_over(self._stopping, on_look=self._look)
        finally:
            await workers.end(self._stopped or OVER)

    async def _reported(self, run: Run, report: WorkerReport, member: FleetMember) -> None:
        """Handles the report of a worker."""

    @property
    def _settings(self) -> ClusterSettings:
        args = self._args
        return ClusterSettings(
            size=self._size,
            worker=Resources(args.worker_cpus, args.worker_gpus),
            scorers=args.score_workers,
            scorer=Resources(0.0, args.score_gpus),
            off_gpu_nodes=args.off_gpu_nodes,
            grace=args.grace + LAST_SECONDS,
            patience=args.patience,
        )

    def _look(self, now: RunProgress) -> None:
        if not self._progress.total:
            self._failed_before = now.failed
        self._progress.look(now)
        most, failed = self._args.max_failures, now.failed - self._failed_before
        if most is not None and failed >= most and not now.is_over:
            self.stop(f"{failed} failed for good: max_failures ({most}) is reached")

    def _worker_job(self, run: Run, scorers: list[ScorerAddress]) -> ProcessJob:
        args = self._args
        path, name = split(args.rollout)
        place = self._place(path)
        changed = {
            **self._changed(run),
            "rollout": f"{place}:{name}" if name else place,
            "scorer": self._scorer_reference(path),
        }
        job = WorkerJob(
            options=worker_options(args, changed),
            rollout=run.spec.rollout,
            scorer=run.spec.scorer,
            idle=IDLE_SECONDS,
            is_training=self.is_training,
            scorers=scorers,
            secrets=[key] if (key := api_key(args)) else [],
        )
        arguments = ["-m", "holdfast", "run", place, "--tasks", "-", "--run", run.spec.name]
        return self._job([*arguments, "--as-worker"], "worker", run, job)

    def _job(self, arguments: list[str], role: str, run: Run, job: object) -> ProcessJob:
        return ProcessJob(
            arguments=arguments,
            role=role,
            run=run.spec.name,
            journal=log_files.journal_name(self._args.journal),
            variables=self._variables(),
            message=msgspec.json.encode(job).decode(),
        )

    def _changed(self, run: Run) -> dict[str, object]:
        return {"run": run.spec.name, "model": self._model, "max_failures": None}

    def _scorer_reference(self, path: Path) -> str | None:
        if self._args.scorer is None:
            return None
        file, name = scorer_place(path, self._args.scorer)
        return scorer_reference(self._place(file), name)

    def _place(self, file: Path) -> str:
        assert self.wants.folder is not None, "there is code of the user's"
        return self.wants.folder.place(file)

    def _scorer_job(self, run: Run) -> ProcessJob:
        job = ScorerJob(secrets.token_urlsafe(32))
        return self._job(["-m", "holdfast.cluster.scorer_process"], "scorer", run, job)

    # --- the end

    def _note_log(self, run: Run, member: FleetMember, role: str) -> None:
        """Records where a log lies on another machine, so that `holdfast logs` finds it. If the
        record cannot be written, for example on a full disk, prints a message and does not raise an
        error."""
        if member.place is None or not member.log:
            return
        place, path = member.place.host, member.log
        folder = log_files.logs_of(run.spec.name, self._args.journal)
        try:
            with self.log.open("a") as file:
                file.write(f"a {role} on {place} took {member.cpu:.2f} s of CPU: {path}\n")
            if not Path(path).exists():
                log_files.note_elsewhere(folder, host=place, path=path, role=role)
        except OSError as error:
            notify(f"the log of a {role} on {place} is {path}, which cannot be noted: {error}")

    def stop(self, reason: str) -> None:
        super().stop(reason)
        self._stopping.set()
