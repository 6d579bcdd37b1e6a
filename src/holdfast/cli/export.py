"""`holdfast export`: a run's data in a file that is either whole or not there.

The rows go to a temporary file beside the target, which takes its place when all are on disk. A
kill leaves the old file, or none.
"""

import argparse
import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

import msgspec

from holdfast import crashpoint
from holdfast.cli.errors import say
from holdfast.cli.exit import Exit
from holdfast.cli.printing import print_json
from holdfast.cli.reading import named, to_read
from holdfast.engine.export import Row, What, rows
from holdfast.engine.whole_file import target_of, whole_file
from holdfast.records.errors import UsageError

ROWS_PER_GROUP = 256


class Sink(Protocol):
    def write(self, row: Row) -> None: ...
    def close(self) -> None: ...


def export(args: argparse.Namespace) -> int:
    return asyncio.run(_export(args))


async def _export(args: argparse.Namespace) -> int:
    what, target = What(args.what), target_of(Path(args.out))
    if args.fixed_groups and what is not What.SAMPLES:
        raise UsageError("--fixed-groups goes with --what samples")
    if args.with_turn_traces and what is not What.ROWS:
        raise UsageError("--with-turn-traces goes with --what rows")
    _keep_the_journal(target, Path(args.journal))
    journal = to_read(args.journal)
    try:
        run = await named(journal, args.run)
        found = rows(
            journal,
            run,
            what,
            fixed_groups=args.fixed_groups,
            turn_traces=args.with_turn_traces,
        )
        written = await _write(found, target, what, _format(args))
        rows_now = await journal.trajectories(run)
        unsettled = sum(not (row.settled or row.resting) for row in rows_now)
    finally:
        await journal.close()
    if args.json:
        print_json({"rows": written, "out": str(target), "unsettled": unsettled})
    else:
        print(f"wrote {written} {what} of run {args.run} to {target}")
    if unsettled:
        grouped = what in (What.SAMPLES, What.ROWS)
        left_out = f"; their groups are not among the {what}" if grouped else ""
        say(f"{unsettled} trajectories are not settled yet{left_out}", Exit.OK)
    return Exit.OK


def _format(args: argparse.Namespace) -> str:
    by_ending = "parquet" if Path(args.out).suffix == ".parquet" else "jsonl"
    return args.format or by_ending


def _keep_the_journal(target: Path, journal: Path) -> None:
    for name in ("", "-wal", "-shm"):
        part = Path(f"{journal}{name}")
        if target.exists() and part.exists() and target.samefile(part):
            raise UsageError(f"{target} is the journal itself; name another file with --out")


async def _write(found: AsyncIterator[Row], target: Path, what: What, form: str) -> int:
    written = 0
    with whole_file(target) as part:
        sink = _sink(part, what, form)
        try:
            async for row in found:
                sink.write(row)
                written += 1
                crashpoint.reach("export.row")
        finally:
            sink.close()
    return written


def _sink(path: Path, what: What, form: str) -> Sink:
    return _Lines(path) if form == "jsonl" else _Parquet(path, what)


class _Lines:
    def __init__(self, path: Path):
        self._file = path.open("wb")
        self._encoder = msgspec.json.Encoder()

    def write(self, row: Row) -> None:
        self._file.write(self._encoder.encode(row) + b"\n")

    def close(self) -> None:
        self._file.close()


class _Parquet:
    """Row groups of a fixed size, with a schema that does not depend on the data."""

    def __init__(self, path: Path, what: What):
        from holdfast.cli import parquet

        self._schema = parquet.schema(what)
        self._writer = parquet.writer(path, self._schema)
        self._encode = parquet.columns
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
