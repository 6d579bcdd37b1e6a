"""`holdfast runs` and `holdfast show`."""

import argparse
import asyncio
from datetime import UTC, datetime

import msgspec

from holdfast.cli.exit import Exit
from holdfast.cli.reading import named, to_read
from holdfast.engine.export import failure_rows, trajectory_row
from holdfast.engine.report import as_text, build
from holdfast.journal.journal import Journal, TrajectoryRow
from holdfast.records.errors import UsageError
from holdfast.records.history import History
from holdfast.records.run import Run
from holdfast.records.step import Generated, Step, ToolIntent, ValueRecorded
from holdfast.records.tokens import count
from holdfast.records.view import TrajectoryView

LISTED = 40


def runs(args: argparse.Namespace) -> int:
    return asyncio.run(_runs(args))


async def _runs(args: argparse.Namespace) -> int:
    journal = to_read(args.journal)
    try:
        found = await journal.runs()
    finally:
        await journal.close()
    if args.json:
        print(msgspec.json.encode(found).decode())
        return Exit.OK
    if not found:
        print(f"{args.journal} has no runs yet")
    for row in found:
        counts = ", ".join(f"{total} {name}" for name, total in row.by_status.items())
        total = sum(row.by_status.values())
        print(
            f"{row.name}: {_date(row.created)}, {row.tasks} tasks × {row.samples} samples, "
            f"{row.settled} of {total} settled ({counts})"
        )
        for worker in row.live_workers:
            print(f"  being worked on by {worker}")
    return Exit.OK


def show(args: argparse.Namespace) -> int:
    return asyncio.run(_show(args))


async def _show(args: argparse.Namespace) -> int:
    journal = to_read(args.journal)
    try:
        run = await named(journal, args.run)
        if args.trajectory:
            await _trajectory(args, journal, run)
        else:
            await _run(args, journal, run)
    finally:
        await journal.close()
    return Exit.OK


async def _run(args: argparse.Namespace, journal: Journal, run: Run) -> None:
    report = await build(journal, run)
    listed = await journal.trajectories(run)
    if args.json:
        told = msgspec.to_builtins(report)
        told["spec"] = msgspec.to_builtins(run.spec)
        told["changes"] = msgspec.to_builtins(run.changes)
        told["rows"] = msgspec.to_builtins(listed)
        print(msgspec.json.encode(told).decode())
        return
    print(as_text(report))
    for change in run.changes:
        print(f"changes accepted {_date(change.at)}:")
        print("\n".join(f"  {line}" for line in change.differences))
    print()
    for row in listed if args.all else listed[:LISTED]:
        owner = f", {row.owner}" if row.owner else ""
        print(f"{row.key.task}/{row.key.sample}  {row.status.name}  {row.records} records{owner}")
    if len(listed) > LISTED and not args.all:
        print(f"… and {len(listed) - LISTED} more (--all)")


async def _trajectory(args: argparse.Namespace, journal: Journal, run: Run) -> None:
    row = _find(await journal.trajectories(run), args.trajectory, run.spec.name)
    task = (await journal.tasks(run))[row.ordinal]
    view = TrajectoryView(row.key, task, History(await journal.history(row.id)))
    if args.json:
        told = trajectory_row(view) | {"failure_records": failure_rows(view)}
        print(msgspec.json.encode(told).decode())
    else:
        print("\n".join(_lines(view)))


def _find(rows: list[TrajectoryRow], wanted: str, run: str) -> TrajectoryRow:
    name = wanted.removeprefix(f"{run}/")
    for row in rows:
        if name in (f"{row.key.task}/{row.key.sample}", row.key.task):
            return row
    raise UsageError(f"run {run!r} has no trajectory {wanted!r}; `holdfast show {run}` lists them")


def _lines(view: TrajectoryView) -> list[str]:
    history = view.history
    reward = "none" if history.reward is None else f"{history.reward:g}"
    lines = [
        f"{view.key}: {view.status.name}{f' ({view.reason})' if view.reason else ''}, "
        f"reward {reward}, {len(history.attempts)} attempts, "
        f"{len(history.generations)} turns, {history.sampled_tokens:,} sampled tokens, "
        f"{history.life} refills, {history.prefix_breaks} prefix breaks"
    ]
    if history.scored:
        lines += [f"  {name}: {value:g}" for name, value in history.scored.metrics.items()]
        lines += [f"  {name}: {text}" for name, text in history.scored.reasons.items()]
    lines += [f"attempt {one.attempt}: {_date(one.at)}, {one.worker}" for one in history.attempts]
    for fork in history.forks:
        lines.append(f"forked at step {fork.path}: {fork.reason}")
        lines += [f"    {line}" for line in fork.difference.splitlines()]
    prompts = {turn.step.path: turn.prompt for turn in view.turns}
    for path, step in history.steps.items():
        for message in prompts.get(path, ()):
            if message.role != "tool":
                lines.append(f"{message.role}: {message.text}")
        lines += _step(path, step, view)
    for failure in (*history.failures, *history.scoring_failures):
        where = f" at step {failure.step}" if failure.step else ""
        lines.append(
            f"\nattempt {failure.attempt} failed while {failure.phase}{where} [{failure.cause}]:"
        )
        lines += [f"    {line}" for line in failure.traceback.rstrip().splitlines()]
    return lines


def _step(path: str, step: Step, view: TrajectoryView) -> list[str]:
    match step:
        case Generated():
            versions = ", ".join(
                f"{span.version or 'unknown version'} {span.start}–{span.end}"
                for span in step.versions
            )
            broken = f", PREFIX BREAK: {step.prefix_break}" if step.prefix_break else ""
            return [
                f"[{path}] assistant ({count(step.ids)} tokens after "
                f"{step.keep + count(step.delta)}, {step.finish_reason}, {versions}, "
                f"{step.tries} tries{broken}): {step.message.text}",
                *(f"    calls {one.name}({one.arguments})" for one in step.message.tool_calls),
            ]
        case ToolIntent():
            result = view.history.results.get(path)
            told = "no result yet" if result is None else result.error or "ok"
            content = "" if result is None else result.content
            return [f"[{path}] tool {step.name}({step.arguments}) {told}: {content}"]
        case ValueRecorded():
            return [f"[{path}] value {step.name}: {msgspec.msgpack.decode(step.value)!r}"]
        case _:
            return [f"[{path}] environment {step.action}: {step.observation} ({step.reward:g})"]


def _date(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
