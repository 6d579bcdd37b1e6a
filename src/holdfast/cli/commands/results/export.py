"""`holdfast export`: writes a run's data to a file that is either whole or not there.

The rows go to a temporary file beside the target, which replaces the target when all rows are on
disk. After a kill, the target is unchanged. Only standard output, given as `-`, receives the rows
one by one. If there are no rows, no file is written, and the exit code says so.
"""

import argparse
import sys
from collections import Counter
from collections.abc import AsyncIterator
from itertools import groupby
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec

from holdfast import crashpoint
from holdfast.cli.commands.results.export_csv import FLAT, CsvFile
from holdfast.cli.commands.results.output_file import (
    check_export,
    check_source,
    is_folder,
    output_file,
)
from holdfast.cli.options.runs import TRAINED
from holdfast.cli.setup.errors import say
from holdfast.cli.setup.journals import to_read
from holdfast.cli.terminal.text import print_json
from holdfast.convert.lines import (
    CONVERSATIONS,
    Format,
    FormatOptions,
    format_lines,
    mode_of,
)
from holdfast.convert.selection import Branches, MissingReward
from holdfast.convert.sft import SftLayout
from holdfast.engine.export.atomic_file import whole_file
from holdfast.engine.export.export import Row, What, is_kept, rows
from holdfast.engine.export.prices import chosen_prices
from holdfast.engine.report import many
from holdfast.journal.sql.find_run import run_named
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import TrajectoryRow
from holdfast.records.errors import UsageError
from holdfast.records.exit_codes import Exit
from holdfast.records.run import Run
from holdfast.records.samples.logprobs import Accepted, LogprobsMode

_SINGULAR = {
    What.SAMPLES: "sample",
    What.ROWS: "row",
    What.TRAJECTORIES: "trajectory",
    What.FAILURES: "failure",
    Format.SFT: "conversation",
    Format.ATIF: "trajectory",
    Format.INSPECT: "trajectory",
}
_ENDINGS = {".parquet": "parquet", ".csv": "csv"}
_FOREIGN = (".tsv", ".xlsx", ".xls", ".arrow", ".feather")
_FIXED = (What.SAMPLES, Format.SLIME, Format.TRL)
_ONE_ROW = (Format.TRL, Format.NEMO)
_REWARDED = (Format.VERL, Format.SLIME, Format.NEMO)
_TOKENS = (What.SAMPLES, *(form for form in Format if form not in CONVERSATIONS))


class Sink(Protocol):
    def write(self, row: Row) -> None: ...
    def close(self) -> None: ...


async def export(args: argparse.Namespace) -> int:
    what = What(args.what) if args.what in list(What) else Format(args.what)
    _check_options(args, what)
    target, modes = _target(args), Counter[str]()
    async with to_read(args.journal) as journal:
        run = await run_named(journal, args.run)
        if what is Format.INSPECT and target is not None and is_folder(args.out):
            from holdfast.cli.commands.results.export_traces import log_in

            target = log_in(target, run)
        was_there = target is not None and target.exists()
        if target is not None:
            check_source(target, run, args)
        found = _counted(_rows(journal, run, what, args), modes)
        if target is None:
            written = await _pour(found, _Lines(sys.stdout.buffer))
        elif is_folder(args.out) and what is Format.ATIF:
            from holdfast.cli.commands.results.export_traces import AtifFolder

            written = await _pour(found, AtifFolder(target, force=args.force))
        else:
            written = await _write(found, target, what, run, args)
        rows_now = await journal.trajectories(run)
        unsettled = sum(not (row.settled or row.resting) for row in rows_now)
    if args.json:
        print_json(
            {
                "rows": written,
                "written": bool(written),
                "out": str(target),
                "unsettled": unsettled,
            }
        )
    elif target is not None and written:
        print(f"wrote {many(written, _SINGULAR.get(what, 'row'))} of run {args.run} to {target}")
    if unsettled:
        say(_left_out(unsettled, what), Exit.OK)
    if more := {mode: n for mode, n in modes.items() if mode != LogprobsMode.PROCESSED}:
        say(_about_logprobs(more), Exit.OK)
    if not written:
        left = f"; {target} is as it was" if was_there else ""
        why = _why_nothing(rows_now, run, what, args)
        return say(f"nothing was written: {why}{left}", Exit.EMPTY)
    return Exit.OK


def _check_options(args: argparse.Namespace, what: What | Format) -> None:
    goes_with = {
        "fixed_groups": _FIXED,
        "with_turn_traces": (What.ROWS,),
        "logprobs": _TOKENS,
        "shared": _TOKENS,
        "branches": _ONE_ROW,
        "missing_reward": _REWARDED,
        "min_reward": (Format.SFT,),
        "sft_layout": (Format.SFT,),
    }
    if what is Format.ATIF or what is Format.INSPECT:
        from holdfast.cli.commands.results.export_traces import check_place

        check_place(what, args)
    if _format(args) == "csv" and what not in FLAT:
        raise UsageError(
            f"--what {what} is nested, and CSV is not: use .jsonl or .parquet (CSV is for "
            f"{', '.join(FLAT)})"
        )
    for name, known in goes_with.items():
        value = getattr(args, name)
        if value is not None and value is not False and what not in known:
            raise UsageError(f"--{name.replace('_', '-')} goes with --what {' or '.join(known)}")


def _rows(
    journal: Journal, run: Run, what: What | Format, args: argparse.Namespace
) -> AsyncIterator[Row]:
    logprobs = Accepted(args.logprobs or Accepted.PROCESSED)
    if isinstance(what, What):
        return rows(
            journal,
            run,
            what,
            fixed_groups=args.fixed_groups,
            turn_traces=args.with_turn_traces,
            logprobs=logprobs,
            trains_shared=args.shared == TRAINED,
            prices=chosen_prices(args.price),
        )
    options = FormatOptions(
        fixed_groups=args.fixed_groups,
        logprobs=logprobs,
        trains_shared=args.shared == TRAINED,
        branches=Branches(args.branches or Branches.REFUSE),
        missing_reward=MissingReward(args.missing_reward or MissingReward.REFUSE),
        min_reward=args.min_reward,
        layout=_layout(args),
    )
    return format_lines(journal, run, what, options)


def _layout(args: argparse.Namespace) -> SftLayout:
    return SftLayout(args.sft_layout or SftLayout.MESSAGES)


async def _counted(found: AsyncIterator[Row], modes: "Counter[str]") -> AsyncIterator[Row]:
    """Yields the rows unchanged, and counts in `modes` how many logprobs have each mode."""
    async for row in found:
        modes.update(_modes(row))
        yield row


def _modes(row: Row) -> list[str]:
    """Returns the logprobs modes of a sample, or of all completions in a row."""
    if (converted := mode_of(row)) is not None:
        return [converted]
    execution = row.get("execution_metadata")
    extra = execution.get("extra", {}) if isinstance(execution, dict) else row
    mode = extra.get("logprobs_mode")
    return mode if isinstance(mode, list) else [] if mode is None else [str(mode)]


def _about_logprobs(more: dict[str, int]) -> str:
    numbers = ", ".join(f"{n} {mode}" for mode, n in sorted(more.items()))
    return (
        f"logprobs that are not known to be of the distribution that was sampled from: {numbers} "
        "(each says so: logprobs_mode)"
    )


def _left_out(unsettled: int, what: What | Format) -> str:
    are, groups = ("is", "its group is") if unsettled == 1 else ("are", "their groups are")
    left_out = f"; {groups} not among the {what}" if what in (*_TOKENS, What.ROWS) else ""
    return f"{many(unsettled, 'trajectory')} {are} not settled yet{left_out}"


def _why_nothing(
    listed: list[TrajectoryRow], run: Run, what: What | Format, args: argparse.Namespace
) -> str:
    members = [row for row in listed if not row.resting]
    settled = [row for row in members if row.settled]
    valid = [row for row in settled if row.status.is_outcome]
    if what is What.FAILURES:
        return "no failure is recorded"
    if not settled:
        return f"none of {many(len(members), 'trajectory')} is finished"
    if not valid:
        return f"of {many(len(settled), 'finished trajectory')} none has a valid outcome"
    if what is Format.SFT:
        earned = "" if args.min_reward is None else f" and a reward of {args.min_reward:g} or more"
        return f"of {many(len(valid), 'valid outcome')} none has a reply{earned}"
    leaves_out = what is Format.TINKER or args.missing_reward == MissingReward.LEAVE_OUT
    if leaves_out and _has_kept_group(members, run):
        return f"of {many(len(valid), 'valid outcome')} none in a whole, kept group has a reward"
    return f"of {many(len(valid), 'valid outcome')} none is of a whole, kept group"


def _has_kept_group(members: list[TrajectoryRow], run: Run) -> bool:
    groups = (list(group) for _, group in groupby(members, key=lambda row: row.ordinal))
    return any(is_kept(group, run) for group in groups)


def _target(args: argparse.Namespace) -> Path | None:
    """Returns the file to write, or None for standard output."""
    if is_folder(args.out):
        return Path(args.out)
    if args.out != "-":
        return output_file(args)
    if sys.stdout is None:
        raise UsageError("standard output is closed; name a file with --out")
    if args.json:
        raise UsageError("--json and --out - both want standard output; name a file with --out")
    if _format(args) != "jsonl":
        form = _format(args)
        raise UsageError(f"{form} wants a file: name one with --out, or use --format jsonl")
    return None


def _format(args: argparse.Namespace) -> str:
    ending = Path(args.out).suffix.lower()
    if ending in _FOREIGN:
        raise UsageError(f"{args.out}: exports are .jsonl, .parquet or .csv; name it so")
    form: str = args.format or _ENDINGS.get(ending, "jsonl")
    if ending == ".csv" and form != "csv":
        raise UsageError(f"{args.out} is to hold {form}: leave --format out, or name it .{form}")
    return form


async def _write(
    found: AsyncIterator[Row],
    target: Path,
    what: What | Format,
    run: Run,
    args: argparse.Namespace,
) -> int:
    first = await anext(found, None)
    if first is None:
        return 0
    with whole_file(target) as part:
        written = await _pour(_led_by(first, found), _sink(part, what, run, args))
        check_export(target, part, run, args)
    return written


def _sink(part: Path, what: What | Format, run: Run, args: argparse.Namespace) -> Sink:
    if what is Format.INSPECT:
        from holdfast.convert.inspect_log import InspectLog

        return InspectLog(part, run)
    form = _format(args)
    if form == "csv":
        return CsvFile(part)
    if form == "parquet":
        from holdfast.cli.commands.results.export_parquet import ParquetFile, schema

        return ParquetFile(part, schema(what, _layout(args)))
    return _LinesFile(part)


async def _led_by(first: Row, rest: AsyncIterator[Row]) -> AsyncIterator[Row]:
    yield first
    async for row in rest:
        yield row


async def _pour(found: AsyncIterator[Row], sink: Sink) -> int:
    written = 0
    try:
        async for row in found:
            sink.write(row)
            written += 1
            crashpoint.reach("export.row")
    finally:
        sink.close()
    return written


class _Lines:
    """Writes one line of JSON for each row to a file. `close` flushes the file and leaves it
    open."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self._encoder = msgspec.json.Encoder()

    def write(self, row: Row) -> None:
        self._file.write(self._encoder.encode(row) + b"\n")

    def close(self) -> None:
        self._file.flush()


class _LinesFile(_Lines):
    """Writes one line of JSON for each row to its own file."""

    def __init__(self, path: Path):
        super().__init__(path.open("wb"))

    def close(self) -> None:
        self._file.close()
