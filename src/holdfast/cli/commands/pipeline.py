"""`holdfast train --async`, whose parts are separate processes, and `holdfast train --watch`."""

import argparse
import asyncio
import os
import shlex
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.cli.setup.errors import say
from holdfast.cli.terminal.signals import Signals
from holdfast.cli.terminal.text import notify, visible
from holdfast.embedded.arguments import VllmSettings
from holdfast.engine.connect import EngineAddress
from holdfast.engine.guards.event_loop import run_in_own_loop
from holdfast.engine.options import RETRY_FAILED
from holdfast.engine.running.run_plan import RunPlan
from holdfast.engine.stop import Stop
from holdfast.journal import is_server, share_passwords
from holdfast.pipeline.settings import PipelineSettings, RestartPolicy
from holdfast.records.encoding.redaction import redact
from holdfast.records.errors import HoldfastError, UsageError, WaitTimedOut
from holdfast.records.exit_codes import Exit
from holdfast.records.samples.version import newest_of
from holdfast.training.run.folder import PARTS, check_folder, use_folder

if TYPE_CHECKING:
    from holdfast.journal.sql.journal import Journal
    from holdfast.pipeline.child import PipelinePart
    from holdfast.pipeline.engine import SupervisedEngine
    from holdfast.pipeline.supervisor import PipelineEnding, Supervisor
    from holdfast.training.run.train import Assembly

CANNOT_GO_ON = 64
"""The exit code by which a part tells its supervisor that something was sampled, and that a restart
would fail in the same way."""
_OWN_CODES = (Exit.USAGE, Exit.CHANGED, Exit.CORRUPT, Exit.SPENT, Exit.NOTHING)
"""Exit codes of a part that the whole command also returns."""
FINAL = (*_OWN_CODES, CANNOT_GO_ON)
"""Exit codes after which a part is not started again, because it would end in the same way."""
WATCH_SECONDS = 1.0
_OPTIONS = ("max_staleness", "straggler_wait", "too_old", "epochs", "restarts", "metrics_port")


def settings_from(args: argparse.Namespace) -> PipelineSettings | None:
    """Returns the settings of the pipeline, or None without --async. Raises `UsageError` for
    invalid combinations."""
    used = [name for name in (*_OPTIONS, "only") if getattr(args, name) is not None]
    if not args.is_async:
        if used:
            raise UsageError(f"--{used[0].replace('_', '-')} belongs to --async: give that, too")
        return None
    if args.only and not args.policy:
        raise UsageError(
            f"--only {args.only} needs --policy URL: both parts use the same engines, which have "
            "to run already (holdfast serve)"
        )
    if args.only == "rollouter" and args.retry_failed:
        raise UsageError("--retry-failed belongs to the trainer of the two: give it there")
    chosen = {
        "max_staleness": args.max_staleness,
        "straggler_seconds": args.straggler_wait,
        "too_old": args.too_old,
        "epochs": args.epochs,
    }
    return PipelineSettings(**{k: value for k, value in chosen.items() if value is not None})


def end_after_sampling(args: argparse.Namespace, error: HoldfastError) -> int:
    """Reports an error of the user's options, code or data that came after sampling had begun, and
    returns the exit code. Raises any other error again. Never returns code 2, which would say that
    nothing was done."""
    if error.exit_code is not Exit.USAGE and not isinstance(error, _hopeless()):
        raise error
    if isinstance(error, _nothing_trainable()):
        return say(str(error), Exit.NOTHING)
    print(redact(getattr(error, "traceback", "")), end="", file=sys.stderr)
    say(str(error), Exit.STOPPED)
    return CANNOT_GO_ON if args.until_stdin_closes else Exit.STOPPED


def _hopeless() -> tuple[type[HoldfastError], ...]:
    """Returns the errors that would occur again after a restart. These are errors of the user's own
    code and data, and of a part that waited in vain for an engine or another part."""
    from holdfast.training.run.batches import NothingRewarded, NothingValid
    from holdfast.training.run.checks import LossFailed

    return NothingRewarded, NothingValid, LossFailed, WaitTimedOut


def _nothing_trainable() -> type[HoldfastError]:
    from holdfast.training.run.loop import NothingTrainable

    return NothingTrainable


def end_with_stdin() -> None:
    """Starts a thread that ends this process at once when standard input is closed, that is, when
    the supervisor ends. This is safe because everything acknowledged is durable."""
    threading.Thread(target=_follow, name="holdfast-stdin", daemon=True).start()


def _follow() -> None:
    while os.read(0, 4096):
        pass
    os._exit(Exit.STOPPED)


# --- the parts


@asynccontextmanager
async def trainer_part(
    args: argparse.Namespace,
    paced: PipelineSettings | None,
    *,
    tasks: int,
    report: Callable[[str], None],
) -> "AsyncIterator[tuple[Journal | str, Assembly | None]]":
    """Yields the journal and the assembly of a pipelined training. Without a pipeline, yields the
    journal's address and None."""
    if paced is None:
        yield args.journal, None
        return
    from holdfast.pipeline.parts import assembly, shared_journal

    made = assembly(
        paced,
        tasks=tasks,
        folder=Path(args.out),
        rollout_patience=args.patience,
        report=report,
    )
    async with shared_journal(args.journal) as journal:
        yield journal, made


async def roll_out_alone(
    args: argparse.Namespace, plan: RunPlan, *, address: EngineAddress, model: Path
) -> int:
    from holdfast.pipeline.parts import roll_out, shared_journal

    stop = Stop()
    resume = redact(shlex.join(["holdfast", *sys.argv[1:]]))
    signals = Signals(stop, resume=resume, quiet=args.until_stdin_closes)
    signals.watch()
    async with shared_journal(args.journal) as journal:
        try:
            ending = await roll_out(
                plan,
                journal=journal,
                model=model,
                folder=Path(args.out),
                address=address,
                report=notify,
                stop=stop,
            )
        except WaitTimedOut as error:
            return end_after_sampling(args, error)
    if ending is not None and ending.fatal is not None:
        if isinstance(ending.fatal, HoldfastError):
            return end_after_sampling(args, ending.fatal)
        raise ending.fatal
    if stop.spent and signals.received is None:
        notify(f"stopped: {stop.reason}")
        return Exit.SPENT
    if stop.requested:
        return signals.received or Exit.STOPPED
    return Exit.OK


# --- the supervisor


def without_retry(arguments: Sequence[str]) -> list[str]:
    """Returns the command without `--retry-failed`, which must take effect only once, although
    parts may be started several times."""
    return [word for word in arguments if word != f"--{RETRY_FAILED.name}"]


async def is_over(args: argparse.Namespace) -> bool:
    """Returns whether the training has done all its steps and its stream has ended."""
    from holdfast.cli.setup.journals import to_read
    from holdfast.pipeline.status import pool_of

    if not is_server(args.journal) and not Path(args.journal).is_file():
        return False
    async with to_read(args.journal) as journal:
        run = await journal.find_run(args.run)
        newest = None if run is None else newest_of(await journal.versions(run))
        if newest is None or not (await (await pool_of(journal, args.run)).stats()).is_over:
            return False
    return bool(newest.step >= args.steps)


async def supervise(
    args: argparse.Namespace, *, model: Path, vllm: VllmSettings | None = None
) -> int:
    from holdfast.pipeline.supervisor import Supervisor

    out = Path(args.out)
    check_folder(out)
    stop = Stop()
    resume = redact(shlex.join(["holdfast", *without_retry(sys.argv[1:])]))
    signals = Signals(stop, resume=resume)
    signals.watch()
    async with AsyncExitStack() as stack:
        stack.enter_context(use_folder(out / PARTS, holds_parts=True))
        await _prepare_run(args)
        policy = RestartPolicy() if args.restarts is None else RestartPolicy(restarts=args.restarts)
        engine = await _engine(args, stack, model=model, policy=policy, vllm=vllm)
        share_passwords()
        supervisor = Supervisor(
            [_part(args, "rollouter", engine), _part(args, "trainer", engine)],
            policy=policy,
            final=FINAL,
            engine=engine,
            stop=stop,
            report=notify,
            on_line=_forward,
        )
        if args.metrics_port is not None:
            await stack.enter_async_context(_metrics(args.metrics_port, supervisor, out))
        ending = await supervisor.run()
    return _exit_code(ending, stop, signals, resume=resume)


async def _prepare_run(args: argparse.Namespace) -> None:
    """Prepares a recorded run before its parts are started. Without `--epochs`, opens a sealed
    stream again, because a rollouter ends with a sealed stream. With `--retry-failed`, retries
    failed trajectories. The parts do not do this themselves, because each can be started several
    times."""
    from holdfast.pipeline.parts import shared_journal
    from holdfast.training.run.open_training import open_again, retry_failed

    async with shared_journal(args.journal) as journal:
        run = await journal.find_run(args.run)
        if run is None:
            return
        if args.epochs is None:
            await open_again(journal, run, steps=args.steps)
        if args.retry_failed and not (await journal.progress(run)).sealed:
            await retry_failed(journal, run, report=notify)


async def _engine(
    args: argparse.Namespace,
    stack: AsyncExitStack,
    *,
    model: Path,
    policy: RestartPolicy,
    vllm: VllmSettings | None,
) -> "SupervisedEngine | None":
    """Returns the supervised engine, or None if the user named engines."""
    if args.policy:
        return None
    from holdfast.pipeline.engine import SupervisedEngine, newest_version

    out = Path(args.out)
    engine = SupervisedEngine(
        model,
        partial(newest_version, args.journal, args.run, folder=out),
        folder=out,
        log_requests=args.log_requests,
        report=notify,
        policy=policy,
        vllm=vllm,
    )
    return await stack.enter_async_context(engine.serve())


def _part(args: argparse.Namespace, name: str, engine: "SupervisedEngine | None") -> "PipelinePart":
    from holdfast.pipeline.child import PipelinePart

    policy = () if engine is None else ("--policy", engine.url)
    more = ("--run", args.run, "--out", args.out, *policy)
    arguments = without_retry(sys.argv[1:])
    command = (sys.executable, "-m", "holdfast", *arguments, "--only", name, *more)
    return PipelinePart(
        name, (*command, "--until-stdin-closes"), Path(args.out) / PARTS / f"{name}.log"
    )


def _forward(part: str, stream: str, text: str) -> None:
    """Prints a line of a part on this process's own output."""
    if stream == "stdout":
        print(visible(text), flush=True)
    elif text:
        print(visible(text), file=sys.stderr, flush=True)


def _exit_code(ending: "PipelineEnding", stop: Stop, signals: Signals, *, resume: str) -> int:
    if ending.cause:
        if ending.code not in FINAL:  # Otherwise the part's own message says it.
            notify(f"stopped: {ending.cause}")
            print(f"to go on: {resume}", file=sys.stderr)
        return ending.code if ending.code in _OWN_CODES else Exit.STOPPED
    if stop.requested:
        notify(f"stopped: {stop.reason}")
        print(f"to go on: {resume}", file=sys.stderr)
        return signals.received or Exit.STOPPED
    return Exit.OK


@asynccontextmanager
async def _metrics(port: int, supervisor: "Supervisor", out: Path) -> AsyncIterator[None]:
    from aiohttp import web

    from holdfast.pipeline.status import families, read_status
    from holdfast.prometheus import CONTENT_TYPE, render
    from holdfast.request_guard import RequestRefused, check_request

    async def metrics(request: web.Request) -> web.Response:
        try:
            check_request(request, names=())
        except RequestRefused as refusal:
            return web.Response(status=refusal.status, text=str(refusal))
        rendered = families(read_status(out / PARTS), supervisor.restarts)
        body = render([("", rendered)], prefix="holdfast_pipeline_")
        return web.Response(body=body.encode(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port)
        try:
            await site.start()
        except OSError as error:
            raise UsageError(f"--metrics-port {port} cannot be used: {error.strerror}") from error
        notify(f"metrics at http://127.0.0.1:{runner.addresses[0][1]}/metrics")
        yield
    finally:
        await runner.cleanup()


# --- watching


def watch(args: argparse.Namespace) -> int:
    return run_in_own_loop(_watch(args))


async def _watch(args: argparse.Namespace) -> int:
    from holdfast.cli.setup.journals import to_read
    from holdfast.pipeline.status import watched_page

    folder = Path(args.out) if args.out else None
    is_live = sys.stdout.isatty()
    async with to_read(args.journal) as journal:
        while True:
            lines = await watched_page(journal, args.watch, folder=folder)
            text = visible("\n".join(lines))
            print(f"\x1b[H\x1b[2J{text}" if is_live else text, flush=True)
            if not is_live or await _is_over(journal, args.watch):
                return Exit.OK
            await asyncio.sleep(WATCH_SECONDS)


async def _is_over(journal: "Journal", name: str) -> bool:
    from holdfast.pipeline.status import pool_of

    return (await (await pool_of(journal, name)).stats()).is_over
