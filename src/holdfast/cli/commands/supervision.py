"""The shared code of commands that leave the work to other processes. Such a command opens the run,
watches over the processes, and reports.

Workers get the options as the command has read them. Steps that must be done only once (choosing
another name for the run, accepting changes, retrying failures, starting the embedded engine) are
done before workers start.
"""

import argparse
import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.cli.commands import run as running
from holdfast.cli.terminal.signals import CODES, last_word
from holdfast.cli.terminal.text import notify
from holdfast.engine.connect import Connection
from holdfast.engine.report import build
from holdfast.engine.running.engine import Ending
from holdfast.engine.running.run_plan import RunPlan
from holdfast.journal.sql.journal import Journal
from holdfast.records.encoding.redaction import redact
from holdfast.records.errors import HoldfastError
from holdfast.records.exit_codes import Exit
from holdfast.records.run import Run

LAST_SECONDS = 10.0
"""Seconds that a worker has, after the grace, to close its journal and end."""
DONE_ONCE: dict[str, object] = {
    "accept_changes": False,
    "as_node": None,
    "as_worker": None,
    "cluster": None,
    "fail_on_permanent_failure": False,
    "join": True,
    "json": False,
    "new": False,
    "quiet": True,
    "retry_failed": False,
    "run_deadline": None,
}
"""The values that these options have in all workers. The command itself does what the user asked
for with these options, because it must be done only once."""


def worker_options(args: argparse.Namespace, changed: dict[str, object]) -> dict[str, object]:
    """Returns the options of a worker: this command's options that are plain data, except that the
    values in `DONE_ONCE` and in `changed` replace its own."""
    plain = {
        name: value
        for name, value in vars(args).items()
        if isinstance(value, str | int | float | list | tuple | dict | None)
    }
    return {**plain, **DONE_ONCE, **changed}


class Supervision:
    """Supervises the processes of one command. `stop` lets them finish work in flight."""

    def __init__(self, args: argparse.Namespace, work: running.Work):
        self._args = args
        self._work = work
        self._stopped = ""
        self._received: Exit | None = None
        self._resume = ""

    async def bind_plan(self, connection: Connection) -> RunPlan:
        """Binds the plan to the engine, checks it once for all workers, and returns it."""
        plan = self._work.plan.bind(connection)
        await plan.check_taken(connection)
        plan = await plan.bind_scorer()
        plan.report_caveats(connection)
        return plan

    def keep_command(self, run: Run) -> None:
        """Keeps the command that continues the run, so that an immediate stop prints it."""
        self._resume = f"\nto go on: {redact(running.resume_command(run))}"

    async def report(self, journal: Journal, run: Run, fatal: HoldfastError | None) -> int:
        """Prints the report of the run and returns the exit code."""
        report = await build(journal, run)
        ending = Ending(self._stopped, (), fatal)
        running.print_report(self._args, run, report, ending)
        return running.exit_code(self._args, report, ending, self._received)

    def stop(self, reason: str) -> None:
        self._stopped = self._stopped or reason

    def kill(self) -> None:
        """Ends the processes that would outlive this one."""

    @property
    def has_begun(self) -> bool:
        """Returns whether any work is in flight that should be finished."""
        return True

    @contextmanager
    def in_time(self) -> Iterator[None]:
        """Stops the run if its deadline passes in the block. Workers do not watch the deadline."""
        seconds = self._args.run_deadline
        if seconds is None:
            yield
            return
        timer = asyncio.get_running_loop().call_later(
            seconds, self.stop, f"the run's deadline of {seconds:g} s is over"
        )
        try:
            yield
        finally:
            timer.cancel()

    def watch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in CODES:
            loop.add_signal_handler(number, self._handle, number)

    def _handle(self, number: signal.Signals) -> None:
        if self._received is not None or not self.has_begun:
            self.kill()
            last_word(f"holdfast: stopped at once{self._resume}")
            os._exit(CODES[number])
        self._received = CODES[number]
        notify(f"{number.name}: finishing what is in flight; again to stop at once")
        self.stop(f"received {number.name}")
