"""One worker of a cluster: a process that works on a run that another process has opened.

It gets the run's name and the options, and reads the rest from the journal. If its code differs
from the code that the run was opened with, the worker ends with an error before it claims any work.
"""

import argparse
import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

from holdfast import __version__
from holdfast.cli.setup.connect import connect_command
from holdfast.cli.setup.scorers import scorer_home
from holdfast.cli.setup.user_code import load_code
from holdfast.cli.terminal.force_exit import Leaving
from holdfast.cluster.child import Child
from holdfast.cluster.messages import Order, ScorerAddress, WorkerReport
from holdfast.engine.connect import Connection
from holdfast.engine.guards.event_loop import fewer_collections, run_in_own_loop
from holdfast.engine.running.engine import Ending
from holdfast.engine.running.run_plan import RunPlan, check_supported
from holdfast.engine.scoring.scorer import Scorer
from holdfast.engine.settings import settings_of
from holdfast.engine.stop import Stop
from holdfast.journal import opened_journal
from holdfast.journal.sql.find_run import run_named
from holdfast.journal.sql.journal import Journal
from holdfast.records.encoding.redaction import hide, redact
from holdfast.records.errors import HoldfastError, JournalError, PolicyError, UsageError
from holdfast.records.exit_codes import Exit
from holdfast.records.run import Run
from holdfast.rollout.processors.processor import RolloutProcessor, fingerprinted
from holdfast.worlds.contract.spec import parse_spec


class WorkerJob(Struct, frozen=True):
    """The data that a worker's process receives."""

    options: dict[str, object]
    rollout: str
    scorer: str
    """The fingerprints `rollout` and `scorer` are those of the code that the run was opened
    with."""
    idle: float | None
    """Seconds without work after which the worker ends."""
    is_training: bool = False
    """Whether a trainer changes the weights of the engines. The trainer then also chooses the name
    of the model."""
    scorers: list[ScorerAddress] = []
    """The scoring processes. There are none if the worker scores itself."""
    secrets: list[str] = []
    """Values that must never be shown."""


def work(args: argparse.Namespace) -> int:
    child = Child(args.as_worker)
    return Working(args, child, child.job(WorkerJob)).run()


class Working:
    """The process of one worker."""

    def __init__(self, args: argparse.Namespace, child: Child, job: Any):
        self.args = args
        self.child = child
        self.job = job
        self.processor: RolloutProcessor
        self.scorer: Scorer | None = None
        self._ordered = False
        self._replace: Callable[[list[ScorerAddress]], None] | None = None
        self._changes: set[asyncio.Task[None]] = set()

    def run(self) -> int:
        vars(self.args).update(self.job.options)
        for secret in self.job.secrets:
            hide(secret)
        with fewer_collections():
            return run_in_own_loop(self._run())

    async def _run(self) -> int:
        leaving = Leaving()
        try:
            code = await self._work()
        except (UsageError, PolicyError) as error:
            self.child.report(WorkerReport(refused=redact(str(error))))
            code = error.exit_code
        except HoldfastError as error:
            self.child.report(_report_of(error))
            code = error.exit_code
        leaving.end_if_user_code_hangs(code)
        return code

    async def _work(self) -> int:
        self._stop = Stop()
        self.child.obey(self._obey)
        self._load()
        async with (
            connect_command(self.args) as connection,
            opened_journal(self.args.journal) as journal,
        ):
            run = await run_named(journal, self.args.run)
            self._attach(journal, run)
            plan = self._plan(run, connection)
            return self._ended(await self._roll_out(plan, run, journal, connection))

    async def _roll_out(
        self, plan: RunPlan, run: Run, journal: Journal, connection: Connection
    ) -> Ending:
        joined = self.child.joined
        if not self.job.is_training:
            engine = plan.engine(run, journal, connection, stop=self._stop, on_joined=joined)
            return await engine.work()
        from holdfast.pipeline.rollouter import Rollouter

        rollouter = Rollouter(
            plan, journal=journal, connection=connection, stop=self._stop, on_joined=joined
        )
        return await rollouter.work(run)

    def _obey(self, order: Order) -> None:
        if order.stop:
            self._ordered = True
            self._stop.request(order.stop)
        if order.scorers is not None and self._replace is not None:
            self._replace(order.scorers)

    def _load(self) -> None:
        """Loads the user's code, which must be the code that the run was opened with."""
        args = self.args
        code = load_code(args.rollout, args.scorer)
        self.compare("rollout", fingerprinted(code.rollout)[0], self.job.rollout)
        self.processor = code.processor
        if code.scorer is not None:
            self.compare("scorer", fingerprinted(code.scorer)[0], self.job.scorer)
            self.scorer = self.make_scorer(code.scorer, place=code.place)

    def _attach(self, journal: Journal, run: Run) -> None:
        """Tells the processor about the run, before the run is planned."""

    def compare(self, what: str, fingerprint: str, known: str) -> None:
        if fingerprint != known:
            raise UsageError(
                f"the code of the {what} is not the same in {os.getcwd()} as where the run was "
                f"opened ({fingerprint}, not {known}; Holdfast {__version__}): it imports modules "
                "that do not travel with the folder, and that are others here"
            )

    def make_scorer(self, function: object, *, place: tuple[Path, str]) -> Scorer:
        """Returns a scorer that runs in this process. With `--score-workers`, returns one that uses
        the scoring processes at the addresses in `job.scorers`."""
        if not self.args.score_workers:
            return Scorer(function)  # type: ignore[arg-type]
        from holdfast.engine.scoring.pool import ScorerAt, ScorerPool

        # On another node, the file has another path. Relative to the folder, the path is the same.
        there = os.path.relpath(place[0])
        pool = ScorerPool(
            function,  # type: ignore[arg-type]
            scorer_home(*place, place=there, fingerprint=self.job.scorer),
            seats=[ScorerAt(at.host, at.port, at.token) for at in self.job.scorers],
            at_once=self.args.score_concurrency,
        )

        def replace(addresses: list[ScorerAddress]) -> None:
            seats = [ScorerAt(at.host, at.port, at.token) for at in addresses]
            task = asyncio.create_task(pool.replace(seats), name="other scorers")
            self._changes.add(task)
            task.add_done_callback(self._changes.discard)

        self._replace = replace
        return pool

    def _plan(self, run: Run, connection: Connection) -> RunPlan:
        plan = RunPlan(
            spec=run.spec,
            tasks=(),
            processor=self.processor,
            scorer=self.scorer,
            settings=settings_of(vars(self.args), idle=self.job.idle),
            world=parse_spec(run.spec.world) if run.spec.world else None,
        )
        if self.job.is_training:
            check_supported(connection, run.spec.sampling)
            return plan
        plan = plan.bind(connection)
        if differences := run.spec.differences(plan.spec):
            raise UsageError(f"the run is another one here: {'; '.join(differences)}")
        return plan

    def _ended(self, ending: Ending) -> int:
        if ending.fatal is not None:
            self.child.report(_report_of(ending.fatal))
            return Exit.STOPPED
        if ending.stopped and not self._ordered:
            # The run's budget is spent, so the other workers must stop as well.
            self.child.report(WorkerReport(fatal="Stopped", message=redact(ending.stopped)))
            return Exit.STOPPED
        return Exit.OK


def _report_of(error: BaseException) -> WorkerReport:
    return WorkerReport(
        fatal=type(error).__name__,
        message=redact(str(error)),
        again=isinstance(error, JournalError),
    )
