"""`holdfast report`: a run as one HTML file."""

import argparse
import asyncio
from pathlib import Path

from holdfast.cli.setup.errors import say
from holdfast.cli.setup.journals import to_read
from holdfast.cli.terminal.exit_codes import Exit
from holdfast.cli.terminal.text import print_json
from holdfast.engine.export.atomic_file import target_of
from holdfast.engine.report import many
from holdfast.evaluation.report import Written, write_report
from holdfast.evaluation.report.pieces import Decode
from holdfast.journal.find_run import run_named
from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.records.errors import UsageError
from holdfast.records.run import RunSpec


def report(args: argparse.Namespace) -> int:
    return asyncio.run(_report(args))


async def _report(args: argparse.Namespace) -> int:
    target = Path(args.out)
    _keep_the_journal(target, Path(args.journal))
    target_of(target)  # What cannot be written is refused before anything is read.
    journal = to_read(args.journal)
    try:
        run = await run_named(journal, args.run)
        written = await write_report(
            journal,
            run,
            target,
            decode=_decode(run.spec, args.tokenizer),
            source=args.journal,
            limit=args.max_megabytes << 20,
        )
    finally:
        await journal.close()
    return _print_result(args, written)


def _print_result(args: argparse.Namespace, written: Written) -> Exit:
    if args.json:
        print_json(written)
    else:
        print(f"wrote {many(written.rows, 'row')} of run {args.run} to {written.path}")
    if written.shortened or written.left_out:
        say(
            f"{many(written.shortened, 'conversation')} shortened and {written.left_out} left out, "
            f"to keep the file under {args.max_megabytes} MB (--max-megabytes)",
            Exit.OK,
        )
    return Exit.OK


def _decode(spec: RunSpec, tokenizer: str | None) -> Decode | None:
    """What is there without a network: a named folder, or the renderer that needs no files."""
    if tokenizer is not None:
        from holdfast.policy.rendering.tokenizer import load_tokenizer

        if not Path(tokenizer).is_dir():
            raise UsageError(f"--tokenizer wants the folder of a tokenizer; {tokenizer} is none")
        return load_tokenizer(tokenizer).decode
    return ByteRenderer().decode if spec.renderer == ByteRenderer.name else None


def _keep_the_journal(target: Path, journal: Path) -> None:
    for name in ("", "-wal", "-shm"):
        part = Path(f"{journal}{name}")
        if target.exists() and part.exists() and target.samefile(part):
            raise UsageError(f"{target} is the journal itself; name another file with --out")
