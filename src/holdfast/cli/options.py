"""The words of the command line, with what they mean."""

import argparse
from typing import Any

from holdfast.cli.exit import Exit

Commands = Any  # argparse's subparsers action has no public name
EXIT_CODES = "exit codes: " + ", ".join(f"{code.value} {code.name.lower()}" for code in Exit)


def add_run(commands: Commands) -> None:
    run = commands.add_parser(
        "run",
        help="run tasks × samples of a rollout, or go on with a run that was interrupted",
        description="Runs a rollout over tasks. The same command again goes on where it was.",
        epilog=EXIT_CODES,
    )
    run.add_argument("rollout", metavar="FILE.py[:NAME]", help="the rollout, and its name")
    run.add_argument("--tasks", required=True, metavar="FILE", help="JSONL, one task per line")
    run.add_argument("--policy", required=True, metavar="URL", help="the inference engine")
    run.add_argument("--model", required=True, metavar="NAME", help="the model it serves")
    run.add_argument("--run", required=True, metavar="NAME", help="what this run is called")
    _journal(run)
    _sampling(run)
    _budgets(run)
    _identity(run)
    run.add_argument("--json", action="store_true", help="print the report as JSON")
    run.add_argument("--quiet", action="store_true", help="no progress")


def _sampling(run: argparse.ArgumentParser) -> None:
    group = run.add_argument_group("sampling (part of the run's identity)")
    group.add_argument("--samples", type=int, default=1, metavar="N", help="samples per task")
    group.add_argument("--seed", type=int, metavar="N", help="derive each request's seed from N")
    group.add_argument("--temperature", type=float, default=1.0, metavar="T")
    group.add_argument("--top-p", type=float, default=1.0, metavar="P")
    group.add_argument("--max-tokens", type=int, default=1024, metavar="N", help="per reply")
    group.add_argument("--scorer", metavar="[FILE.py:]NAME", help="default: `score` in the file")
    group.add_argument("--group-refill", type=int, default=1, metavar="N")
    group.add_argument("--group-shortfall", choices=("partial", "drop"), default="partial")
    group.add_argument("--group-at-least", type=int, default=1, metavar="M")


def _budgets(run: argparse.ArgumentParser) -> None:
    group = run.add_argument_group("budgets (may change from one start to the next)")
    group.add_argument("--concurrency", type=int, default=64, metavar="N")
    group.add_argument("--max-retry", type=int, default=3, metavar="N", help="attempts per failure")
    group.add_argument(
        "--fail-on-permanent-failure",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="exit with 1 when a trajectory failed for good",
    )
    group.add_argument("--call-tries", type=int, default=5, metavar="N", help="per HTTP call")
    group.add_argument("--try-timeout", type=float, default=1800.0, metavar="SECONDS")
    group.add_argument("--call-deadline", type=float, default=3600.0, metavar="SECONDS")
    group.add_argument("--attempt-deadline", type=float, default=21600.0, metavar="SECONDS")
    group.add_argument("--run-deadline", type=float, metavar="SECONDS")
    group.add_argument(
        "--patience",
        type=float,
        default=900.0,
        metavar="SECONDS",
        help="how long to wait for an endpoint that is down",
    )
    group.add_argument("--scorer-timeout", type=float, default=300.0, metavar="SECONDS")
    group.add_argument("--scorer-tries", type=int, default=2, metavar="N")
    group.add_argument("--lease", type=float, default=30.0, metavar="SECONDS")
    group.add_argument("--grace", type=float, default=10.0, metavar="SECONDS", help="at a signal")
    group.add_argument("--on-divergence", choices=("fork", "fail"), default="fork")
    group.add_argument(
        "--api-key-env",
        default="HOLDFAST_API_KEY",
        metavar="NAME",
        help="the environment variable that holds the endpoint's key",
    )


def _identity(run: argparse.ArgumentParser) -> None:
    group = run.add_argument_group("when the run exists already")
    which = group.add_mutually_exclusive_group()
    which.add_argument("--new", action="store_true", help="start another run, NAME-2 and so on")
    which.add_argument(
        "--accept-changes",
        action="store_true",
        help="go on although tasks, sampling or code changed; it is recorded",
    )
    group.add_argument("--join", action="store_true", help="share the run with a live worker")
    group.add_argument("--retry-failed", action="store_true", help="give failed ones new budgets")


def add_runs(commands: Commands) -> None:
    runs = commands.add_parser("runs", help="list the runs of a journal")
    _journal(runs)
    runs.add_argument("--json", action="store_true")


def add_show(commands: Commands) -> None:
    show = commands.add_parser("show", help="show a run, or one trajectory turn by turn")
    show.add_argument("run", metavar="RUN")
    show.add_argument("trajectory", metavar="TASK/SAMPLE", nargs="?")
    _journal(show)
    show.add_argument("--all", action="store_true", help="list every trajectory")
    show.add_argument("--json", action="store_true")


def add_export(commands: Commands) -> None:
    export = commands.add_parser("export", help="write a run's data to a file")
    export.add_argument("run", metavar="RUN")
    export.add_argument("--what", choices=("samples", "trajectories", "failures"), required=True)
    export.add_argument("--format", choices=("jsonl", "parquet"), default="jsonl")
    export.add_argument("--out", required=True, metavar="FILE")
    export.add_argument(
        "--fixed-groups",
        action="store_true",
        help="samples: fill groups up to n with ABORTED placeholders",
    )
    _journal(export)
    export.add_argument("--json", action="store_true", help="say what was written as JSON")


def add_journal(commands: Commands) -> None:
    journal = commands.add_parser("journal", help="look after a journal file")
    actions = journal.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser("check", help="verify every checksum and invariant")
    check.add_argument("file", metavar="FILE")
    check.add_argument(
        "--repair", action="store_true", help="cut torn logs to the last good record"
    )
    check.add_argument("--json", action="store_true")


def _journal(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--journal", default="holdfast.db", metavar="PATH", help="default: holdfast.db"
    )
