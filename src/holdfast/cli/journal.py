"""`holdfast journal check`."""

import argparse
from pathlib import Path

import msgspec

from holdfast.cli.exit import Exit
from holdfast.journal.check import Report, check as check_file, repair
from holdfast.records.errors import UsageError


def check(args: argparse.Namespace) -> int:
    path = Path(args.file)
    if not path.is_file():
        raise UsageError(f"there is no journal at {path}")
    cuts = repair(path) if args.repair else []
    report = check_file(path)
    if args.json:
        told = msgspec.to_builtins(report) | {"cuts_made": msgspec.to_builtins(cuts)}
        print(msgspec.json.encode(told).decode())
    else:
        for cut in cuts:
            print(
                f"cut {cut.trajectory} at record {cut.seq} (position {cut.position}): {cut.reason};"
                f" {cut.lost} records set aside"
            )
        print(_text(path, report))
    return Exit.CORRUPT if report.findings else Exit.OK


def _text(path: Path, report: Report) -> str:
    counts = {
        name: value
        for name, value in msgspec.structs.asdict(report).items()
        if isinstance(value, int)
    }
    lines = [f"{path}: " + ", ".join(f"{value:,} {name}" for name, value in counts.items())]
    lines += [f"  {one.where}: {one.what}; {one.advice}" for one in report.findings]
    lines.append(
        "every checksum and invariant holds"
        if not report.findings
        else f"{len(report.findings)} findings"
    )
    return "\n".join(lines)
