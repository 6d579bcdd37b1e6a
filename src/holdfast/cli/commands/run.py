"""`holdfast run`: everything is checked before anything is done."""

import argparse
import asyncio
import contextlib
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import structs

from holdfast.cli.setup.connect import connect_command
from holdfast.cli.setup.errors import advice, code_of, say
from holdfast.cli.setup.journals import open_command_run
from holdfast.cli.setup.user_code import (
    load_module,
    processor_of,
    rollout_in,
    scorer_in,
    scorer_module,
    split,
)
from holdfast.cli.terminal.exit_codes import Exit
from holdfast.cli.terminal.force_exit import Leaving
from holdfast.cli.terminal.progress import displayed
from holdfast.cli.terminal.signals import Signals
from holdfast.cli.terminal.text import notify, print_json, visible, visible_name
from holdfast.engine.connect import Connection
from holdfast.engine.engine import Ending
from holdfast.engine.guards.event_loop import fewer_collections, run_in_own_loop
from holdfast.engine.guards.orphan_tasks import end_tasks
from holdfast.engine.progress import Progress
from holdfast.engine.report import RunReport, as_text, build, many
from holdfast.engine.run_plan import NO_CODE, Fingerprint, RunPlan, plan_run
from holdfast.engine.scoring.scorer import Scorer
from holdfast.engine.settings import settings_of
from holdfast.engine.stop import Stop
from holdfast.journal import check_address, open_journal
from holdfast.journal.journal import Journal
from holdfast.policy.client import circuit_breaker
from holdfast.records.encoding.redaction import redact
from holdfast.records.errors import HoldfastError, UsageError
from holdfast.records.group import GroupPolicy, Shortfall
from holdfast.records.run import Run
from holdfast.records.sampling import Sampling
from holdfast.records.task import Task, read_tasks
from holdfast.rollout.processors.processor import RolloutProcessor, fingerprinted


class Work(msgspec.Struct, frozen=True):
    """The command, read and checked."""

    plan: RunPlan
    on_open: Callable[[Journal, Run], None] | None = None
    """Called with the run when it is opened."""
    quiet: bool = False
    """One of several processes: another one reports."""


def run(args: argparse.Namespace) -> int:
    with _prints_aside(args):
        work = _read(args)
    return go(args, work)


def go(args: argparse.Namespace, work: Work) -> int:
    """Works until the run is over or stopped; the exit code."""
    with fewer_collections():
        return run_in_own_loop(_run(args, work))


def _prints_aside(args: argparse.Namespace) -> contextlib.AbstractContextManager[object]:
    """With --json, standard output is the report's: what user code prints goes elsewhere."""
    return contextlib.redirect_stdout(sys.stderr) if args.json else contextlib.nullcontext()


def _read(args: argparse.Namespace) -> Work:
    path, name = split(args.rollout)
    tasks = tasks_of(args)
    module = load_module(path)
    rollout = rollout_in(module, path, name)
    scorer = scorer_in(module, path, args.scorer)
    processor = processor_of(rollout, path)
    plan = plan_of(
        args,
        tasks=tasks,
        processor=processor,
        rollout=fingerprinted(rollout, module=module),
        scorer=None if scorer is None else Scorer(scorer),  # type: ignore[arg-type]
        scorer_code=NO_CODE
        if scorer is None
        else fingerprinted(scorer, module=scorer_module(path, args.scorer)),
    )
    return Work(plan)


def tasks_of(args: argparse.Namespace) -> list[Task]:
    """The whole file is read: a bad line is reported before a longer run comes to it."""
    return read_tasks(Path(args.tasks))[: args.limit]


def plan_of(
    args: argparse.Namespace,
    *,
    tasks: list[Task],
    processor: RolloutProcessor,
    rollout: Fingerprint,
    scorer: Scorer | None,
    scorer_code: Fingerprint,
) -> RunPlan:
    """The plan that the options describe, for the tasks and code that they name."""
    check_address(args.journal)
    if Path(args.journal).is_dir():
        raise UsageError(f"journal {args.journal} is a folder; name a file")
    return plan_run(
        args.run,
        tasks=tasks,
        processor=processor,
        rollout=rollout,
        scorer=scorer,
        scorer_code=scorer_code,
        samples=args.samples,
        sampling=Sampling(
            args.max_tokens,
            args.temperature,
            args.top_p,
            tuple(args.stop),
            reasoning_effort=args.reasoning_effort,
        ),
        seed=args.seed,
        group=GroupPolicy(args.group_refill, Shortfall(args.group_shortfall), args.group_at_least),
        settings=settings_of(vars(args)),
    )


async def _run(args: argparse.Namespace, work: Work) -> int:
    leaving = Leaving()
    code = await _work(args, work)
    leaving.end_if_user_code_hangs(code)
    return code


async def _work(args: argparse.Namespace, work: Work) -> int:
    async with connect_command(args) as connection:
        plan = work.plan.bind(connection)
        if not work.quiet:
            plan.report_caveats(connection)
        journal = open_journal(args.journal)
        try:
            return await _in_journal(args, structs.replace(work, plan=plan), connection, journal)
        finally:
            await journal.close()


async def _in_journal(
    args: argparse.Namespace, work: Work, connection: Connection, journal: Journal
) -> int:
    run = await open_command_run(args, journal, work.plan)
    if work.on_open is not None:
        work.on_open(journal, run)
    stop, progress = Stop(), Progress()
    signals = Signals(stop, resume=redact(resume_command(run)), quiet=work.quiet)
    signals.watch()
    engine = work.plan.engine(
        run, journal, connection, progress=progress, stop=stop, reopen_failed=args.retry_failed
    )
    own = asyncio.all_tasks()
    with _prints_aside(args):
        async with displayed(progress, quiet=args.quiet or args.json):
            ending = await engine.work()
        await _end_orphans(own)
    if work.quiet:
        return _ended_quietly(ending, signals.received)
    report = await build(journal, run)
    print_report(args, run, report, ending)
    return exit_code(args, report, ending, signals.received)


async def _end_orphans(own: "set[asyncio.Task[object]]") -> None:
    """Ends tasks that user code started and forgot, and says so."""
    left = [
        task
        for task in asyncio.all_tasks() - own
        if not task.get_name().startswith(circuit_breaker.PROBE_TASK_PREFIX)
    ]
    if found := await end_tasks(left):
        names = ", ".join([*map(visible_name, found[:5]), *(["…"] if len(found) > 5 else [])])
        notify(f"ended {many(len(found), 'task')} left behind: {names}")


def _ended_quietly(ending: Ending, received: Exit | None) -> int:
    """For one of several processes: reports what no other process knows."""
    _report_troubles(ending)
    if ending.stopped and received is None:
        notify(f"a worker stopped: {ending.stopped}")
    early = early_code(ending, received)
    return Exit.OK if early is None else early


def _report_troubles(ending: Ending) -> None:
    for cut in ending.cuts:
        notify(
            f"{visible_name(cut.trajectory)}: record {cut.seq} at position {cut.position} "
            f"{cut.reason}; it and {cut.lost - 1} after it were set aside, and the trajectory "
            "went on from the last good one"
        )
    for block in ending.loop_blocks:
        notify(str(block))


def print_report(args: argparse.Namespace, run: Run, report: RunReport, ending: Ending) -> None:
    _report_troubles(ending)
    if args.json:
        known = {"stopped": ending.stopped, "standstills": ending.loop_blocks}
        print_json(msgspec.to_builtins(report) | msgspec.to_builtins(known))
    else:
        print(visible(redact(as_text(report))), flush=True)
    if ending.stopped:
        notify(f"stopped: {ending.stopped}")
        print(f"to go on: {redact(resume_command(run))}", file=sys.stderr)
    if isinstance(ending.fatal, HoldfastError) and str(ending.fatal) != ending.stopped:
        say(str(ending.fatal), Exit.STOPPED)


def resume_command(run: Run) -> str:
    """The same command, with the name that the run really has."""
    done = ("--new", "--retry-failed", "--accept-changes")
    command = [word for word in sys.argv[1:] if word not in done]
    for at, word in enumerate(command):
        if word == "--run":
            command[at + 1] = run.spec.name
        elif word.startswith("--run="):
            command[at] = f"--run={run.spec.name}"
    return shlex.join(["holdfast", *command])


def exit_code(
    args: argparse.Namespace, report: RunReport, ending: Ending, received: Exit | None
) -> int:
    early = early_code(ending, received)
    if early is not None:
        return early
    if report.corrupt:
        return say(
            f"{many(len(report.corrupt), 'corrupt log')}; {advice(args.journal)}", Exit.CORRUPT
        )
    if args.fail_on_permanent_failure and report.permanent_failures:
        return Exit.FAILURES
    return Exit.OK


def early_code(ending: Ending, received: Exit | None) -> Exit | None:
    """That of a command which ended before its work was done; None for one that did it."""
    if ending.fatal is not None and not isinstance(ending.fatal, HoldfastError):
        raise ending.fatal
    if received is not None:
        return received
    if ending.fatal is not None:
        code = code_of(ending.fatal)
        # Once the run has begun, something was changed: the same command goes on.
        return Exit.STOPPED if code is Exit.USAGE else code
    if ending.stopped:
        return Exit.STOPPED
    return None
