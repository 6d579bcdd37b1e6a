"""`holdfast gateway --workers N`: opens the run and reports on it, while N processes serve it.

The workers share the journal, like all workers of a run, and the listening socket.
"""

import argparse
import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from msgspec import Struct

from holdfast.cli.commands import run as running
from holdfast.cli.commands.supervision import LAST_SECONDS, Supervision, worker_options
from holdfast.cli.setup.command_run import open_command_run
from holdfast.cli.setup.connect import connect_command
from holdfast.cli.terminal.progress import displayed
from holdfast.cli.terminal.signals import CODES
from holdfast.cli.terminal.text import notify
from holdfast.engine.progress.counters import WatchedProgress
from holdfast.engine.running.run_plan import RunPlan
from holdfast.engine.scoring.retry import open_for_retry
from holdfast.gateway.address import Address, advertised_url
from holdfast.gateway.agents.temp_dirs import scratch
from holdfast.gateway.workers.peers import WorkerPlace
from holdfast.gateway.workers.supervisor import WorkerSupervisor
from holdfast.journal import opened_journal, share_passwords
from holdfast.journal.process import this_process
from holdfast.journal.sql.journal import Journal
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.records.errors import HoldfastError, JournalError
from holdfast.records.run import Run
from holdfast.rollout.threads.contain import in_background
from holdfast.server_tokens import token_file

WATCH_SECONDS = 2.0
_COMMAND = ("gateway", "--tasks", "-", "--as-worker", "-")
"""The command of a worker, to which the run's name is added. A worker reads its options from
standard input."""


class WorkerRole(Struct, frozen=True):
    """The place of one worker among the gateway's workers, and its listening socket."""

    place: WorkerPlace
    sock: socket.socket


def found_at(url: str, at: Address) -> str:
    """Returns the line that tells people where agents reach the gateway. `at` is the address of the
    socket."""
    line = f"agents take trajectories at {url}/trajectories"
    if at.token is not None or at.sock is None:
        return line
    return f"{line} with the token in {token_file(at.sock.getsockname()[1])}"


def role_of(args: argparse.Namespace) -> WorkerRole | None:
    """Returns the role of this process if it is a worker, and sets in `args` the options that its
    supervisor sent. Returns None for any other process."""
    if args.as_worker is None:
        return None
    with open(0, "rb", closefd=False) as stdin:
        arguments = json.loads(stdin.readline())
    vars(args).update(arguments["options"])
    return WorkerRole(WorkerPlace(**arguments["place"]), socket.socket(fileno=arguments["socket"]))


def go(args: argparse.Namespace, work: running.Work, at: Address) -> int:
    return asyncio.run(_Gateways(args, work, at).run())


class _Gateways(Supervision):
    def __init__(self, args: argparse.Namespace, work: running.Work, at: Address):
        super().__init__(args, work)
        self._at = at
        self._supervisor: WorkerSupervisor | None = None

    async def run(self) -> int:
        self.watch_signals()
        args = self._args
        async with connect_command(args) as connection:
            run = await self._open(await self.bind_plan(connection))
            self.keep_command(run)
            policy = connection.policy
            assert isinstance(policy, EnginePolicy), "it is at an address"
            urls = args.policy or [endpoint.url for endpoint in policy.endpoints]
            fatal = await self._supervise(run, {"policy": urls, "model": policy.model})
        async with opened_journal(args.journal) as journal:
            return await self.report(journal, run, fatal)

    async def _open(self, plan: RunPlan) -> Run:
        """Opens the run, and does the work that must be done only once, however many workers there
        are."""
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
            advertised=args.advertise,
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
            with self.in_time():
                async with self._displayed(run):
                    try:
                        ended = await self._supervisor.work()
                    except HoldfastError as error:
                        self._stopped = self._stopped or str(error)
                        return error
        bad = [worker.code for worker in ended if worker.code not in (0, *CODES.values())]
        if bad and not self._stopped:
            self._stopped = f"a worker ended with exit code {bad[0]}"
            return _WorkerStopped(self._stopped)
        return None

    def _message(self, run: Run, folder: str, index: int, changed: dict[str, object]) -> bytes:
        """Returns a worker's options as a message. They are not put on its command line, because
        addresses in them may contain passwords, and every user of this machine can read a command
        line."""
        args, sock = self._args, self._at.sock
        assert sock is not None, "it listens already"
        # If there are few trajectories, the first worker must not take all of them. If there are
        # many, all workers together open at most `concurrency` of them.
        at_once = min(args.concurrency, len(self._work.plan.tasks) * run.spec.samples)
        share = max(1, at_once // args.workers + (index < at_once % args.workers))
        own = {"as_worker": "-", "workers": 1, "run": run.spec.name, "concurrency": share}
        arguments = {
            "options": worker_options(args, {**changed, **own}),
            "place": {"folder": folder, "index": index, "count": args.workers},
            "socket": sock.fileno(),
        }
        return json.dumps(arguments).encode() + b"\n"

    @asynccontextmanager
    async def _displayed(self, run: Run) -> AsyncIterator[None]:
        """Shows the progress of the workers, which is read from the journal."""
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

    def stop(self, reason: str) -> None:
        super().stop(reason)
        if self._supervisor is not None:
            self._supervisor.stop()

    def kill(self) -> None:
        if self._supervisor is not None:
            self._supervisor.kill()

    @property
    def has_begun(self) -> bool:
        return self._supervisor is not None


async def _watch(journal: Journal, run: Run, progress: WatchedProgress) -> None:
    while True:
        await _look(journal, run, progress)
        await asyncio.sleep(WATCH_SECONDS)


async def _look(journal: Journal, run: Run, progress: WatchedProgress) -> None:
    with suppress(JournalError):  # The report reads the same rows, and raises the error.
        progress.seen(await journal.trajectories(run))


class _WorkerStopped(HoldfastError):
    """A worker ended and reported the reason."""
