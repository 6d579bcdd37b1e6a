"""`holdfast show`: shows a run or one trajectory."""

import argparse
from collections import Counter

import msgspec

from holdfast.cli.commands.runs import show_table
from holdfast.cli.commands.runs.show_steps import step_lines
from holdfast.cli.setup.errors import advice, say
from holdfast.cli.setup.journals import to_read
from holdfast.cli.terminal.colours import paint
from holdfast.cli.terminal.text import date_text, print_json, visible, visible_name
from holdfast.engine.export.export import failure_rows, history_of, trajectory_row
from holdfast.engine.export.prices import Prices, chosen_prices
from holdfast.engine.report import as_text, build, many, sampled_text, usage_text
from holdfast.journal.sql.find_run import run_named
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import TrajectoryRow
from holdfast.records.encoding.tokens import count
from holdfast.records.errors import UsageError
from holdfast.records.exit_codes import Exit
from holdfast.records.failure import Failure, fold_traceback, shortened
from holdfast.records.run import Run
from holdfast.records.samples.summary import last_failure
from holdfast.records.step import AttemptStarted
from holdfast.records.trajectory import Status
from holdfast.records.view import TrajectoryView
from holdfast.training.report import as_lines, open_collector

MAX_LISTED = 40
MAX_NAMED = 5


async def show(args: argparse.Namespace) -> int:
    if args.trajectory and args.status:
        raise UsageError(
            "--status is for the list of a run's trajectories; leave one of the two out"
        )
    async with to_read(args.journal) as journal:
        run = await run_named(journal, args.run)
        if args.trajectory:
            return await _trajectory(args, journal, run)
        return await _run(args, journal, run)


async def _run(args: argparse.Namespace, journal: Journal, run: Run) -> Exit:
    training = await open_collector(journal, run)
    limit = None if args.all or args.json else MAX_LISTED
    listing = show_table.RunListing(status=args.status, limit=limit)
    prices = chosen_prices(args.price)
    report = await build(journal, run, also=training.take, every=listing.take, prices=prices)
    if args.json:
        fields = msgspec.to_builtins(report)
        fields["training"] = msgspec.to_builtins(training.reports())
        fields["spec"] = msgspec.to_builtins(run.spec)
        fields["changes"] = msgspec.to_builtins(run.changes)
        fields["rows"] = [show_table.as_fields(row) for row in listing.rows]
        print_json(fields)
    else:
        lines = await _lines_of(listing, journal, run)
        trained = [line for each in training.reports() for line in as_lines(each)]
        text = as_text(report, training=trained, full_tracebacks=args.full_tracebacks)
        print(visible("\n".join([text, *_changes(run), ""])))
        print("\n".join(lines))
    if report.corrupt:
        return say(
            f"{many(len(report.corrupt), 'corrupt log')}; {advice(args.journal)}", Exit.CORRUPT
        )
    return Exit.OK


def _changes(run: Run) -> list[str]:
    lines = [] if run.spec.origin is None else [shortened(run.spec.origin.line)]
    for change in run.changes:
        lines.append(f"changes accepted {date_text(change.at)}:")
        lines += [f"  {line}" for line in change.differences]
    return lines


async def _lines_of(listing: show_table.RunListing, journal: Journal, run: Run) -> list[str]:
    if listing.status and not listing.rows:
        return [f"no trajectory is {listing.status}"]
    lines = await show_table.lines(journal, run, listing.rows)
    if listing.count > len(listing.rows):
        lines.append(f"… and {listing.count - len(listing.rows)} more (--all)")
    return lines


async def _trajectory(args: argparse.Namespace, journal: Journal, run: Run) -> Exit:
    row = find(await journal.trajectories(run), args.trajectory, run.spec.name)
    task = (await journal.tasks(run))[row.ordinal]
    view = TrajectoryView(row.key, task, await history_of(journal, row))
    if args.json:
        print_json(
            trajectory_row(view, chosen_prices(args.price))
            | {
                "attempt_records": [_attempt(attempt) for attempt in view.history.attempts],
                "failure_records": failure_rows(view),
                "ignored": _ignored(view),
            }
        )
    else:
        lines = _lines(view, chosen_prices(args.price), full=args.full_tracebacks)
        print(_paint_head(visible("\n".join(lines)), view))
    return Exit.OK


def _paint_head(text: str, view: TrajectoryView) -> str:
    """Colours the status in a trajectory's first line, where it follows the name."""
    head, status = f"{visible_name(str(view.key))}: ", view.status.name
    return f"{head}{paint(status, status)}{text[len(head) + len(status) :]}"


def find(rows: list[TrajectoryRow], name: str, run: str) -> TrajectoryRow:
    """Returns the trajectory with that name: a full name or a task's id, with or without the run's
    name before it. Ids may contain any characters, even slashes. So full names are tried before
    tasks' ids, and the typed text before the text without the run's name. Raises `UsageError` if
    none has the name."""
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
    """Returns the fields that were removed from an agent's requests, each with the number of
    requests that had it."""
    return Counter(field for call in view.history.calls.values() for field in call.ignored)


def _refusals(view: TrajectoryView) -> list[str]:
    """Returns one line for each refused call of an agent. The line says whether the agent asked
    again."""
    lines = []
    for refusal in view.history.refusals.values():
        then = "asked again and answered" if refusal.answer else "never answered"
        call = f"attempt {refusal.attempt}: {refusal.wire} was refused ({refusal.status}), {then}"
        lines.append(f"{call}: {refusal.message}")
    return lines


def _lines(view: TrajectoryView, prices: Prices | None, *, full: bool) -> list[str]:
    history = view.history
    # The recorded reason is the failure's root without numbers, so equal failures have equal texts.
    failed = (failure for failure in reversed(_failures(view)) if failure.root == view.reason)
    reason = next((failure.line for failure in failed), shortened(view.reason))
    reward = "none" if history.reward is None else f"{history.reward:g}"
    facts = [
        f"{view.status.name}{f' ({reason})' if reason else ''}",
        f"reward {reward}",
        many(len(history.attempts), "attempt"),
        many(len(view.turns), "turn"),
        sampled_text(history.sampled_tokens, uncounted=history.uncounted_turns),
        *([many(history.life, "refill")] if history.life else []),
        *([many(history.prefix_breaks, "prefix break")] if history.prefix_breaks else []),
    ]
    lines = [
        f"{visible_name(str(view.key))}: {', '.join(facts)}",
        *_usage(view, prices),
    ]
    if history.scored:
        lines += [f"  {name}: {value:g}" for name, value in history.scored.metrics.items()]
        for name, text in history.scored.reasons.items():
            about = f"{name} (why)" if name in history.scored.metrics else name
            lines.append(f"  {about}: {text}")
    lines += [
        f"attempt {started.attempt}: {date_text(started.at)}, {started.worker}"
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
    lines += step_lines(view)
    for path, draft in history.drafts.items():
        lines.append(
            f"[{path}] assistant, unfinished: {many(count(draft.ids), 'durable token')}; it goes "
            "on from there"
        )
    for failure in history.close_failures:
        text = f"{failure.type}: {failure.message}"
        lines.append(f"\nthe environment of step {failure.step} could not be closed: {text}")
    for failure in _failures(view):
        lines += _failure_lines(view, failure, full=full)
    return lines


def _failure_lines(view: TrajectoryView, failure: Failure, *, full: bool) -> list[str]:
    """Returns the lines about a failure. A failure that a retry overcame has one line. The failure
    that ended the trajectory also has its traceback. With `full`, every failure has its whole
    traceback."""
    where = f" at step {failure.step}" if failure.step else ""
    head = f"\nattempt {failure.attempt} failed in its {failure.phase}{where} [{failure.cause}]:"
    is_end = view.status is Status.FAILED and failure is last_failure(view.history)
    if not (is_end or full):
        return [f"{head} {failure.line}"]
    traceback = failure.traceback if full else fold_traceback(failure.traceback)
    return [head, *(f"    {line}" for line in traceback.rstrip().splitlines())]


def _usage(view: TrajectoryView, prices: Prices | None) -> list[str]:
    """Returns lines about the usage of everything that was ever sampled for the trajectory,
    including steps that were discarded later."""
    used = view.history.used
    counted = {model: usage for model, usage in used.items() if usage.total_tokens}
    lines = [f"  {model}: {usage_text(usage.as_fields())}" for model, usage in counted.items()]
    return lines if prices is None else [*lines, f"  cost: {prices.cost_of(used)}"]


def _failures(view: TrajectoryView) -> list[Failure]:
    return [*view.history.failures, *view.history.scoring_failures]
