"""`holdfast fork`: begins a run of forks, with the recorded command of the original run."""

import argparse
import asyncio
import os
import sys
from pathlib import Path

from msgspec import structs

from holdfast.cli.commands.runs.resume import folder_of
from holdfast.cli.commands.runs.show import find
from holdfast.cli.options.parser import Parser
from holdfast.cli.setup.config_file import Invocation
from holdfast.cli.setup.journals import to_read
from holdfast.cli.setup.recorded_command import words_of
from holdfast.cli.terminal.text import notify, visible_name
from holdfast.engine.open_run import free_name
from holdfast.engine.running.forks import Fork, fork_at
from holdfast.journal.sql.find_run import run_named
from holdfast.journal.sql.journal import Journal
from holdfast.records.encoding.text_files import read_text_file
from holdfast.records.errors import UsageError
from holdfast.records.failure import shortened
from holdfast.records.run import RecordedCommand, Run

STANDARD_INPUT = "-"
PASSED_ON = ("--policy", "--model", "--json")
"""Options of `holdfast fork` that replace the same options of the recorded command."""


def fork(args: argparse.Namespace) -> int:
    invocation: Invocation = args.invocation
    arguments, folder = asyncio.run(_command(args, invocation))
    os.chdir(folder)
    sys.argv[1:] = arguments  # After a signal, the command names these words.
    return invocation.main(arguments)


async def _command(args: argparse.Namespace, invocation: Invocation) -> tuple[list[str], Path]:
    """Returns the command that samples the forks, and its folder. Checks everything that needs no
    engine."""
    journal_path = args.journal if "://" in args.journal else str(Path(args.journal).absolute())
    say = sys.stdin.read() if args.say == STANDARD_INPUT else args.say
    edit = args.edit
    if edit is not None and say is None:
        edit = sys.stdin.read() if edit == STANDARD_INPUT else read_text_file(Path(edit))
    async with to_read(args.journal) as journal:
        run = await run_named(journal, args.run)
        row = find(await journal.trajectories(run), args.trajectory, run.spec.name)
        made = await fork_at(journal, run, row, args.at, say=say, edit=edit)
        name = await _name(args, journal, made)
    parser = invocation.parser
    passed = parser.leaf(invocation.words).split(invocation.words[1:])
    instead = [part for option, parts in passed if option in PASSED_ON for part in parts]
    seed = made.seed() if args.seed is None else args.seed
    instead += [] if seed is None else ["--seed", str(seed)]
    instead += ["--samples", str(args.samples), "--group-at-least", "1"]
    instead += ["--fork-of", made.origin.to_text()]
    arguments = words_of(
        _as_run(run, parser), parser, journal=journal_path, instead=instead, name=name
    )
    notify(f"{visible_name(name)} is {visible_name(shortened(made.origin.line))}")
    return arguments, folder_of(args, run)


async def _name(args: argparse.Namespace, journal: Journal, made: Fork) -> str:
    if args.name is None:
        return await free_name(journal, f"{made.origin.run}-fork")
    run = await journal.find_run(args.name)
    if run is not None and run.spec.origin != made.origin:
        raise UsageError(
            f"there is another run {args.name!r} already: give another name with --run"
        )
    return str(args.name)


def _as_run(run: Run, parser: Parser) -> Run:
    """Returns the run with a command of `holdfast run` as its recorded command. Options that only
    `holdfast train` has are removed. Raises `UsageError` if the run has no recorded command."""
    command = run.spec.command
    if command is None:
        raise UsageError(
            f"run {run.spec.name!r} has no recorded command, because a program began it: fork it "
            "there, by holdfast.fork(…)"
        )
    word, *rest = command.words
    if word != "train":
        return run
    known = parser.commands["run"]
    kept = [parts for option, parts in parser.commands[word].split(rest) if known.knows(option)]
    kept_words = ("run", *(part for parts in kept for part in parts))
    spec = structs.replace(run.spec, command=RecordedCommand(kept_words, command.folder))
    return structs.replace(run, spec=spec)
