"""The options of the commands that make, show and export runs."""

import argparse
from typing import Any

from holdfast.engine import options
from holdfast.engine.options import Whole
from holdfast.records.samples.logprobs import Accepted
from holdfast.records.trajectory import Status

Commands = Any  # argparse's subparsers action has no public name


def add_run(commands: Commands) -> None:
    run = commands.add_parser(
        "run",
        help="run tasks × samples of a rollout, or go on with a run that was interrupted",
        description="Runs a rollout over tasks. The same command again goes on where it was.\n\n"
        "  holdfast run agent.py --tasks tasks.jsonl --samples 4 --run first \\\n"
        "      --policy http://127.0.0.1:8000 --model NAME\n\n"
        "Without --policy, the embedded engine and its small model serve the run.\n\n"
        "agent.py has an `async def` of one argument, the trajectory's context, and perhaps a\n"
        'function `score`. A line of tasks.jsonl is {"prompt": "…"} or {"messages": […]}; it may\n'
        "also have id, tools, ground_truth, metadata.",
    )
    run.add_argument(
        "rollout",
        metavar="FILE.py[:NAME]",
        help="the rollout; NAME may be left out when it is `rollout` or the only one",
    )
    whole_run(run)


def whole_run(run: argparse.ArgumentParser) -> None:
    """The options of every run: of a rollout, or of agents at a gateway."""
    run.add_argument("--tasks", required=True, metavar="FILE", help="JSONL, one task per line")
    run.add_argument(
        "--limit",
        type=Whole(1),
        metavar="N",
        help="only the first N tasks of the file (all); another N is another run",
    )
    options.POLICY.add_to(run)
    run.add_argument(
        "--model",
        metavar="NAME",
        help="the model it serves (if it serves several); a model's folder for the embedded engine",
    )
    run.add_argument("--run", required=True, metavar="NAME", help="what this run is called")
    options.JOURNAL.add_to(run)
    for title, listed in (
        ("what is sampled (part of the run's identity)", options.SAMPLING),
        ("budgets (may change from one start to the next)", options.BUDGETS),
        ("deadlines, in seconds (may change too)", options.DEADLINES),
    ):
        group = run.add_argument_group(title)
        for option in listed:
            option.add_to(group)
    group = run.add_argument_group("when the run exists already")
    which = group.add_mutually_exclusive_group()
    options.NEW.add_to(which)
    options.ACCEPT_CHANGES.add_to(which)
    options.JOIN.add_to(group)
    options.RETRY_FAILED.add_to(group)
    run.add_argument("--json", action="store_true", help="print the report as JSON")
    run.add_argument("--quiet", action="store_true", help="show no progress")


def add_runs(commands: Commands) -> None:
    runs = commands.add_parser(
        "runs",
        help="list the runs of a journal",
        description="Lists the runs of a journal: when each was begun, how far it is, who works "
        "on it.",
    )
    options.JOURNAL.add_to(runs)
    _json(runs)


def add_show(commands: Commands) -> None:
    show = commands.add_parser(
        "show",
        help="show a run, or one trajectory turn by turn",
        description="Shows a run (its report, accepted changes, trajectories), or one trajectory: "
        "turns,\ntool calls, attempts, failures with tracebacks, token counts, versions, forks.",
    )
    show.add_argument("run", metavar="RUN", help="its name, as `holdfast runs` lists it")
    show.add_argument(
        "trajectory",
        metavar="TASK/SAMPLE",
        nargs="?",
        help="as `holdfast show RUN` lists it; TASK alone is its first sample",
    )
    options.JOURNAL.add_to(show)
    show.add_argument("--all", action="store_true", help="list every trajectory")
    show.add_argument(
        "--status",
        type=str.upper,
        choices=[status.name for status in Status],
        help="list those alone that stand so",
    )
    _json(show)


def add_export(commands: Commands) -> None:
    export = commands.add_parser(
        "export",
        help="write a run's data to a file",
        description="Writes a run's data to a file, which is replaced when all of it is there.\n"
        "Samples and rows of a run with --seed that was disturbed equal those of one that was\n"
        "not, byte for byte, if its engine repeats seeds; except where an at_most_once call was\n"
        "interrupted, and, on engines with seeds for whole requests (vLLM), where a reply\n"
        "went on from durable tokens (--partial-tokens, streams to agents).",
    )
    export.add_argument("run", metavar="RUN", help="its name, as `holdfast runs` lists it")
    export.add_argument(
        "--what",
        choices=("samples", "rows", "trajectories", "failures"),
        required=True,
        help="token ids and rewards for a trainer; the same as EvaluationRows of eval-protocol, "
        "with their messages; conversations; what went wrong",
    )
    export.add_argument(
        "--format", choices=("jsonl", "parquet"), help="default: by the file's ending, else jsonl"
    )
    export.add_argument(
        "--out", required=True, metavar="FILE", help="where to; - for standard output"
    )
    export.add_argument(
        "--fixed-groups",
        action="store_true",
        help="samples: fill groups up to n with ABORTED placeholders",
    )
    export.add_argument(
        "--logprobs",
        choices=[mode.value for mode in Accepted],
        help="samples: those of another distribution than the one that was sampled from are "
        "refused (processed, the default), or exported as what they are (raw)",
    )
    export.add_argument(
        "--with-turn-traces",
        action="store_true",
        help="rows: one per trajectory, each turn with its whole prompt (large)",
    )
    options.JOURNAL.add_to(export)
    export.add_argument("--json", action="store_true", help="say what was written as JSON")


def add_journal(commands: Commands) -> None:
    journal = commands.add_parser(
        "journal", help="look after a journal file", description="Looks after a journal file."
    )
    actions = journal.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser(
        "check",
        help="verify every checksum and invariant",
        description="Verifies every checksum and invariant of a journal, and says what it found.",
    )
    check.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        default=options.JOURNAL.default,
        help="the journal (%(default)s)",
    )
    check.add_argument(
        "--repair",
        action="store_true",
        help="first cut torn logs to their last good record; what is cut is set aside",
    )
    _json(check)
    ledger = actions.add_parser(
        "ledger",
        help="say how each group of a run ended: trained, dismissed, or still open",
        description="Says how each group of a run ended, for each trainer that consumes it: "
        "trained in\na step that a checkpoint holds, dismissed with its reason, or still open.",
    )
    ledger.add_argument("run", metavar="RUN", help="the run's name")
    ledger.add_argument("--consumer", metavar="NAME", help="only this one's")
    options.JOURNAL.add_to(ledger)
    _json(ledger)


def add_policy(commands: Commands) -> None:
    policy = commands.add_parser(
        "policy", help="look at an inference engine", description="Looks at an inference engine."
    )
    actions = policy.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser(
        "check",
        help="what an endpoint can do, and what is missing for training",
        description="Samples a few tokens and says what the endpoint can do: token ids, logprobs, "
        "weight\nversions, seeds, streaming. Exits with 1 when it is not fit for training: for "
        "evaluation\nonly, or for neither.",
    )
    check.add_argument("url", metavar="URL", help="the inference engine")
    check.add_argument("--model", metavar="NAME", help="the model, if it serves several")
    options.DIALECT.add_to(check)
    options.API_KEY_ENV.add_to(check)
    _json(check)


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
