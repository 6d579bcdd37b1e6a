"""`holdfast …`: reads the command line and calls the command."""

import argparse
import ctypes
import faulthandler
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from holdfast.cli.commands.serving.serve import add_serve
from holdfast.cli.options import run as options
from holdfast.cli.options.dependent import check_dependent
from holdfast.cli.options.gateway import add_gateway
from holdfast.cli.options.parser import Parser, ShowVersion
from holdfast.cli.options.results import add_compare, add_report
from holdfast.cli.options.runs import (
    add_completion,
    add_config,
    add_prune,
    add_rename,
    add_resume,
    add_rm,
    add_tag,
)
from holdfast.cli.options.train import add_train
from holdfast.cli.setup.config_file import (
    Config,
    Invocation,
    fill,
    find_config,
    prepare,
    typed_options,
)
from holdfast.cli.terminal import text
from holdfast.cli.terminal.exit_codes import Exit
from holdfast.engine.options import API_KEY
from holdfast.journal import PASSWORDS, adopt_passwords, is_server, take_password
from holdfast.records.encoding import redaction
from holdfast.records.errors import UsageError

PR_SET_DUMPABLE = 4
_JOURNALS = ("journal", "journal_b", "file", "source", "target")
"""Options that may be the URL of a journal."""
_COMMANDS = {
    "run": ("run", "run"),
    "train": ("train", "train"),
    "gateway": ("serving.gateway", "gateway"),
    "runs": ("runs.list_runs", "runs"),
    "logs": ("runs.logs", "logs"),
    "show": ("runs.show", "show"),
    "resume": ("runs.resume", "resume"),
    "rm": ("runs.delete", "rm"),
    "prune": ("runs.delete", "prune"),
    "rename": ("runs.names", "rename"),
    "tag": ("runs.names", "tag"),
    "export": ("results.export", "export"),
    "compare": ("results.compare", "compare"),
    "report": ("results.report", "report"),
    "journal": ("journal", ""),
    "policy": ("serving.policy", ""),
    "serve": ("serving.serve", "serve"),
    "config": ("config", "config"),
    "completion": ("completion", "completion"),
}
"""The module and the function of each command; "": its action names the function. A module is
imported when its command is used."""


def entry() -> None:
    """The console script."""
    if sys.__stderr__ is not None:
        # A crash in native code ends the process: the lines that it was in are all there is to say.
        faulthandler.enable(sys.__stderr__)
    if sys.argv[1:2] in (["run"], ["train"], ["gateway"], ["resume"]):
        _close_to_other_processes()
    sys.exit(main(sys.argv[1:]))


def main(arguments: Sequence[str]) -> int:
    text.prepare_streams()
    parser = _parser()
    config, wrong = _config(parser)
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


def _config(parser: Parser) -> "tuple[Config, UsageError | None]":
    """What the configuration file sets, or what is wrong with it: `--help` works all the same."""
    try:
        config = find_config(Path.cwd())
        prepare(parser, config)
    except UsageError as error:
        return Config(), error
    except OSError:
        return Config(), None  # The working folder is gone; whoever needs it says so.
    return config, None


def _take_passwords(args: argparse.Namespace) -> None:
    """What is printed, recorded and passed on of a journal's URL has no password in it."""
    if PASSWORDS in os.environ:
        adopt_passwords()
    for name in _JOURNALS:
        where = getattr(args, name, None)
        if isinstance(where, str) and "://" in where:
            setattr(args, name, take_password(where))
    # What is given to processes of ours, and advised to go on with, is made of these words.
    sys.argv[1:] = [_without_password(word) for word in sys.argv[1:]]


def _without_password(word: str) -> str:
    option, equals, where = word.partition("=") if word.startswith("--") else ("", "", word)
    return f"{option}{equals}{take_password(where)}" if is_server(where) else word


def _dispatch(args: argparse.Namespace) -> int:
    import asyncio

    _arm_crash_points()
    module, function = _COMMANDS[args.command]
    command = getattr(import_module(f"holdfast.cli.commands.{module}"), function or args.action)
    code = command(args)
    return asyncio.run(code) if asyncio.iscoroutine(code) else int(code)


def _parser() -> Parser:
    parser = Parser(
        prog="holdfast",
        description="Durable rollouts of LLM agents: kill it at any moment, run it again, lose "
        "nothing.",
    )
    parser.add_argument(
        "--version", action=ShowVersion, nargs=0, help="show the version, and do nothing else"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    options.add_run(commands)
    add_train(commands)
    add_gateway(commands)
    options.add_runs(commands)
    options.add_show(commands)
    options.add_logs(commands)
    add_resume(commands)
    add_rename(commands)
    add_tag(commands)
    add_rm(commands)
    add_prune(commands)
    options.add_export(commands)
    add_compare(commands)
    add_report(commands)
    options.add_journal(commands)
    options.add_policy(commands)
    add_serve(commands)
    add_config(commands)
    add_completion(commands)
    return parser


def _close_to_other_processes() -> None:
    """What this process has in its variables and in its memory is not shown to others of the same
    user: agents are some. Only here, where the process is ours; it then leaves no core files."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def _arm_crash_points() -> None:
    """For the crash suite: `HOLDFAST_CRASH` names where this process is to kill itself."""
    if plan := os.environ.get("HOLDFAST_CRASH"):
        from holdfast.testing import crash_points

        crash_points.arm(plan)
