"""`holdfast …`: parses the words and hands over. Each command's module is imported when used."""

import argparse
import ctypes
import faulthandler
import os
import sys
from collections.abc import Sequence

from holdfast import __version__
from holdfast.cli.commands.serve import add_serve
from holdfast.cli.options import run as options
from holdfast.cli.options.gateway import add_gateway
from holdfast.cli.options.parser import Parser
from holdfast.cli.options.results import add_compare, add_report
from holdfast.cli.terminal import text
from holdfast.cli.terminal.exit_codes import Exit
from holdfast.engine.options import API_KEY
from holdfast.records import redaction

PR_SET_DUMPABLE = 4


def entry() -> None:
    """The console script."""
    if sys.__stderr__ is not None:
        # A crash in native code ends the process: the lines that it was in are all there is to say.
        faulthandler.enable(sys.__stderr__)
    if sys.argv[1:2] in (["run"], ["gateway"]):
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
    if args.command == "run":
        from holdfast.cli.commands.run import run

        return run(args)
    if args.command == "gateway":
        from holdfast.cli.commands.gateway import gateway

        return gateway(args)
    if args.command == "export":
        from holdfast.cli.commands.export import export

        return export(args)
    if args.command == "journal":
        from holdfast.cli.commands.journal import check, ledger

        return check(args) if args.action == "check" else ledger(args)
    if args.command == "serve":
        from holdfast.cli.commands.serve import serve

        return serve(args)
    if args.command == "policy":
        from holdfast.cli.commands.policy import check as check_policy

        return check_policy(args)
    return _look(args)


def _look(args: argparse.Namespace) -> int:
    if args.command == "compare":
        from holdfast.cli.commands.compare import compare

        return compare(args)
    if args.command == "report":
        from holdfast.cli.commands.report import report

        return report(args)
    from holdfast.cli.commands import show

    return show.runs(args) if args.command == "runs" else show.show(args)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="holdfast",
        description="Durable rollouts of LLM agents: kill it at any moment, run it again, lose "
        "nothing.",
    )
    parser.add_argument("--version", action="version", version=f"holdfast {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    options.add_run(commands)
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
