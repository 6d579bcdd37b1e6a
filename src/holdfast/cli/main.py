"""`holdfast …`: reads the command line and calls the command."""

import argparse
import ctypes
import faulthandler
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from holdfast import __version__
from holdfast.cli.commands.serve import add_serve
from holdfast.cli.options import run as options
from holdfast.cli.options.gateway import add_gateway
from holdfast.cli.options.parser import Parser
from holdfast.cli.options.results import add_compare, add_report
from holdfast.cli.options.train import add_train
from holdfast.cli.terminal import text
from holdfast.cli.terminal.exit_codes import Exit
from holdfast.engine.options import API_KEY
from holdfast.records.encoding import redaction

PR_SET_DUMPABLE = 4
_COMMANDS = {
    "run": ("run", "run"),
    "train": ("train", "train"),
    "gateway": ("gateway", "gateway"),
    "runs": ("show", "runs"),
    "show": ("show", "show"),
    "export": ("export", "export"),
    "compare": ("compare", "compare"),
    "report": ("report", "report"),
    "journal": ("journal", ""),
    "policy": ("policy", ""),
    "serve": ("serve", "serve"),
}
"""The module and the function of each command; "": its action names the function. A module is
imported when its command is used."""


def entry() -> None:
    """The console script."""
    if sys.__stderr__ is not None:
        # A crash in native code ends the process: the lines that it was in are all there is to say.
        faulthandler.enable(sys.__stderr__)
    if sys.argv[1:2] in (["run"], ["train"], ["gateway"]):
        _close_to_other_processes()
    sys.exit(main(sys.argv[1:]))


def main(arguments: Sequence[str]) -> int:
    text.prepare_streams()
    parser = _parser()
    args = parser.parse_args(arguments)
    if args.command is None:
        parser.print_help(sys.stderr)
        return Exit.USAGE
    from holdfast.cli.setup.errors import guarded

    redaction.hide(os.environ.get(getattr(args, "api_key_env", API_KEY)))
    journal = getattr(args, "file", "") or getattr(args, "journal", "")
    return guarded(lambda: _dispatch(args), journal=journal)


def _dispatch(args: argparse.Namespace) -> int:
    _arm_crash_points()
    module, function = _COMMANDS[args.command]
    command = getattr(import_module(f"holdfast.cli.commands.{module}"), function or args.action)
    code: int = command(args)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="holdfast",
        description="Durable rollouts of LLM agents: kill it at any moment, run it again, lose "
        "nothing.",
    )
    parser.add_argument("--version", action="version", version=f"holdfast {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    options.add_run(commands)
    add_train(commands)
    add_gateway(commands)
    options.add_runs(commands)
    options.add_show(commands)
    options.add_export(commands)
    add_compare(commands)
    add_report(commands)
    options.add_journal(commands)
    options.add_policy(commands)
    add_serve(commands)
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
