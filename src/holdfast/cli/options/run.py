"""The options of the commands that make, show and export runs."""

import argparse
from typing import Any

from holdfast.engine import options
from holdfast.engine.options import Number, Whole
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
        "also have id, tools, ground_truth, metadata. docs/tasks.md: other sources of tasks.",
    )
    run.add_argument(
        "rollout",
        metavar="FILE.py[:NAME]",
        help="the rollout; NAME may be left out when it is `rollout` or the only one",
    )
    whole_run(run)
    group = run.add_argument_group("a cluster (needs a journal on PostgreSQL)")
    for option in options.CLUSTER_PROCESSES:
        option.add_to(group)
    run.add_argument("--as-worker", type=int, help=argparse.SUPPRESS)


def whole_run(run: argparse.ArgumentParser) -> None:
    """The options of every run: of a rollout, or of agents at a gateway."""
    options.TASKS.add_to(run, required=True)
    options.COLUMNS.add_to(run)
    options.SYSTEM.add_to(run)
    options.LIMIT.add_to(run)
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
    group = run.add_argument_group("processes (may change too)")
    options.SCORE_WORKERS.add_to(group)
    options.SCORE_CONCURRENCY.add_to(group)
    group = run.add_argument_group("when the run exists already")
    which = group.add_mutually_exclusive_group()
    options.NEW.add_to(which)
    options.ACCEPT_CHANGES.add_to(which)
    options.JOIN.add_to(group)
    options.RETRY_FAILED.add_to(group)
    options.FULL_TRACEBACKS.add_to(run)
    run.add_argument("--json", action="store_true", help="print the report as JSON")
    run.add_argument("--quiet", action="store_true", help="show no progress")


def add_runs(commands: Commands) -> None:
    runs = commands.add_parser(
        "runs",
        help="list the runs of a journal",
        description="Lists the runs of a journal: when each was begun, how far it is, its model,\n"
        "mean reward and tags, who works on it, how much of it is trained, and how to go on.",
    )
    options.JOURNAL.add_to(runs)
    runs.add_argument("--all", action="store_true", help="each evaluation of a training, too")
    runs.add_argument("--names", action="store_true", help="print their names alone, for scripts")
    runs.add_argument("--tag", metavar="TAG", help="only those with this tag")
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
    options.PRICE.add_to(show)
    options.FULL_TRACEBACKS.add_to(show)
    _json(show)


def add_logs(commands: Commands) -> None:
    logs = commands.add_parser(
        "logs",
        help="find what the processes of a run have logged",
        description="Lists the log files of a run's processes (scorers, workers, gateways), with "
        "their last lines.",
    )
    logs.add_argument("run", metavar="RUN", help="its name")
    options.JOURNAL.add_to(logs)
    logs.add_argument(
        "--tail", type=Whole(0), default=5, metavar="N", help="last lines of each (%(default)s)"
    )
    _json(logs)


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
        choices=(
            *("samples", "rows", "trajectories", "failures"),
            *("verl", "slime", "trl", "nemo", "tinker", "sft"),
        ),
        required=True,
        help="token ids and rewards for a trainer; the same as EvaluationRows of eval-protocol, "
        "with their messages; conversations; what went wrong; or the samples as the rows of "
        "another trainer (verl, slime, TRL, NeMo-RL, Tinker), or for supervised fine-tuning",
    )
    _where_to(export)
    _for_some_kinds(export)
    options.JOURNAL.add_to(export)
    options.PRICE.add_to(export, help="rows, trajectories: with what they cost, by this table")
    export.add_argument("--json", action="store_true", help="say what was written as JSON")


def _where_to(export: argparse.ArgumentParser) -> None:
    export.add_argument(
        "--format",
        choices=("jsonl", "parquet", "csv"),
        help="default: by the file's ending, else jsonl",
    )
    export.add_argument(
        "--out", required=True, metavar="FILE", help="where to; - for standard output"
    )
    options.FORCE.add_to(export)


def _underscored(word: str) -> str:
    """Values that have an underscore in Python may be spelled with a dash, as options are."""
    return word.replace("-", "_")


def _for_some_kinds(export: argparse.ArgumentParser) -> None:
    """Options that go with some values of `--what` alone."""
    export.add_argument(
        "--fixed-groups",
        action="store_true",
        help="samples, slime, trl: fill groups up to n with ABORTED placeholders",
    )
    export.add_argument(
        "--logprobs",
        choices=[mode.value for mode in Accepted],
        help="those of another distribution than the one that was sampled from are "
        "refused (processed, the default), or exported as what they are (raw)",
    )
    export.add_argument(
        "--branches",
        choices=("refuse", "longest"),
        help="trl, nemo: of a trajectory with several branches, keep the longest (refuse)",
    )
    export.add_argument(
        "--missing-reward",
        type=_underscored,
        choices=("refuse", "leave_out"),
        help="verl, slime, nemo: leave out what nobody scored (refuse)",
    )
    export.add_argument(
        "--min-reward",
        type=Number("any", lambda value: True),
        metavar="REWARD",
        help="sft: only what earned as much",
    )
    export.add_argument(
        "--sft-layout",
        type=_underscored,
        choices=("messages", "prompt_completion"),
        help="sft: the whole conversation (messages), or what was there before the first reply, "
        "and the rest",
    )
    export.add_argument(
        "--with-turn-traces",
        action="store_true",
        help="rows: one per trajectory, each turn with its whole prompt (large)",
    )


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
    compact = actions.add_parser(
        "compact",
        help="give the space of deleted runs back to the disk",
        description="Gives the space of deleted runs back to the disk. Needs room for a copy of "
        "what is\nleft, for a moment; is not done while somebody works.",
    )
    compact.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        default=options.JOURNAL.default,
        help="the journal (%(default)s)",
    )
    _json(compact)
    copy = actions.add_parser(
        "copy",
        help="copy runs to another journal, and compare",
        description="Copies runs between files and PostgreSQL servers, in either direction, and "
        "compares the\ncopy with the original. Nobody may work on them meanwhile.",
    )
    copy.add_argument("source", metavar="FROM", help="a file, or postgresql://USER@HOST/DATABASE")
    copy.add_argument("target", metavar="TO", help="the same; a file that is not there is made")
    copy.add_argument("runs", metavar="RUN", nargs="*", default=[], help="only these (all)")
    _json(copy)
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
