"""`holdfast journal check`, `holdfast journal compact` and `holdfast journal ledger`."""

import argparse
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path

import msgspec

from holdfast.cli.setup.journals import to_change, to_read
from holdfast.cli.terminal.text import bytes_text, print_json, visible_name
from holdfast.engine.report import many
from holdfast.journal import is_server, require_driver
from holdfast.journal.damage.check import accept_loss, repair
from holdfast.journal.damage.check import check as check_file
from holdfast.journal.damage.report import Report
from holdfast.journal.sql.find_run import run_named
from holdfast.journal.types import Cut, GroupEnd, LedgerEntry
from holdfast.records.encoding.redaction import redact
from holdfast.records.errors import UsageError
from holdfast.records.exit_codes import Exit
from holdfast.records.samples.version import WeightVersion, newest_of

MAX_NAMED = 16
"""The most groups that are named in one line. `--json` names all groups."""


def check(args: argparse.Namespace) -> "int | Coroutine[None, None, int]":
    if is_server(args.file):
        return _check_server(args)
    path = Path(args.file)
    if not path.is_file():
        if path.exists():
            raise UsageError(f"{path} is not a regular file; name a journal")
        raise UsageError(f"there is no journal at {path}; name one: holdfast journal check FILE")
    loss = accept_loss(path) if args.repair else None
    cuts = repair(path) if args.repair else []
    return _print_report(args, check_file(path), cuts, loss or "")


async def _check_server(args: argparse.Namespace) -> int:
    require_driver(args.file)
    from holdfast.journal.damage.check_server import check_server, repair_server

    cuts, loss = await repair_server(args.file) if args.repair else ([], "")
    return _print_report(args, await check_server(args.file), cuts, loss)


def _print_report(args: argparse.Namespace, report: Report, cuts: list[Cut], loss: str) -> int:
    if args.json:
        made = {"cuts_made": msgspec.to_builtins(cuts), "given_up": loss}
        fields = msgspec.to_builtins(report) | made
        print_json(fields)
    else:
        if loss:
            print(f"gave up: the journal {loss}")
        for cut in cuts:
            print(
                f"cut {visible_name(cut.trajectory)} at record {cut.seq} (position "
                f"{cut.position}): {cut.reason}; {many(cut.lost, 'record')} set aside"
            )
        print(_text(report))
    return Exit.CORRUPT if report.findings else Exit.OK


async def compact(args: argparse.Namespace) -> int:
    async with to_change(args.file, how="as FILE: holdfast journal compact FILE") as journal:
        freed = await journal.compact()
    if args.json:
        print_json({"freed": freed})
    else:
        print(f"{redact(args.file)} is {bytes_text(freed)} smaller")
    return Exit.OK


def _text(report: Report) -> str:
    counts = {
        field: value
        for field, value in msgspec.structs.asdict(report).items()
        if isinstance(value, int)
    }
    totals = ", ".join(many(value, _singular(field)) for field, value in counts.items())
    lines = [f"{report.path}: {totals}"]
    lines += [f"  {visible_name(str(finding))}" for finding in report.findings]
    lines.append(
        "every checksum and invariant holds"
        if report.is_clean
        else f"{many(len(report.findings), 'finding')}; --repair cuts torn logs to their last good "
        "record, and accepts what is lost"
    )
    return "\n".join(lines)


def _singular(field: str) -> str:
    """Returns the singular of a field's name."""
    return f"{field.removesuffix('ies')}y" if field.endswith("ies") else field.removesuffix("s")


# --- copies


async def copy(args: argparse.Namespace) -> int:
    from holdfast.journal.copying.copy_runs import copy_runs

    if not is_server(args.source) and not Path(args.source).is_file():
        raise UsageError(
            f"there is no journal at {args.source}; name one: holdfast journal copy FROM TO [RUN …]"
        )
    copied = await copy_runs(args.source, args.target, args.runs)
    if args.json:
        print_json({"copied": msgspec.to_builtins(copied)})
        return Exit.OK
    for run in copied:
        totals = f"{many(run.trajectories, 'trajectory')}, {many(run.records, 'record')}"
        print(f"{visible_name(run.name)}: {totals}, {many(run.blobs, 'blob')}; both are the same")
    if not copied:
        print(f"{args.source} has no runs")
    return Exit.OK


# --- the ledger


async def ledger(args: argparse.Namespace) -> int:
    ledgers, versions = await _read_ledgers(args)
    if args.json:
        print_json({"run": args.run, "consumers": ledgers, "versions": versions})
        return Exit.OK
    if not ledgers:
        print(f"nobody has consumed run {visible_name(args.run)} yet")
    for consumer, entries in ledgers.items():
        print(f"{visible_name(consumer)}: {_summary(entries)}")
        for line in _table(entries):
            print(f"  {line}")
    if (newest := newest_of(versions)) is not None:
        print(
            f"{many(len(versions), 'weight version')}, the newest {visible_name(newest.name)} "
            f"(step {newest.step})"
        )
    return Exit.OK


async def _read_ledgers(
    args: argparse.Namespace,
) -> tuple[dict[str, list[LedgerEntry]], list[WeightVersion]]:
    async with to_read(args.journal) as journal:
        run = await run_named(journal, args.run)
        consumers = await journal.consumers(run)
        if args.consumer and args.consumer not in consumers:
            known = ", ".join(consumers) or "none"
            raise UsageError(f"run {args.run!r} has no consumer {args.consumer!r}; it has: {known}")
        wanted = [args.consumer] if args.consumer else consumers
        ledgers = {consumer: await journal.ledger(run, consumer) for consumer in wanted}
        return ledgers, await journal.versions(run)


def _summary(entries: list[LedgerEntry]) -> str:
    ends = Counter(entry.end for entry in entries)
    counts = ", ".join(f"{ends[end]} {end}" for end in GroupEnd)
    return f"{many(len(entries), 'group')}: {counts}"


def _table(entries: list[LedgerEntry]) -> list[str]:
    """Returns one line for each trained step, and one for each reason why groups are dismissed or
    open."""
    trained: dict[int, list[str]] = {}
    others: dict[str, list[str]] = {}
    for entry in entries:
        if entry.end is GroupEnd.TRAINED:
            trained.setdefault(entry.step or 0, []).append(entry.task)
        else:
            others.setdefault(f"{entry.end}, {entry.reason}", []).append(entry.task)
    lines = [f"trained in step {step}: {_names(trained[step])}" for step in sorted(trained)]
    return lines + [f"{what}: {_names(tasks)}" for what, tasks in sorted(others.items())]


def _names(tasks: list[str]) -> str:
    shown = ", ".join(visible_name(task) for task in tasks[:MAX_NAMED])
    return shown if len(tasks) <= MAX_NAMED else f"{shown}, … ({len(tasks)})"
