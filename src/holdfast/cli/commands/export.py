"""`holdfast export`: a run's data in a file that is either whole or not there.

The rows go to a temporary file beside the target, which takes its place when all are on disk. A
kill leaves the old file, or none. Only standard output, which `-` stands for, is given them one by
one.
"""

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec

from holdfast import crashpoint
from holdfast.cli.setup.errors import say
from holdfast.cli.setup.journals import to_read
from holdfast.cli.terminal.exit_codes import Exit
from holdfast.cli.terminal.text import print_json
from holdfast.engine.export.atomic_file import target_of, whole_file
from holdfast.engine.export.export import Row, What, rows
from holdfast.engine.report import many
from holdfast.journal.find_run import run_named
from holdfast.records.errors import UsageError
from holdfast.records.samples.logprobs import Accepted, LogprobsMode

ROWS_PER_GROUP = 256
_SINGULAR = {
    What.SAMPLES: "sample",
    What.ROWS: "row",
    What.TRAJECTORIES: "trajectory",
    What.FAILURES: "failure",
}


class Sink(Protocol):
    def write(self, row: Row) -> None: ...
    def close(self) -> None: ...


def export(args: argparse.Namespace) -> int:
    return asyncio.run(_export(args))


async def _export(args: argparse.Namespace) -> int:
    what = What(args.what)
    if args.fixed_groups and what is not What.SAMPLES:
        raise UsageError("--fixed-groups goes with --what samples")
    if args.with_turn_traces and what is not What.ROWS:
        raise UsageError("--with-turn-traces goes with --what rows")
    if args.logprobs is not None and what is not What.SAMPLES:
        raise UsageError("--logprobs goes with --what samples")
    target, modes = _target(args), Counter[str]()
    journal = to_read(args.journal)
    try:
        run = await run_named(journal, args.run)
        found = rows(
            journal,
            run,
            what,
            fixed_groups=args.fixed_groups,
            turn_traces=args.with_turn_traces,
            logprobs=Accepted(args.logprobs or Accepted.PROCESSED),
        )
        found = _counted(found, modes)
        if target is None:
            written = await _pour(found, _Lines(sys.stdout.buffer))
        else:
            written = await _write(found, target, what, _format(args))
        rows_now = await journal.trajectories(run)
        unsettled = sum(not (row.settled or row.resting) for row in rows_now)
    finally:
        await journal.close()
    if args.json:
        print_json({"rows": written, "out": str(target), "unsettled": unsettled})
    elif target is not None:
        print(f"wrote {many(written, _SINGULAR[what])} of run {args.run} to {target}")
    if unsettled:
        say(_left_out(unsettled, what), Exit.OK)
    if more := {mode: n for mode, n in modes.items() if mode != LogprobsMode.PROCESSED}:
        say(_about_logprobs(more), Exit.OK)
    return Exit.OK


async def _counted(found: AsyncIterator[Row], modes: "Counter[str]") -> AsyncIterator[Row]:
    """The same, with the modes of their logprobs counted on the way."""
    async for row in found:
        modes.update(_modes(row))
        yield row


def _modes(row: Row) -> list[str]:
    """Of a sample, or of all completions in a row."""
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


def _left_out(unsettled: int, what: What) -> str:
    are, groups = ("is", "its group is") if unsettled == 1 else ("are", "their groups are")
    left_out = f"; {groups} not among the {what}" if what in (What.SAMPLES, What.ROWS) else ""
    return f"{many(unsettled, 'trajectory')} {are} not settled yet{left_out}"


def _target(args: argparse.Namespace) -> Path | None:
    """The file to write; None for standard output."""
    if args.out != "-":
        _keep_the_journal(Path(args.out), Path(args.journal))
        return target_of(Path(args.out))
    if sys.stdout is None:
        raise UsageError("standard output is closed; name a file with --out")
    if args.json:
        raise UsageError("--json and --out - both want standard output; name a file with --out")
    if _format(args) == "parquet":
        raise UsageError("parquet wants a file: name one with --out, or use --format jsonl")
    return None


def _format(args: argparse.Namespace) -> str:
    by_ending = "parquet" if Path(args.out).suffix == ".parquet" else "jsonl"
    return args.format or by_ending


def _keep_the_journal(target: Path, journal: Path) -> None:
    for name in ("", "-wal", "-shm"):
        part = Path(f"{journal}{name}")
        if target.exists() and part.exists() and target.samefile(part):
            raise UsageError(f"{target} is the journal itself; name another file with --out")


async def _write(found: AsyncIterator[Row], target: Path, what: What, form: str) -> int:
    with whole_file(target) as part:
        if form == "parquet":
            return await _pour(found, _Parquet(part, what))
        with part.open("wb") as file:
            return await _pour(found, _Lines(file))


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
    """One line of JSON for each row; the file stays open."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self._encoder = msgspec.json.Encoder()

    def write(self, row: Row) -> None:
        self._file.write(self._encoder.encode(row) + b"\n")

    def close(self) -> None:
        self._file.flush()


class _Parquet:
    """Row groups of a fixed size, with a schema that does not depend on the data."""

    def __init__(self, path: Path, what: What):
        from holdfast.cli.commands import export_parquet

        self._schema = export_parquet.schema(what)
        self._writer = export_parquet.writer(path, self._schema)
        self._encode = export_parquet.columns
        self._what = what
        self._rows: list[Row] = []

    def write(self, row: Row) -> None:
        self._rows.append(row)
        if len(self._rows) >= ROWS_PER_GROUP:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(self._encode(self._rows, self._schema))
            self._rows = []

    def close(self) -> None:
        self._flush()
        self._writer.close()
