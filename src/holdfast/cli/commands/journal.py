"""`holdfast journal check`."""

import argparse
from pathlib import Path

import msgspec

from holdfast.cli.terminal.exit_codes import Exit
from holdfast.cli.terminal.text import name, print_json
from holdfast.engine.report import many
from holdfast.journal.damage.check import Report, accept_loss, repair
from holdfast.journal.damage.check import check as check_file
from holdfast.records.errors import UsageError


def check(args: argparse.Namespace) -> int:
    path = Path(args.file)
    if not path.is_file():
        if path.exists():
            raise UsageError(f"{path} is no regular file; name a journal")
        raise UsageError(f"there is no journal at {path}; name one: holdfast journal check FILE")
    given_up = accept_loss(path) if args.repair else None
    cuts = repair(path) if args.repair else []
    report = check_file(path)
    if args.json:
        made = {"cuts_made": msgspec.to_builtins(cuts), "given_up": given_up or ""}
        told = msgspec.to_builtins(report) | made
        print_json(told)
    else:
        if given_up:
            print(f"gave up: the journal {given_up}")
        for cut in cuts:
            print(
                f"cut {name(cut.trajectory)} at record {cut.seq} (position {cut.position}): "
                f"{cut.reason}; {many(cut.lost, 'record')} set aside"
            )
        print(_text(path, report))
    return Exit.CORRUPT if report.findings else Exit.OK


def _text(path: Path, report: Report) -> str:
    counts = {
        field: value
        for field, value in msgspec.structs.asdict(report).items()
        if isinstance(value, int)
    }
    told = ", ".join(many(value, _one(field)) for field, value in counts.items())
    lines = [f"{path}: {told}"]
    lines += [f"  {name(str(one))}" for one in report.findings]
    lines.append(
        "every checksum and invariant holds"
        if report.is_clean
        else f"{many(len(report.findings), 'finding')}; --repair cuts torn logs to their last good "
        "record, and accepts what is lost"
    )
    return "\n".join(lines)


def _one(field: str) -> str:
    """The singular."""
    return f"{field.removesuffix('ies')}y" if field.endswith("ies") else field.removesuffix("s")
