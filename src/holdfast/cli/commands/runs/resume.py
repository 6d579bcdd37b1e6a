"""`holdfast resume`: repeats the last command that worked on a run."""

import argparse
import asyncio
import os
import shlex
import sys
from pathlib import Path

from holdfast.cli.options.parser import Parser
from holdfast.cli.setup.config_file import Invocation
from holdfast.cli.setup.journals import to_read
from holdfast.cli.setup.recorded_command import words_of
from holdfast.cli.terminal.text import notify, print_json, visible_name
from holdfast.journal.sql.find_run import run_named
from holdfast.records.encoding.redaction import redact
from holdfast.records.errors import UsageError
from holdfast.records.exit_codes import Exit
from holdfast.records.run import Run

JSON = "--json"
"""This option belongs to the command that continues the run. With `--print`, it belongs to
`resume`."""


def resume(args: argparse.Namespace) -> int:
    invocation: Invocation = args.invocation
    _take_own_options(args, invocation.parser)
    journal = args.journal if "://" in args.journal else str(Path(args.journal).absolute())
    run = asyncio.run(_find(args))
    as_json = args.only_print and JSON in args.options
    if as_json:
        args.options.remove(JSON)
    arguments = words_of(run, invocation.parser, journal=journal, instead=args.options)
    folder = folder_of(args, run)
    text = redact(shlex.join(["holdfast", *arguments]))
    if args.only_print and as_json:
        print_json({"folder": str(folder), "words": list(map(redact, ["holdfast", *arguments]))})
        return Exit.OK
    if args.only_print:
        print(f"cd {shlex.quote(str(folder))} && {text}")
        return Exit.OK
    notify(f"in {visible_name(str(folder))}: {visible_name(text)}")
    os.chdir(folder)
    sys.argv[1:] = arguments  # After a signal, the command names these words.
    return invocation.main(arguments)


def _take_own_options(args: argparse.Namespace, parser: Parser) -> None:
    """Sets the options of `resume` itself that were typed after the run's name, and removes them
    from `args.options`, which are for the continued command."""
    own: list[str] = []
    others: list[str] = []
    leaf = parser.commands["resume"]
    for name, parts in leaf.split(args.options):
        (own if name and name != "--help" else others).extend(parts)
    parse_args = leaf.parse_args([*own, args.run])
    for name in ("journal", "folder", "only_print"):
        if getattr(parse_args, name) != leaf.get_default(name):
            setattr(args, name, getattr(parse_args, name))
    args.options = others


async def _find(args: argparse.Namespace) -> Run:
    async with to_read(args.journal) as journal:
        return await run_named(journal, args.run)


def folder_of(args: argparse.Namespace, run: Run) -> Path:
    """Returns the folder in which the run's command works."""
    recorded = "" if run.spec.command is None else run.spec.command.folder
    folder = Path(args.folder or recorded)
    if args.folder and not folder.is_dir():
        raise UsageError(
            f"--folder {args.folder} is not a folder: say where the run's files are now"
        )
    if not folder.is_dir():
        raise UsageError(
            f"the command of run {run.spec.name!r} was given in {folder}, which is not there; say "
            "where its files are now: --folder DIR"
        )
    return folder
