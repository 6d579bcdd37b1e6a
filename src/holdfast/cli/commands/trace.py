"""`holdfast trace`: sends the spans of runs to an OpenTelemetry collector."""

import argparse
import asyncio
import os
import shlex
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.beside import TRACE_SECONDS, check_collector
from holdfast.cli.setup.errors import say
from holdfast.cli.setup.journals import to_read
from holdfast.cli.terminal.text import notify, visible_name
from holdfast.engine.report import many
from holdfast.journal.sql.find_run import run_named
from holdfast.records.errors import HoldfastError, UsageError
from holdfast.records.exit_codes import Exit

if TYPE_CHECKING:
    from holdfast.tracing.sending import TracedRun

LEAST_SECONDS = 1.0
COST_FACTOR = 9.0
"""A pause takes at least this many times as long as the search for new records before it."""


async def trace(args: argparse.Namespace) -> int:
    check_collector(args.otel)
    if args.until_stdin_closes:
        await _follow(args)
        return Exit.OK
    if args.run is None:
        raise UsageError("trace wants the name of a run (`holdfast runs` lists them)")
    from holdfast.tracing.collector import OtlpCollector
    from holdfast.tracing.sending import TracedRun

    async with to_read(args.journal) as journal:
        run = await run_named(journal, args.run)
        collector = OtlpCollector(args.otel)
        traced = TracedRun(run, collector)
        if not await traced.send(journal):
            reason = collector.problem or "their records cannot be read (holdfast journal check)"
            return say(f"{_left(args, args.run, traced)}: {reason}", Exit.STOPPED)
    print(f"sent {many(collector.sent, 'span')} of run {visible_name(args.run)} to {args.otel}")
    return Exit.OK


def _left(args: argparse.Namespace, run: str, traced: "TracedRun") -> str:
    what = many(traced.left, "trajectory") if traced.left else "the end"
    return f"{what} of run {visible_name(run)} could not be sent to {args.otel}"


# --- beside a command


async def _follow(args: argparse.Namespace) -> None:
    """Sends the spans of the runs whose names come on standard input, until standard input is
    closed."""
    os.nice(10)  # The command's own work comes first.
    names, closed = _read_names()
    following = _Following(args, names)
    working = asyncio.create_task(following.work(closed))
    await closed.wait()
    # A collector that was not there a moment ago is not waited for.
    await asyncio.wait({working}, timeout=1.0 if following.problem else TRACE_SECONDS)
    following.report()
    if working.done():
        working.result()
    sys.stderr.flush()
    os._exit(Exit.OK)  # A request under way may take longer than the command may wait.


class _Following:
    """Sends the spans of the runs that a command works on."""

    def __init__(self, args: argparse.Namespace, names: list[str]):
        from holdfast.tracing.collector import OtlpCollector

        self._args = args
        self._names = names
        self._collector = OtlpCollector(args.otel)
        self._runs: dict[str, TracedRun] = {}
        self.problem = ""

    async def work(self, closed: asyncio.Event) -> None:
        """Looks for new records and sends them, again and again, and once more after the command
        has ended."""
        is_last = False
        while not is_last:
            is_last = closed.is_set()
            start = time.monotonic()
            try:
                await self._look()
                self.problem = self._collector.problem
            except HoldfastError as error:  # The journal may not be there yet.
                self.problem = str(error)
            pause = max(LEAST_SECONDS, COST_FACTOR * (time.monotonic() - start))
            with suppress(TimeoutError):
                await asyncio.wait_for(closed.wait(), 0 if is_last else pause)

    async def _look(self) -> None:
        from holdfast.tracing.sending import TracedRun

        if not self._names:
            return
        async with to_read(self._args.journal) as journal:
            for name in self._names:
                run = await journal.find_run(name)
                if run is not None:
                    traced = self._runs.setdefault(name, TracedRun(run, self._collector))
                    await traced.send(journal)

    def report(self) -> None:
        """Reports each run that the collector has only in part, with the command that sends the
        rest."""
        for name, traced in self._runs.items():
            if traced.left:
                options = ("--otel", self._args.otel, "--journal", self._args.journal)
                again = shlex.join(("holdfast", "trace", name, *options))
                notify(f"{_left(self._args, name, traced)} ({self.problem}); send it by {again}")


def _read_names() -> tuple[list[str], asyncio.Event]:
    """Returns a list to which the names from standard input are added, and an event that is set
    when standard input ends."""
    names: list[str] = []
    closed, loop = asyncio.Event(), asyncio.get_running_loop()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(names.append, line.removesuffix("\n"))
        loop.call_soon_threadsafe(closed.set)

    threading.Thread(target=read, name="holdfast-stdin", daemon=True).start()
    return names, closed
