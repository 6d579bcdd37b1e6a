"""`holdfast runs` and `holdfast show`."""

import argparse
import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from holdfast.cli.commands import show_table
from holdfast.cli.setup.errors import advice, say
from holdfast.cli.setup.journals import to_read
from holdfast.cli.terminal.exit_codes import Exit
from holdfast.cli.terminal.text import print_json, visible, visible_name
from holdfast.engine.export.export import failure_rows, history_of, trajectory_row
from holdfast.engine.report import as_text, build, many
from holdfast.journal.find_run import run_named
from holdfast.journal.journal import Journal, RunRow, TrajectoryRow
from holdfast.records.encoding.tokens import count
from holdfast.records.errors import UsageError
from holdfast.records.failure import Failure, shortened
from holdfast.records.message import Message, Role
from holdfast.records.run import Run
from holdfast.records.step import (
    AttemptStarted,
    EnvironmentStepped,
    Generated,
    Step,
    ToolIntent,
    ValueRecorded,
)
from holdfast.records.trajectory import Status
from holdfast.records.view import TrajectoryView

MAX_LISTED = 40
MAX_NAMED = 5


def runs(args: argparse.Namespace) -> int:
    return asyncio.run(_runs(args))


async def _runs(args: argparse.Namespace) -> int:
    journal = to_read(args.journal)
    try:
        found = await journal.runs()
    finally:
        await journal.close()
    if args.json:
        print_json(found)
        return Exit.OK
    if not found:
        print(f"{args.journal} has no runs yet")
    for row in found:
        total = sum(row.by_status.values())
        print(
            f"{row.name}: {_date(row.created)}, {many(row.tasks, 'task')} × "
            f"{many(row.samples, 'sample')}, "
            f"{row.settled} of {total} settled ({_counts(row)})"
        )
        for worker in row.live_workers:
            print(f"  being worked on by {worker}")
    return Exit.OK


def _counts(row: RunRow) -> str:
    """What is recorded as running runs only while somebody is there to run it."""
    left = "unfinished: nobody works on them"
    running = Status.RUNNING.name if row.live_workers else left
    names = {Status.RUNNING.name: running}
    return ", ".join(
        f"{total} {names.get(status, status)}" for status, total in row.by_status.items()
    )


def show(args: argparse.Namespace) -> int:
    return asyncio.run(_show(args))


async def _show(args: argparse.Namespace) -> int:
    if args.trajectory and args.status:
        raise UsageError(
            "--status is for the list of a run's trajectories; leave one of the two out"
        )
    journal = to_read(args.journal)
    try:
        run = await run_named(journal, args.run)
        if args.trajectory:
            return await _trajectory(args, journal, run)
        return await _run(args, journal, run)
    finally:
        await journal.close()


async def _run(args: argparse.Namespace, journal: Journal, run: Run) -> Exit:
    report = await build(journal, run)
    rows = await journal.trajectories(run)
    if args.status:
        rows = [row for row in rows if row.status.name == args.status]
    if args.json:
        fields = msgspec.to_builtins(report)
        fields["spec"] = msgspec.to_builtins(run.spec)
        fields["changes"] = msgspec.to_builtins(run.changes)
        fields["rows"] = [
            show_table.as_fields(row) for row in await show_table.read_listed(journal, rows)
        ]
        print_json(fields)
    else:
        listing = await _listing(args, journal, run, rows)
        print(visible("\n".join([as_text(report), *_changes(run), "", *listing])))
    if report.corrupt:
        return say(
            f"{many(len(report.corrupt), 'corrupt log')}; {advice(args.journal)}", Exit.CORRUPT
        )
    return Exit.OK


def _changes(run: Run) -> list[str]:
    lines = []
    for change in run.changes:
        lines.append(f"changes accepted {_date(change.at)}:")
        lines += [f"  {line}" for line in change.differences]
    return lines


async def _listing(
    args: argparse.Namespace, journal: Journal, run: Run, rows: list[TrajectoryRow]
) -> list[str]:
    listed = rows if args.all else rows[:MAX_LISTED]
    lines = await show_table.lines(journal, run, await show_table.read_listed(journal, listed))
    if len(rows) > len(listed):
        lines.append(f"… and {len(rows) - len(listed)} more (--all)")
    return lines


async def _trajectory(args: argparse.Namespace, journal: Journal, run: Run) -> Exit:
    row = find(await journal.trajectories(run), args.trajectory, run.spec.name)
    task = (await journal.tasks(run))[row.ordinal]
    view = TrajectoryView(row.key, task, await history_of(journal, row))
    if args.json:
        print_json(
            trajectory_row(view)
            | {
                "attempt_records": [_attempt(attempt) for attempt in view.history.attempts],
                "failure_records": failure_rows(view),
                "ignored": _ignored(view),
            }
        )
    else:
        print(visible("\n".join(_lines(view))))
    return Exit.OK


def find(rows: list[TrajectoryRow], name: str, run: str) -> TrajectoryRow:
    """The trajectory of that name. Ids may hold anything, slashes included: the whole name goes
    before a task alone, and what was typed before what it may be short for."""
    short = name.removeprefix(f"{run}/")
    for names in (
        show_table.short,
        _raw,
        lambda row: visible_name(row.key.task),
        lambda row: row.key.task,
    ):
        for candidate in (name, short):
            for row in rows:
                if names(row) == candidate:
                    return row
    listed = ", ".join(show_table.short(row) for row in rows[:MAX_NAMED])
    raise UsageError(
        f"run {run!r} has no trajectory {name!r}; it has {listed}"
        f"{', …' if len(rows) > MAX_NAMED else ''} (`holdfast show {run} --all` lists them)"
    )


def _raw(row: TrajectoryRow) -> str:
    return f"{row.key.task}/{row.key.sample}"


def _attempt(started: AttemptStarted) -> dict[str, object]:
    return {"attempt": started.attempt, "worker": started.worker, "at": started.at}


def _ignored(view: TrajectoryView) -> dict[str, int]:
    """What was left out of an agent's requests, and of how many."""
    return Counter(field for call in view.history.calls.values() for field in call.ignored)


def _refusals(view: TrajectoryView) -> list[str]:
    """What the agent was not answered, and what became of it."""
    lines = []
    for refusal in view.history.refusals.values():
        then = "asked again and answered" if refusal.answer else "never answered"
        call = f"attempt {refusal.attempt}: {refusal.wire} was refused ({refusal.status}), {then}"
        lines.append(f"{call}: {refusal.message}")
    return lines


def _lines(view: TrajectoryView) -> list[str]:
    history = view.history
    # The recorded reason is the failure's root, without numbers, so that like failures are one.
    failed = (failure for failure in reversed(_failures(view)) if failure.root == view.reason)
    reason = next((failure.line for failure in failed), shortened(view.reason))
    reward = "none" if history.reward is None else f"{history.reward:g}"
    lines = [
        (
            f"{visible_name(str(view.key))}: {view.status.name}"
            f"{f' ({reason})' if reason else ''}, reward {reward}, "
            f"{many(len(history.attempts), 'attempt')}, {many(len(view.turns), 'turn')}, "
            f"{many(history.sampled_tokens, 'sampled token')}, {many(history.life, 'refill')}, "
            f"{many(history.prefix_breaks, 'prefix break')}"
        )
    ]
    if history.scored:
        lines += [f"  {name}: {value:g}" for name, value in history.scored.metrics.items()]
        lines += [f"  {name}: {text}" for name, text in history.scored.reasons.items()]
    lines += [
        f"attempt {started.attempt}: {_date(started.at)}, {started.worker}"
        for started in history.attempts
    ]
    for ignored, calls in _ignored(view).items():
        lines.append(
            f"{ignored} was left out of {many(calls, 'call')}, as the gateway's options say"
        )
    lines += _refusals(view)
    for fork in history.forks:
        lines.append(f"forked at step {fork.path}: {fork.reason}")
        lines += [f"    {line}" for line in fork.difference.splitlines()]
    prompts = {turn.step.path: turn.prompt for turn in view.turns}
    # Tools that are steps are listed with their results; those of an agent are only in its prompts.
    has_tools = any(isinstance(step, ToolIntent) for step in history.steps.values())
    for path, step in history.steps.items():
        lines += _prompt(prompts.get(path, ()), tools_are_steps=has_tools)
        lines += _step(path, step, view)
    for path, draft in history.drafts.items():
        lines.append(
            f"[{path}] assistant, unfinished: {many(count(draft.ids), 'durable token')}; it goes "
            "on from there"
        )
    for failure in history.close_failures:
        text = f"{failure.type}: {failure.message}"
        lines.append(f"\nthe environment of step {failure.step} could not be closed: {text}")
    for failure in _failures(view):
        where = f" at step {failure.step}" if failure.step else ""
        lines.append(
            f"\nattempt {failure.attempt} failed in its {failure.phase}{where} [{failure.cause}]:"
        )
        lines += [f"    {line}" for line in failure.traceback.rstrip().splitlines()]
    return lines


def _prompt(messages: Sequence[Message], *, tools_are_steps: bool) -> list[str]:
    """What is new to the policy. To a branch, and after its history was rewritten, that is a
    conversation: its replies come with their calls, and these with their results."""
    lines = []
    is_conversation = False
    for message in messages:
        if message.role is Role.TOOL and tools_are_steps and not is_conversation:
            continue
        is_conversation = is_conversation or message.role is Role.ASSISTANT
        lines.append(f"{message.role}: {message.readable}")
        lines += _calls(message)
    return lines


def _calls(message: Message) -> list[str]:
    return [f"    calls {call.name}({call.arguments})" for call in message.tool_calls]


def _failures(view: TrajectoryView) -> list[Failure]:
    return [*view.history.failures, *view.history.scoring_failures]


def _step(path: str, step: Step, view: TrajectoryView) -> list[str]:
    match step:
        case Generated():
            broken = f", PREFIX BREAK: {step.prefix_break}" if step.prefix_break else ""
            if step.seams:
                broken = f", went on at token {', '.join(map(str, step.seams))}{broken}"
            return [
                (
                    f"[{path}] assistant ({many(count(step.ids), 'token')} after a prompt of "
                    f"{step.keep + count(step.delta):,}, {step.finish_reason}, {_versions(step)}, "
                    f"{many(step.tries, 'try')}{broken}): {step.message.text}"
                ),
                *_calls(step.message),
            ]
        case ToolIntent():
            result = view.history.results.get(path)
            outcome = "no result yet" if result is None else result.error or "ok"
            content = "" if result is None else result.content
            return [f"[{path}] tool {step.name}({step.arguments}) {outcome}: {content}"]
        case ValueRecorded():
            return [f"[{path}] value {step.name}: {msgspec.msgpack.decode(step.value)!r}"]
        case EnvironmentStepped() if step.is_opening:
            return [f"[{path}] environment opened with seed {step.action}: {step.observation}"]
        case EnvironmentStepped():
            outcome = f"{step.error}: " if step.error else ""
            ends = ", done" if step.done else ", truncated" if step.truncated else ""
            answer = f"{outcome}{step.observation} (reward {step.reward:g}{ends})"
            return [f"[{path}] environment {step.action!r}: {answer}"]


def _versions(step: Generated) -> str:
    if len(step.versions) == 1:
        return f"version {step.versions[0].version or 'unknown'}"
    return "versions " + ", ".join(
        f"{span.version or 'unknown'} {span.start}–{span.end}" for span in step.versions
    )


def _date(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
