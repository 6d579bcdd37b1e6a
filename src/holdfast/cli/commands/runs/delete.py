"""`holdfast rm` and `holdfast prune`: delete runs, after a question, and free their space."""

import argparse
import sys
import time
from collections.abc import Sequence

from msgspec import structs

from holdfast.cli.commands.runs.list_runs import training_of
from holdfast.cli.setup.journals import to_change, to_read
from holdfast.cli.terminal.text import age_text, bytes_text, notify, print_json, visible_name
from holdfast.engine.open_run import is_training
from holdfast.engine.report import many
from holdfast.journal.sql.find_run import run_named
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import RunRow
from holdfast.records.encoding.redaction import redact
from holdfast.records.errors import JournalError, RunHeld, UsageError
from holdfast.records.exit_codes import Exit

CRITERIA = "--older-than, --tag, --untagged, --unfinished, --keep"


async def rm(args: argparse.Namespace) -> int:
    async with to_read(args.journal) as journal:
        for name in args.runs:
            await run_named(journal, name)
        rows = _with_evaluations(await journal.runs(), set(args.runs))
    if not _is_wanted(args, rows):
        return _kept()
    async with to_change(args.journal) as journal:
        gone = [await _delete(args, journal, row.name) for row in rows]
        await _finish(args, journal, gone)
    return Exit.OK


def _with_evaluations(rows: Sequence[RunRow], names: "set[str]") -> list[RunRow]:
    """Returns the runs with these names, and the evaluations of the trainings among them, because a
    training is listed and deleted together with its evaluations."""
    return [row for row in rows if row.name in names or training_of(row.name, names)]


async def prune(args: argparse.Namespace) -> int:
    conditions = (args.older_than, args.tag, args.untagged, args.unfinished, args.keep)
    chooses = any(value is not None and value is not False for value in conditions)
    async with to_read(args.journal) as journal:
        rows = await (_chosen(args, journal) if chooses else _left_behind(journal))
    if not (rows or chooses):
        raise UsageError(
            f"no unnamed run was left unfinished; say which runs are to go: {CRITERIA}; "
            "`holdfast rm` deletes by name"
        )
    busy = [row for row in rows if row.live_workers]
    rows = [row for row in rows if not row.live_workers]
    for row in busy:
        notify(f"{visible_name(row.name)} stays: {', '.join(row.live_workers)} works on it")
    if args.dry_run or not rows:
        if args.json:
            print_json({"deleted": [], "chosen": [row.name for row in rows], "freed": 0})
        else:
            head = f"would delete {many(len(rows), 'run')} (without --dry-run):"
            print("\n".join([head, *map(_line, rows)]) if rows else "there is nothing to delete")
        return Exit.OK
    if not _is_wanted(args, rows):
        return _kept()
    async with to_change(args.journal) as journal:
        gone = [await _delete_unless_held(args, journal, row.name) for row in rows]
        await _finish(args, journal, gone)
    return Exit.OK


async def _chosen(args: argparse.Namespace, journal: Journal) -> list[RunRow]:
    rows = await journal.runs()
    names = {row.name for row in rows}
    # The evaluations of a training are deleted with the training.
    own = [row for row in rows if training_of(row.name, names) is None]
    chosen = [row for row in own if await _fits(args, journal, row)]
    newest_first = sorted(chosen, key=lambda row: row.created, reverse=True)
    return _with_evaluations(rows, {row.name for row in newest_first[args.keep or 0 :]})


async def _left_behind(journal: Journal) -> list[RunRow]:
    """Returns the runs without a name from the user that were never finished or tagged. Leaves out
    the newest run of each series, because the same command would continue it."""
    rows = {row.name: row for row in await journal.runs()}
    specs = {name: (await run_named(journal, name)).spec for name in rows}
    newest = {spec.series: name for name, spec in specs.items()}
    return [
        row
        for name, row in rows.items()
        if specs[name].is_unnamed
        and not specs[name].tags
        and newest[specs[name].series] != name
        and not _is_finished(row)
    ]


def _is_finished(row: RunRow) -> bool:
    return row.sealed and row.settled >= sum(row.by_status.values())


async def _fits(args: argparse.Namespace, journal: Journal, row: RunRow) -> bool:
    tags = (await run_named(journal, row.name)).spec.tags
    return (
        (args.older_than is None or time.time() - row.created >= args.older_than)
        and (args.tag is None or args.tag in tags)
        and not (args.untagged and tags)
        and not (args.unfinished and _is_finished(row))
    )


def _is_wanted(args: argparse.Namespace, rows: Sequence[RunRow]) -> bool:
    if args.yes:
        return True
    if not sys.stdin.isatty():
        names = ", ".join(visible_name(row.name) for row in rows)
        raise UsageError(f"nobody can be asked here whether to delete {names}; add --yes")
    for row in rows:
        print(_line(row), file=sys.stderr)
    what = "this run" if len(rows) == 1 else f"these {len(rows)} runs"
    print(f"Delete {what} for good? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _line(row: RunRow) -> str:
    total = sum(row.by_status.values())
    return (
        f"  {visible_name(row.name)}: begun {age_text(time.time() - row.created)} ago, "
        f"{row.settled} of {many(total, 'trajectory')} settled"
    )


def _kept() -> Exit:
    notify("nothing was deleted")
    return Exit.USAGE


Gone = dict[str, object]
"""What was deleted of one run; {} if the run was not deleted."""


async def _delete_unless_held(args: argparse.Namespace, journal: Journal, name: str) -> Gone:
    """Deletes a run, unless another process has begun to work on it."""
    try:
        return await _delete(args, journal, name)
    except RunHeld as error:
        notify(f"{visible_name(name)} stays: {error}")
        return {}


async def _delete(args: argparse.Namespace, journal: Journal, name: str) -> Gone:
    run = await journal.find_run(name)
    if run is None:
        return {}  # Another process has deleted it.
    has_checkpoints = await is_training(journal, run)
    gone = await journal.delete_run(run)
    parts = [many(gone.trajectories, "trajectory"), many(gone.records, "record")]
    parts += [many(gone.blobs, "blob")] if gone.blobs else []
    stay = "; its checkpoints are files, and stay" if has_checkpoints else ""
    if not args.json:
        print(f"deleted {visible_name(name)}: {', '.join(parts)}{stay}", flush=True)
    return {"name": name, **structs.asdict(gone)}


async def _finish(args: argparse.Namespace, journal: Journal, gone: Sequence[Gone]) -> None:
    """Frees the space of deleted runs, if there are any, and reports it."""
    freed = 0
    if not any(gone):
        if args.json:
            print_json({"deleted": [], "freed": freed})
        else:
            notify("nothing was deleted")
        return
    try:
        freed = await journal.compact()
    except JournalError as error:
        notify(
            f"the space is used again by what is recorded next; it was not given back: {error} "
            f"(`holdfast journal compact {args.journal}`)"
        )
    else:
        if not args.json:
            print(f"{redact(args.journal)} is {bytes_text(freed)} smaller")
    if args.json:
        print_json({"deleted": [run for run in gone if run], "freed": freed})
