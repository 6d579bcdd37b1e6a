"""`holdfast report`: shows the numbers of a run on the terminal, or writes them as one HTML
file."""

import argparse
from pathlib import Path

import msgspec

from holdfast.cli.commands.results.output_file import check_report, output_file
from holdfast.cli.setup.errors import advice, say
from holdfast.cli.setup.journals import to_read
from holdfast.cli.terminal.colours import paint
from holdfast.cli.terminal.text import print_json, visible
from holdfast.engine.export.prices import chosen_prices
from holdfast.engine.report import Look, as_text, build, many
from holdfast.evaluation.report.row_table import RowCollector
from holdfast.evaluation.report.writer import Decode, Written, write_report
from holdfast.journal.sql.find_run import run_named
from holdfast.journal.types import TrajectoryRow
from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.records.encoding.redaction import redact
from holdfast.records.errors import UsageError
from holdfast.records.exit_codes import Exit
from holdfast.records.run import RunSpec
from holdfast.records.samples.summary import Summary
from holdfast.training.report import as_lines, open_collector

MAX_LISTED = 40
_SUFFIXES = ("", ".html", ".htm")
"""The endings that a report's file may have. Another ending would suggest another format."""


async def report(args: argparse.Namespace) -> int:
    if args.out is None:
        return await _print_numbers(args)
    target = output_file(args)
    async with to_read(args.journal) as journal:
        run = await run_named(journal, args.run)
        check_report(target, run, args)
        _check_suffix(target, is_forced=args.force)
        written = await write_report(
            journal,
            run,
            target,
            decode=_decode(run.spec, args.tokenizer),
            source=args.journal,
            limit=args.max_megabytes << 20,
            prices=chosen_prices(args.price),
        )
    return _print_result(args, written)


def _check_suffix(target: Path, *, is_forced: bool) -> None:
    if target.suffix.lower() not in _SUFFIXES and not is_forced:
        raise UsageError(
            f"a report is an HTML file, and {target.name} says otherwise: name it "
            f"{target.with_suffix('.html').name}, or give --force"
        )


async def _print_numbers(args: argparse.Namespace) -> Exit:
    async with to_read(args.journal) as journal:
        run = await run_named(journal, args.run)
        training = await open_collector(journal, run)
        prices = chosen_prices(args.price)
        limit = None if args.all or args.json else MAX_LISTED
        rows = RowCollector(await journal.tasks(run), limit=limit)
        run_report = await build(journal, run, also=_both(training.take, rows.take), prices=prices)
        run_report.corrupt += await rows.read(journal)
    trained = training.reports()
    if args.json:
        fields = msgspec.to_builtins(run_report) | {"training": msgspec.to_builtins(trained)}
        print_json(fields | {"rows": [row.as_fields() for row in rows.rows]})
    else:
        lines = [line for each in trained for line in as_lines(each)]
        print(
            visible(
                redact(as_text(run_report, training=lines, full_tracebacks=args.full_tracebacks))
            )
        )
        print("\n".join(["", *rows.lines(more="--all", paint=paint)]))
    if run_report.corrupt:
        problem = many(len(run_report.corrupt), "corrupt log")
        return say(f"{problem}; {advice(args.journal)}", Exit.CORRUPT)
    return Exit.OK


def _both(first: Look, second: Look) -> Look:
    def take(row: TrajectoryRow, summary: Summary) -> None:
        first(row, summary)
        second(row, summary)

    return take


def _print_result(args: argparse.Namespace, written: Written) -> Exit:
    if args.json:
        print_json(written)
    else:
        of = f" of the {written.rows + written.unlisted:,}" if written.unlisted else ""
        print(f"wrote {many(written.rows, 'row')}{of} of run {args.run} to {written.path}")
        print(Path(written.path).absolute().as_uri())
    if written.shortened or written.left_out:
        say(
            f"{many(written.shortened, 'conversation')} shortened and {written.left_out} left out, "
            f"to keep the file under {args.max_megabytes} MB (--max-megabytes)",
            Exit.OK,
        )
    return Exit.OK


def _decode(spec: RunSpec, tokenizer: str | None) -> Decode | None:
    """Returns a function that decodes tokens without the network. It uses the tokenizer in the
    named folder, or else a renderer that needs no files. Returns None if there is neither."""
    if tokenizer is not None:
        from holdfast.policy.rendering.tokenizer import load_tokenizer

        if not Path(tokenizer).is_dir():
            raise UsageError(f"--tokenizer wants the folder of a tokenizer; {tokenizer} is none")
        return load_tokenizer(tokenizer).decode
    return ByteRenderer().decode if spec.renderer == ByteRenderer.name else None
