"""`holdfast run`: everything is checked before anything is done."""

import argparse
import asyncio
import os
import shlex
import sys
from pathlib import Path

import msgspec

from holdfast.cli.display import displayed
from holdfast.cli.errors import code_of, say
from holdfast.cli.exit import Exit
from holdfast.cli.loading import load_module, rollout_in, scorer_in, split
from holdfast.cli.signals import Signals
from holdfast.engine.engine import Ending, Engine
from holdfast.engine.progress import Progress
from holdfast.engine.report import RunReport, as_text, build
from holdfast.engine.run import free_name, open_run
from holdfast.engine.scorer import Scorer
from holdfast.engine.settings import ScoringPolicy, Settings
from holdfast.engine.stop import Stop
from holdfast.journal import open_journal
from holdfast.journal.journal import Journal
from holdfast.policy.completions import CompletionsPolicy
from holdfast.policy.renderer import ByteRenderer
from holdfast.policy.retry import RetryPolicy
from holdfast.records.errors import HoldfastError
from holdfast.records.group import GroupPolicy, Shortfall
from holdfast.records.run import Run, RunSpec
from holdfast.records.sampling import Sampling
from holdfast.records.task import Task, read_tasks, tasks_digest
from holdfast.rollout.processor import RolloutProcessor, as_processor, fingerprint_of
from holdfast.rollout.session import OnDivergence


class Work(msgspec.Struct):
    """The command, read and checked."""

    spec: RunSpec
    settings: Settings
    tasks: list[Task]
    processor: RolloutProcessor
    scorer: Scorer | None


def run(args: argparse.Namespace) -> int:
    return asyncio.run(_run(args, _read(args)))


def _read(args: argparse.Namespace) -> Work:
    path, name = split(args.rollout)
    tasks = read_tasks(Path(args.tasks))
    module = load_module(path)
    rollout = rollout_in(module, path, name)
    scorer = scorer_in(module, path, args.scorer)
    spec = RunSpec(
        name=args.run,
        samples=args.samples,
        model=args.model,
        sampling=Sampling(args.max_tokens, args.temperature, args.top_p),
        seed=args.seed,
        rollout=fingerprint_of(rollout),
        scorer="" if scorer is None else fingerprint_of(scorer),
        renderer=ByteRenderer.name,
        tasks=tasks_digest(tasks),
        group=GroupPolicy(args.group_refill, Shortfall(args.group_shortfall), args.group_at_least),
    )
    return Work(
        spec=spec,
        settings=_settings(args),
        tasks=tasks,
        processor=as_processor(rollout),
        scorer=None if scorer is None else Scorer(scorer),  # type: ignore[arg-type]
    )


def _settings(args: argparse.Namespace) -> Settings:
    return Settings(
        concurrency=args.concurrency,
        max_retry=args.max_retry,
        attempt_deadline=args.attempt_deadline,
        run_deadline=args.run_deadline,
        lease_seconds=args.lease,
        grace=args.grace,
        on_divergence=OnDivergence(args.on_divergence),
        scoring=ScoringPolicy(tries=args.scorer_tries, timeout=args.scorer_timeout),
        join=args.join,
    )


async def _run(args: argparse.Namespace, work: Work) -> int:
    policy = CompletionsPolicy(
        args.policy,
        work.spec.model,
        api_key=os.environ.get(args.api_key_env),
        retry=RetryPolicy(args.call_tries, args.call_deadline, args.try_timeout),
        patience=args.patience,
    )
    try:
        await policy.check()
        journal = open_journal(args.journal)
        try:
            return await _in_journal(args, work, policy, journal)
        finally:
            await journal.close()
    finally:
        await policy.aclose()


async def _in_journal(
    args: argparse.Namespace, work: Work, policy: CompletionsPolicy, journal: Journal
) -> int:
    spec = work.spec
    if args.new:
        spec = msgspec.structs.replace(spec, name=await free_name(journal, spec.name))
    opened = await open_run(journal, spec, work.tasks, accept_changes=args.accept_changes)
    stop, progress = Stop(), Progress()
    signals = Signals(stop)
    signals.watch()
    engine = Engine(
        run=opened,
        journal=journal,
        policy=policy,
        renderer=ByteRenderer(),
        processor=work.processor,
        scorer=work.scorer,
        settings=work.settings,
        progress=progress,
        stop=stop,
        reopen_failed=args.retry_failed,
    )
    async with displayed(progress, quiet=args.quiet or args.json):
        ending = await engine.work()
    await _no_orphans()
    report = await build(journal, opened)
    _tell(args, opened, report, ending)
    return _code(args, report, ending, signals)


async def _no_orphans() -> None:
    """Ends tasks that user code started and forgot, and says so."""
    current = asyncio.current_task()
    left = [task for task in asyncio.all_tasks() if task is not current]
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=5)
        names = ", ".join(sorted({task.get_name() for task in left})[:5])
        print(
            f"holdfast: ended {len(left)} tasks left behind by the rollouts ({names})",
            file=sys.stderr,
        )


def _tell(args: argparse.Namespace, run: Run, report: RunReport, ending: Ending) -> None:
    for cut in ending.cuts:
        print(
            f"holdfast: {cut.trajectory}: record {cut.seq} at position {cut.position} "
            f"{cut.reason}; it and {cut.lost - 1} after it were set aside, and the trajectory "
            "went on from the last good one",
            file=sys.stderr,
        )
    if args.json:
        summary = msgspec.to_builtins(report) | {"stopped": ending.stopped}
        print(msgspec.json.encode(summary).decode())
    else:
        print(as_text(report))
    if ending.stopped:
        print(f"\nstopped: {ending.stopped}\nto go on: {resume_command(run)}", file=sys.stderr)


def resume_command(run: Run) -> str:
    """The same command, with the name that the run really has."""
    words = [word for word in sys.argv[1:] if word not in ("--new", "--retry-failed")]
    at = next((i for i, word in enumerate(words) if word == "--run"), None)
    if at is not None:
        words[at + 1] = run.spec.name
    else:
        words = [f"--run={run.spec.name}" if w.startswith("--run=") else w for w in words]
    return shlex.join(["holdfast", *words])


def _code(args: argparse.Namespace, report: RunReport, ending: Ending, signals: Signals) -> int:
    if signals.received is not None:
        return signals.received
    if ending.fatal is not None:
        if isinstance(ending.fatal, HoldfastError):
            return say(str(ending.fatal), code_of(ending.fatal))
        raise ending.fatal
    if ending.stopped:
        return Exit.STOPPED
    if report.corrupt:
        return Exit.CORRUPT
    if args.fail_on_permanent_failure and report.permanent_failures:
        return Exit.FAILURES
    return Exit.OK
