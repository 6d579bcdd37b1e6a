"""Reads the command line of `holdfast` and calls the command."""

import argparse
import ctypes
import faulthandler
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from holdfast.cli.options.dependent import check_dependent
from holdfast.cli.options.parser import Parser, ShowVersion
from holdfast.cli.setup.config_file import (
    Config,
    Invocation,
    fill,
    find_config,
    prepare,
    typed_options,
)
from holdfast.cli.terminal import text
from holdfast.engine.options import API_KEY
from holdfast.journal import PASSWORDS, adopt_passwords, is_server, take_password
from holdfast.records.encoding import redaction
from holdfast.records.errors import UsageError
from holdfast.records.exit_codes import Exit

PR_SET_DUMPABLE = 4
_JOURNALS = ("journal", "journal_b", "file", "source", "target")
"""Options that may be the URL of a journal."""


class _Command(NamedTuple):
    """One command: its help, and the modules of its options and its code. The modules are imported
    only when the command is used."""

    help: str
    options: str
    """The module in `cli/options` that adds the command's options with its function `add_NAME`."""
    module: str
    """The module in `cli/commands` with the function that runs the command. The function has the
    name of the command, or of the action if the command has actions."""


_COMMANDS = {
    "init": _Command("write a small project to begin with", "projects", "init"),
    "run": _Command(
        "run a rollout over tasks, or continue a run that was interrupted",
        "run",
        "run",
    ),
    "train": _Command(
        "train a model on a rollout, or continue a training that was interrupted",
        "train",
        "train",
    ),
    "gateway": _Command(
        "record a run of agents that you start yourself",
        "gateway",
        "serving.gateway",
    ),
    "runs": _Command("list the runs of a journal", "runs", "runs.list_runs"),
    "show": _Command("show a run, or one trajectory turn by turn", "runs", "runs.show"),
    "view": _Command("show runs in a browser, live or finished", "view", "view"),
    "trace": _Command("send a run to an OpenTelemetry collector", "view", "trace"),
    "logs": _Command("show the log files of a run's processes", "runs", "runs.logs"),
    "resume": _Command("continue a run with its recorded command", "runs", "runs.resume"),
    "fork": _Command("sample new continuations from a turn of a trajectory", "runs", "runs.fork"),
    "rename": _Command("give a run another name", "runs", "runs.names"),
    "tag": _Command("add tags to a run, or remove them", "runs", "runs.names"),
    "rm": _Command("delete runs, and free their disk space", "runs", "runs.delete"),
    "prune": _Command(
        "delete runs that are old, unfinished or untagged",
        "runs",
        "runs.delete",
    ),
    "worlds": _Command(
        "list the containers of runs, and remove those that nobody uses",
        "runs",
        "runs.worlds",
    ),
    "export": _Command("write a run's data to a file", "runs", "results.export"),
    "compare": _Command("compare the scores of two runs, task by task", "runs", "results.compare"),
    "report": _Command(
        "print a run's results, or write them to one HTML file",
        "runs",
        "results.report",
    ),
    "journal": _Command("check, repair, compact or copy a journal", "runs", "journal"),
    "policy": _Command("check what an inference engine can do", "runs", "serving.policy"),
    "serve": _Command("serve a model on this machine, for `run --policy`", "run", "serving.serve"),
    "config": _Command("show what the configuration file sets", "runs", "config"),
    "completion": _Command("print a script for completion in a shell", "runs", "completion"),
}
_PART = ("as_worker", "only", "until_stdin_closes", "dry_run")
"""Options of a process that works for another command, and of a dry run, which does no work."""
_READ_OTHERS = ("resume", "fork", "config", "completion")
"""Commands that need the options of all other commands."""


def entry() -> None:
    """Runs the console script."""
    if sys.__stderr__ is not None:
        # A crash in native code ends the process, so the printed stack is the only information.
        faulthandler.enable(sys.__stderr__)
    if sys.argv[1:2] in (["run"], ["train"], ["gateway"], ["resume"], ["fork"]):
        _close_to_other_processes()
    sys.exit(main(sys.argv[1:]))


def main(arguments: Sequence[str]) -> int:
    text.prepare_streams()
    config, wrong = _config()
    is_alone = config.path is None and arguments and arguments[0] not in _READ_OTHERS
    parser = _parser(only=arguments[0] if is_alone else None)
    try:
        prepare(parser, config)
    except UsageError as error:
        config, wrong = Config(), error
    if wrong is not None:
        parser.say_first(str(wrong))
    args = parser.parse_args(arguments)
    if args.command is None:
        parser.print_help(sys.stderr)
        return Exit.USAGE
    from holdfast.cli.setup.errors import guarded, say

    redaction.hide(os.environ.get(getattr(args, "api_key_env", API_KEY)))
    if wrong is not None:
        return say(str(wrong), Exit.USAGE)
    fill(args, parser, arguments, config)
    typed = set(typed_options(parser, arguments))
    _take_passwords(args)
    args.invocation = Invocation(parser, tuple(arguments), config, main)
    journal = getattr(args, "file", "") or getattr(args, "journal", "")

    def checked() -> int:
        check_dependent(args, typed)
        return _dispatch(args)

    return guarded(checked, journal=journal)


def _config() -> "tuple[Config, UsageError | None]":
    """Returns the settings of the configuration file, or the error in it. An error is not raised
    here, so that `--help` still works."""
    try:
        return find_config(Path.cwd()), None
    except UsageError as error:
        return Config(), error
    except OSError:
        # The working folder was deleted. Code that needs it raises the error.
        return Config(), None


def _take_passwords(args: argparse.Namespace) -> None:
    """Takes the password out of a journal's URL, before the URL is printed, recorded or passed
    on."""
    if PASSWORDS in os.environ:
        adopt_passwords()
    for name in _JOURNALS:
        where = getattr(args, name, None)
        if isinstance(where, str) and "://" in where:
            setattr(args, name, take_password(where))
    # Child processes, and the printed command to continue with, get these words.
    sys.argv[1:] = [_without_password(word) for word in sys.argv[1:]]


def _without_password(word: str) -> str:
    option, equals, where = word.partition("=") if word.startswith("--") else ("", "", word)
    return f"{option}{equals}{take_password(where)}" if is_server(where) else word


def _dispatch(args: argparse.Namespace) -> int:
    import asyncio

    _arm_crash_points()
    module = import_module(f"holdfast.cli.commands.{_COMMANDS[args.command].module}")
    with _viewed(args), _traced(args) as args.follow_run:
        code = getattr(module, getattr(args, "action", args.command))(args)
        return asyncio.run(code) if asyncio.iscoroutine(code) else int(code)


def _viewed(args: argparse.Namespace) -> AbstractContextManager[None]:
    """Shows the journal in a browser while a command with `--view` runs. Does nothing in the
    processes that the command starts."""
    if not getattr(args, "view", False) or _is_part(args):
        return nullcontext()
    from holdfast.beside import view_beside

    return view_beside(args.journal)


def _traced(args: argparse.Namespace) -> AbstractContextManager[Callable[[str], None]]:
    """Sends the runs of a command with --otel to a collector. Yields a function that takes the name
    of each run."""
    if not getattr(args, "otel", None) or args.command == "trace" or _is_part(args):
        return nullcontext(lambda _: None)
    from holdfast.beside import trace_beside

    return trace_beside(args.journal, args.otel)


def _is_part(args: argparse.Namespace) -> bool:
    return any(getattr(args, name, None) not in (None, False) for name in _PART)


def _parser(*, only: str | None = None) -> Parser:
    """Returns the parser of the command line. With `only`, adds the options of no other command."""
    parser = Parser(
        prog="holdfast",
        description="Durable rollouts of LLM agents: kill it at any moment, run it again, lose "
        "nothing.",
    )
    parser.add_argument(
        "--version", action=ShowVersion, nargs=0, help="show the version, and do nothing else"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, command in _COMMANDS.items():
        added = commands.add_parser(name, help=command.help)
        if only in (None, name):
            options = import_module(f"holdfast.cli.options.{command.options}")
            getattr(options, f"add_{name}")(added)
    return parser


def _close_to_other_processes() -> None:
    """Hides this process's variables and memory from other processes of the user, such as agents.
    The process also writes no core files then. Only the command line does this, since a library
    must not change its host process."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def _arm_crash_points() -> None:
    """Arms the crash point that `HOLDFAST_CRASH` names, at which this process kills itself. Used by
    the crash suite."""
    if plan := os.environ.get("HOLDFAST_CRASH"):
        from holdfast.testing import crash_points

        crash_points.arm(plan)
