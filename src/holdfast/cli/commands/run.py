"""`holdfast run`: checks everything before it begins to work."""

import argparse
import asyncio
import contextlib
import shlex
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path

import msgspec
from msgspec import structs

from holdfast.cli.setup.command_run import (
    find_finished,
    find_rolled_out,
    going_on,
    journal_exists,
    name_run,
    open_command_run,
)
from holdfast.cli.setup.connect import connect_command, meant_by_command
from holdfast.cli.setup.errors import advice, say
from holdfast.cli.setup.recorded_command import with_command
from holdfast.cli.setup.scorers import make_scorer
from holdfast.cli.setup.user_code import AGENT, load_code, split
from holdfast.cli.terminal.force_exit import Leaving
from holdfast.cli.terminal.progress import displayed
from holdfast.cli.terminal.signals import Signals
from holdfast.cli.terminal.text import notify, print_json, reader_may_leave, visible, visible_name
from holdfast.engine.arguments import series_from
from holdfast.engine.connect import Connection, no_connection, recorded_connection
from holdfast.engine.guards.event_loop import fewer_collections, run_in_own_loop
from holdfast.engine.guards.orphan_tasks import end_tasks, left_behind
from holdfast.engine.guards.spending import LEAVE_LIMITS_OUT
from holdfast.engine.meant import Meant
from holdfast.engine.options import MAX_COST, MAX_TOKENS_TOTAL, ONCE
from holdfast.engine.progress.counters import Progress
from holdfast.engine.report import RunReport, as_text, build, many
from holdfast.engine.running.engine import Ending
from holdfast.engine.running.forks import Fork, recorded_fork
from holdfast.engine.running.run_plan import NO_CODE, Fingerprint, RunPlan, plan_run, with_fork
from holdfast.engine.scoring.scorer import Scorer
from holdfast.engine.settings import settings_of
from holdfast.engine.stop import Stop
from holdfast.journal import check_address, is_server, opened_journal
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import Worker
from holdfast.records.encoding.redaction import redact
from holdfast.records.errors import (
    HoldfastError,
    JournalDamaged,
    JournalError,
    JournalUnreachable,
    UsageError,
)
from holdfast.records.exit_codes import Exit
from holdfast.records.group import GroupPolicy, Shortfall
from holdfast.records.run import ForkOrigin, Run, RunSpec
from holdfast.records.sampling import Sampling, object_text
from holdfast.records.task import Task
from holdfast.rollout.processors.processor import RolloutProcessor, fingerprinted
from holdfast.tasks.read import read_tasks
from holdfast.tasks.system import system_text, with_system

LIMITS = (MAX_COST, MAX_TOKENS_TOTAL)
_SAMPLED = frozenset(Sampling.__struct_fields__) - {"json"}
"""Fields of `Sampling` that are also options. `json` is left out, because the option `--json` is
about the report."""


class Work(msgspec.Struct, frozen=True):
    """A command that was read and checked."""

    plan: RunPlan
    on_open: Callable[[Journal, Run], None] | None = None
    """Called with the run when it is opened."""
    quiet: bool = False
    """Whether another process prints the report, because this process is one of several."""


def run(args: argparse.Namespace) -> int:
    if (args.rollout is None) == (args.agent is None):
        raise UsageError("name the rollout, FILE.py[:NAME], or an agent (--agent), not both")
    if args.agent is not None and args.cluster is not None:
        raise UsageError("--agent does not go with --cluster: agents run on this machine")
    args.rollout = args.rollout or f"{AGENT}{args.agent}"
    if args.as_worker is not None:
        from holdfast.cli.commands.cluster import worker

        return worker.work(args)
    if args.cluster is not None and not args.dry_run:
        from holdfast.cli.commands.cluster import driver

        return driver.run(args)
    return go(args, read(args))


def go(args: argparse.Namespace, work: Work) -> int:
    """Works until the run is over or stopped. Returns the exit code."""
    with fewer_collections():
        return run_in_own_loop(_run(args, work))


def _prints_aside(args: argparse.Namespace) -> contextlib.AbstractContextManager[object]:
    """Redirects the output of user code to standard error if `--json` is given, because standard
    output is then for the report."""
    return contextlib.redirect_stdout(sys.stderr) if args.json else contextlib.nullcontext()


def read(args: argparse.Namespace) -> Work:
    """Reads and checks the command, and loads the user's code."""
    with _prints_aside(args):
        return _read(args)


def _read(args: argparse.Namespace) -> Work:
    tasks, code = tasks_of(args), load_code(args.rollout, args.scorer)
    plan = plan_of(
        args,
        tasks=tasks,
        processor=code.processor,
        rollout=fingerprinted(code.rollout),
        scorer=None,
        scorer_code=NO_CODE if code.scorer is None else fingerprinted(code.scorer),
    )
    if plan.spec.series:
        args.run = asyncio.run(name_run(args, plan.spec))
        plan = structs.replace(plan, spec=structs.replace(plan.spec, name=args.run))
    scorer = make_scorer(args, code.scorer, place=code.place, tasks=tasks)
    return Work(structs.replace(plan, scorer=scorer))


def tasks_of(args: argparse.Namespace) -> list[Task]:
    if getattr(args, "fork_of", None) is not None:  # `holdfast train` has no such option.
        args.forked = asyncio.run(_read_fork(args))
        return [args.forked.task]
    tasks = read_tasks(args.tasks, limit=args.limit, columns=dict(args.columns))
    return with_system(tasks, system_text(args.system))


class _Forked(msgspec.Struct, frozen=True):
    """The forks that `holdfast fork` asks for."""

    origin: ForkOrigin
    task: Task
    spec: RunSpec
    fork: Fork | None
    """The recorded fork, or None if the run of forks has begun and has the fork's data itself."""


async def _read_fork(args: argparse.Namespace) -> _Forked:
    origin = ForkOrigin.from_text(args.fork_of)
    async with opened_journal(args.journal, read_only=True) as journal:
        run = await journal.find_run(args.run)
        if run is not None and run.spec.origin == origin:
            return _Forked(origin, (await journal.tasks(run))[0], run.spec, None)
        fork = await recorded_fork(journal, origin)
        return _Forked(origin, fork.task, fork.spec, fork)


def plan_of(
    args: argparse.Namespace,
    *,
    tasks: list[Task],
    processor: RolloutProcessor,
    rollout: Fingerprint,
    scorer: Scorer | None,
    scorer_code: Fingerprint,
) -> RunPlan:
    """Returns the plan that the options describe, for the given tasks and code."""
    check_address(args.journal)
    if Path(args.journal).is_dir():
        raise UsageError(f"journal {args.journal} is a folder; name a file")
    folder = Path(args.journal).absolute().parent
    if not (is_server(args.journal) or folder.exists()):
        raise UsageError(f"journal {args.journal}: there is no folder {folder}; make it first")
    series = series_of(args) if args.run is None else ""
    plan = plan_run(
        f"{series}-1" if args.run is None else args.run,
        tasks=tasks,
        processor=processor,
        rollout=rollout,
        scorer=scorer,
        scorer_code=scorer_code,
        samples=args.samples,
        sampling=sampling_of(args),
        seed=args.seed,
        group=GroupPolicy(
            args.group_refill,
            Shortfall(args.group_shortfall),
            args.group_at_least,
            args.keep_interrupted,
        ),
        settings=settings_of(vars(args)),
        world=args.world,
    )
    if getattr(args, "forked", None) is not None:
        plan = with_fork(plan, args.forked.origin, args.forked.spec, args.forked.fork)
    spec = structs.replace(plan.spec, series=series, fresh=bool(series and args.new))
    return with_command(structs.replace(plan, spec=spec), args)


def series_of(args: argparse.Namespace) -> str:
    """Returns the name of the series to which a run without a name belongs. It is made from the
    names of the rollout's file and of the tasks."""
    if args.rollout.startswith(AGENT):
        name = args.rollout.removeprefix(AGENT).split()[0]
        return series_from(Path(name).name, args.tasks)
    file, name = split(args.rollout)
    return series_from("-".join(filter(None, (file.stem, name))), args.tasks)


def sampling_of(args: argparse.Namespace) -> Sampling:
    """Returns the sampling that the options describe. Parameters without an option keep their
    defaults."""
    values = {name: value for name, value in vars(args).items() if name in _SAMPLED}
    for name in values.keys() & {"stop", "logit_bias", "stop_token_ids"}:
        values[name] = tuple(values[name])
    for name in values.keys() & {"extra_body", "chat_template_kwargs"}:
        values[name] = object_text(name, values[name] or {})
    return Sampling(**values)


async def _run(args: argparse.Namespace, work: Work) -> int:
    leaving = Leaving()
    code = await _work(args, work)
    leaving.end_if_user_code_hangs(code)
    return code


async def _work(args: argparse.Namespace, work: Work) -> int:
    connecting: AbstractAsyncContextManager[Connection] = connect_command(args)
    run: Run | None = None
    if not work.plan.processor.needs_policy:
        connecting = nullcontext(no_connection())
    elif work.on_open is None and not work.quiet:
        meant = await meant_by_command(args) if _goes_on(args) else Meant()
        finished = await report_finished(args, meant, work.plan)
        if finished is not None:
            return finished
        if (run := await _find_rolled_out(args, meant, work.plan)) is not None:
            connecting = nullcontext(recorded_connection(run.spec))
    if run is None:
        work.plan.processor.check_setup()
    async with connecting as connection:
        plan = work.plan.bind(connection)
        if _is_dry(args):
            from holdfast.cli.commands.dry_run import dry_run

            return await dry_run(args, await plan.bind_scorer(), connection)
        if not work.quiet:
            await plan.check_taken(connection)
            plan = await plan.bind_scorer()
            plan.report_caveats(connection)
            if not (plan.is_rewarded or args.quiet):
                notify("no reward is given: the file has no `score`, and --scorer names none")
        async with opened_journal(args.journal) as journal:
            return await _in_journal(args, structs.replace(work, plan=plan), connection, journal)


async def report_finished(args: argparse.Namespace, meant: Meant, plan: RunPlan) -> int | None:
    """Reports a run that needs no more work, without starting or contacting an engine. Returns None
    if there is work, or if the run differs from the recorded one."""
    if not _goes_on(args):
        return None
    async with opened_journal(args.journal, read_only=True) as journal:
        run = await _found(find_finished(meant, journal, plan))
        if run is None:
            return None
        args.follow_run(run.spec.name)
        report = await build(journal, run, prices=plan.settings.price_table)
    ending = Ending("", (), None)
    print_report(args, run, report, ending)
    if not (args.quiet or args.json):
        name = visible_name(run.spec.name)
        notify(f"run {name} was finished before: this is from its journal (--new runs it again)")
    if caveat := meant.caveat(run.spec):
        notify(caveat)
    return exit_code(args, report, ending, None)


async def _find_rolled_out(args: argparse.Namespace, meant: Meant, plan: RunPlan) -> Run | None:
    """Returns the recorded run if it only needs scoring, or None. The policy's engine need not be
    started or contacted for such a run."""
    if not _goes_on(args):
        return None
    async with opened_journal(args.journal, read_only=True) as journal:
        run = await _found(find_rolled_out(args, meant, journal, plan))
    if run is not None and (caveat := meant.caveat(run.spec)):
        notify(caveat)
    return run


def _goes_on(args: argparse.Namespace) -> bool:
    """Returns whether the command can continue a recorded run."""
    begins = args.new or args.retry_failed or _is_dry(args)
    return journal_exists(args.journal) and not begins


def _is_dry(args: argparse.Namespace) -> bool:
    return getattr(args, "dry_run", False)  # `holdfast gateway` has no such option.


async def _found(looking: Awaitable[Run | None]) -> Run | None:
    try:
        return await looking
    except (JournalUnreachable, JournalDamaged):
        raise  # Before an engine is started in vain.
    except JournalError:  # Opening the journal to write raises a better error.
        return None


async def _in_journal(
    args: argparse.Namespace, work: Work, connection: Connection, journal: Journal
) -> int:
    before = "" if args.new or args.quiet else await going_on(journal, work.plan)
    run = await open_command_run(args, journal, work.plan)
    if work.on_open is not None:
        work.on_open(journal, run)
    stop, progress = Stop(), Progress()
    signals = Signals(stop, resume=redact(resume_command(run)), quiet=work.quiet)
    signals.watch()

    async def begin(_: Worker) -> None:
        if before and run.spec.name == work.plan.spec.name:
            notify(before)

    engine = work.plan.engine(
        run,
        journal,
        connection,
        progress=progress,
        stop=stop,
        reopen_failed=args.retry_failed,
        on_joined=begin,
    )
    own = asyncio.all_tasks()
    with _prints_aside(args):
        async with displayed(progress, quiet=args.quiet or args.json):
            ending = await engine.work()
        await _end_orphans(own)
    if work.quiet:
        return _ended_quietly(ending, signals.received)
    report = await build(journal, run, prices=work.plan.settings.price_table)
    print_report(args, run, report, ending)
    return exit_code(args, report, ending, signals.received)


async def _end_orphans(own: "set[asyncio.Task[object]]") -> None:
    """Ends tasks that user code started and left behind, and reports them."""
    if left := await end_tasks(left_behind(own)):
        names = ", ".join([*map(visible_name, left[:5]), *(["…"] if len(left) > 5 else [])])
        notify(f"ended {many(len(left), 'task')} left behind: {names}")


def _ended_quietly(ending: Ending, received: Exit | None) -> int:
    """Returns the exit code of a process that is one of several. Prints only the problems of this
    process, because the parent process prints the report."""
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
    with reader_may_leave():
        _print_report(args, run, report, ending)


def _print_report(args: argparse.Namespace, run: Run, report: RunReport, ending: Ending) -> None:
    _report_troubles(ending)
    if args.json:
        known = {"stopped": ending.stopped, "loop_blocks": ending.loop_blocks}
        print_json(msgspec.to_builtins(report) | msgspec.to_builtins(known))
    else:
        text = as_text(report, full_tracebacks=args.full_tracebacks)
        print(visible(redact(text)), flush=True)
    if ending.stopped:
        notify(f"stopped: {ending.stopped}")
        print(redact(how_to_go_on(resume_words(run), ending.stopped)), file=sys.stderr)
    if isinstance(ending.fatal, HoldfastError) and str(ending.fatal) != ending.stopped:
        say(str(ending.fatal), Exit.STOPPED)


def how_to_go_on(arguments: Sequence[str], stopped: str) -> str:
    """Returns a line with the command that continues the run. `stopped` says why the run stopped.

    If a spending limit was reached, the command has MORE as the limit's value, because the same
    limit would stop the run at once. If `stopped` says that a limit cannot be held, the command has
    no limits.
    """
    if LEAVE_LIMITS_OUT in stopped:
        return f"to go on: {shlex.join(_without_limits(arguments))}"
    limit = next((f"--{each.name}" for each in LIMITS if f"{each.name} (" in stopped), None)
    if limit is None:
        return f"to go on: {shlex.join(arguments)}"
    higher = list(arguments) if _has_option(arguments, limit) else [*arguments, f"{limit}="]
    for at, word in enumerate(higher):
        if word == limit:
            higher[at + 1] = "MORE"
        elif word.startswith(f"{limit}="):
            higher[at] = f"{limit}=MORE"
    return f"to go on, with a higher limit: {shlex.join(higher)}"


def _without_limits(arguments: Sequence[str]) -> list[str]:
    kept, names = list(arguments), [f"--{limit.name}" for limit in LIMITS]
    for name in names:
        while name in kept:
            at = kept.index(name)
            del kept[at : at + 2]
    return [word for word in kept if not word.startswith(tuple(f"{name}=" for name in names))]


def _has_option(arguments: Sequence[str], name: str) -> bool:
    return any(word == name or word.startswith(f"{name}=") for word in arguments)


def resume_command(run: Run) -> str:
    return shlex.join(resume_words(run))


def resume_words(run: Run) -> list[str]:
    """Returns this command with the actual name of the run, and without the options that must take
    effect only once."""
    command = [word for word in sys.argv[1:] if word not in ONCE]
    for at, word in enumerate(command):
        if word == "--run":
            command[at + 1] = run.spec.name
        elif word.startswith("--run="):
            command[at] = f"--run={run.spec.name}"
    return ["holdfast", *command]


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
    if report.nothing_succeeded:
        return say(f"nothing succeeded: {report.all_failed}", Exit.NOTHING)
    return Exit.OK


def early_code(ending: Ending, received: Exit | None) -> Exit | None:
    """Returns the exit code of a command that ended before its work was done, or None if the work
    is done."""
    if ending.fatal is not None and not isinstance(ending.fatal, HoldfastError):
        raise ending.fatal
    if received is not None:
        return received
    if ending.fatal is not None:
        code = ending.fatal.exit_code
        # A run that has begun is not a usage error: the same command continues it.
        return Exit.STOPPED if code is Exit.USAGE else code
    if ending.stopped:
        return Exit.SPENT if ending.spent else Exit.STOPPED
    return None
