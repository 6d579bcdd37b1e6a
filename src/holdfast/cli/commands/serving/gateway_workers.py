"""`holdfast gateway --workers N`: this process opens the run and reports on it, N others serve it.

Workers are given the options as they were read, with what only one process may do (another name
for the run, changes, failures to be tried again, the embedded engine) done already. They share the
journal as any workers of a run do, and the listening socket.
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from msgspec import Struct

from holdfast.cli.commands import run as running
from holdfast.cli.setup.connect import connect_command
from holdfast.cli.setup.journals import open_command_run
from holdfast.cli.terminal.exit_codes import Exit
from holdfast.cli.terminal.progress import displayed
from holdfast.cli.terminal.signals import last_word
from holdfast.cli.terminal.text import notify
from holdfast.engine.progress.counters import WatchedProgress
from holdfast.engine.report import build
from holdfast.engine.running.engine import Ending
from holdfast.engine.running.run_plan import RunPlan
from holdfast.engine.scoring.retry import open_for_retry
from holdfast.gateway.address import Address, advertised_url
from holdfast.gateway.agents.temp_dirs import scratch
from holdfast.gateway.workers.peers import WorkerPlace
from holdfast.gateway.workers.supervisor import WorkerSupervisor
from holdfast.journal import opened_journal, share_passwords
from holdfast.journal.journal import Journal
from holdfast.journal.process import this_process
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.records.encoding.redaction import redact
from holdfast.records.errors import HoldfastError, JournalError
from holdfast.records.run import Run
from holdfast.rollout.threads.contain import in_background
from holdfast.server_tokens import token_file

LAST_SECONDS = 10.0
"""Beyond grace and drain, for a worker to close its journal and go."""
WATCH_SECONDS = 2.0
_DONE_ONCE = {
    "accept_changes": False,
    "fail_on_permanent_failure": False,
    "join": True,
    "json": False,
    "new": False,
    "quiet": True,
    "retry_failed": False,
    "run_deadline": None,
    "workers": 1,
}
_CODES = {signal.SIGINT: Exit.INTERRUPTED, signal.SIGTERM: Exit.TERMINATED}


_COMMAND = ("gateway", "--tasks", "-", "--as-worker", "-")
"""Of a worker, with the name of the run; everything else comes from its standard input."""


class WorkerRole(Struct, frozen=True):
    """The place and the socket of one worker."""

    place: WorkerPlace
    sock: socket.socket


def found_at(url: str, at: Address) -> str:
    """Where agents come to, for people. `at` has the socket."""
    line = f"agents take trajectories at {url}/trajectories"
    if at.token is not None or at.sock is None:
        return line
    return f"{line} with the token in {token_file(at.sock.getsockname()[1])}"


def role_of(args: argparse.Namespace) -> WorkerRole | None:
    """The role of a worker, which gets its supervisor's options; None for any other process."""
    if args.as_worker is None:
        return None
    with open(0, "rb", closefd=False) as stdin:
        arguments = json.loads(stdin.readline())
    vars(args).update(arguments["options"])
    return WorkerRole(WorkerPlace(**arguments["place"]), socket.socket(fileno=arguments["socket"]))


def go(args: argparse.Namespace, work: running.Work, at: Address) -> int:
    return asyncio.run(_Supervision(args, work, at).run())


class _Supervision:
    """One command."""

    def __init__(self, args: argparse.Namespace, work: running.Work, at: Address):
        self._args = args
        self._work = work
        self._at = at
        self._supervisor: WorkerSupervisor | None = None
        self._stopped = ""
        self._received: Exit | None = None
        self._resume = ""

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in _CODES:
            loop.add_signal_handler(number, self._handle, number)
        args = self._args
        async with connect_command(args) as connection:
            plan = self._work.plan.bind(connection)
            await plan.check_taken(connection)
            plan = await plan.bind_scorer()
            plan.report_caveats(connection)
            run = await self._open(plan)
            self._resume = f"\nto go on: {redact(running.resume_command(run))}"
            policy = connection.policy
            assert isinstance(policy, EnginePolicy), "it is at an address"
            urls = args.policy or [endpoint.url for endpoint in policy.endpoints]
            fatal = await self._supervise(run, {"policy": urls, "model": policy.model})
        return await self._reported(run, fatal)

    async def _open(self, plan: RunPlan) -> Run:
        """Does what may be done once only, however many workers there are."""
        args = self._args
        async with opened_journal(args.journal) as journal:
            run = await open_command_run(args, journal, plan)
            worker = await journal.join(
                run, this_process(), lease_seconds=args.lease, share=args.join
            )
            try:
                if args.retry_failed:
                    await open_for_retry(journal, run)
            finally:
                await journal.leave(worker)
            return run

    async def _supervise(self, run: Run, changed: dict[str, object]) -> HoldfastError | None:
        args, sock = self._args, self._at.sock
        assert sock is not None, "it listens already"
        url = await advertised_url(
            args.host,
            sock.getsockname()[1],
            given=args.advertise,
            secure=self._at.tls is not None,
        )
        share_passwords()
        async with scratch(for_sockets=True) as folder:
            self._supervisor = WorkerSupervisor(
                [sys.executable, "-m", "holdfast", *_COMMAND, "--run", run.spec.name],
                lambda index: self._message(run, str(folder), index, changed),
                count=args.workers,
                inherited=[sock.fileno()],
                notify=notify,
                grace=args.grace + args.drain + LAST_SECONDS,
            )
            notify(f"{found_at(url, self._at)} ({args.workers} workers)")
            async with self._in_time(), self._displayed(run):
                try:
                    ended = await self._supervisor.work()
                except HoldfastError as error:
                    self._stopped = self._stopped or str(error)
                    return error
        bad = [worker.code for worker in ended if worker.code not in (0, *_CODES.values())]
        if bad and not self._stopped:
            self._stopped = f"a worker ended with exit code {bad[0]}"
            return _WorkerStopped(self._stopped)
        return None

    def _message(self, run: Run, folder: str, index: int, changed: dict[str, object]) -> bytes:
        """A worker's options: addresses among them may hold passwords, and everybody on this
        machine can read a command line."""
        args, sock = self._args, self._at.sock
        assert sock is not None, "it listens already"
        # Of few trajectories, the first worker is not to take all; of many, none is open beyond the
        # concurrency of all together.
        at_once = min(args.concurrency, len(self._work.plan.tasks) * run.spec.samples)
        share = max(1, at_once // args.workers + (index < at_once % args.workers))
        given = {name: value for name, value in vars(args).items() if name != "invocation"}
        options = {**given, **_DONE_ONCE, **changed, "run": run.spec.name}
        arguments = {
            "options": {**options, "concurrency": share},
            "place": {"folder": folder, "index": index, "count": args.workers},
            "socket": sock.fileno(),
        }
        return json.dumps(arguments).encode() + b"\n"

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        """The run's deadline is the supervisor's to watch."""
        seconds = self._args.run_deadline
        if seconds is None:
            yield
            return
        timer = asyncio.get_running_loop().call_later(
            seconds, self._stop, f"the run's deadline of {seconds:g} s is over"
        )
        try:
            yield
        finally:
            timer.cancel()

    @asynccontextmanager
    async def _displayed(self, run: Run) -> AsyncIterator[None]:
        """How far the workers are, which is known from the journal."""
        args, progress = self._args, WatchedProgress()
        async with (
            opened_journal(args.journal, read_only=True) as journal,
            displayed(progress, quiet=args.quiet or args.json),
        ):
            try:
                async with in_background(_watch(journal, run, progress), name="watch the run"):
                    yield
            finally:
                await _look(journal, run, progress)

    def _stop(self, reason: str) -> None:
        self._stopped = self._stopped or reason
        if self._supervisor is not None:
            self._supervisor.stop()

    def _handle(self, number: signal.Signals) -> None:
        if self._received is not None or self._supervisor is None:
            if self._supervisor is not None:
                self._supervisor.kill()
            last_word(f"holdfast: stopped at once{self._resume}")
            os._exit(_CODES[number])
        self._received = _CODES[number]
        notify(f"{number.name}: finishing what is in flight; again to stop at once")
        self._stop(f"received {number.name}")

    async def _reported(self, run: Run, fatal: HoldfastError | None) -> int:
        async with opened_journal(self._args.journal) as journal:
            report = await build(journal, run)
        ending = Ending(self._stopped, (), fatal)
        running.print_report(self._args, run, report, ending)
        return running.exit_code(self._args, report, ending, self._received)


async def _watch(journal: Journal, run: Run, progress: WatchedProgress) -> None:
    while True:
        await _look(journal, run, progress)
        await asyncio.sleep(WATCH_SECONDS)


async def _look(journal: Journal, run: Run, progress: WatchedProgress) -> None:
    with suppress(JournalError):  # The report will read the same, and say what is wrong.
        progress.seen(await journal.trajectories(run))


class _WorkerStopped(HoldfastError):
    """A worker ended, and said why."""
