"""The words of the command line, with what they mean."""

import argparse
from typing import Any

from holdfast.cli.options.types import number, seed, share, text, whole
from holdfast.records.logprobs import Accepted
from holdfast.records.run import MAX_SAMPLES
from holdfast.records.trajectory import Status

Commands = Any  # argparse's subparsers action has no public name
API_KEY = "HOLDFAST_API_KEY"
JOURNAL = "holdfast.db"


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
    """What every run has, wherever its trajectories come from."""
    run.add_argument("--tasks", required=True, metavar="FILE", help="JSONL, one task per line")
    run.add_argument(
        "--limit",
        type=whole(1),
        metavar="N",
        help="only the first N tasks of the file (all); another N is another run",
    )
    run.add_argument(
        "--policy",
        action="append",
        metavar="URL",
        help="the inference engine; several times for several replicas; none: the embedded engine",
    )
    run.add_argument(
        "--model",
        metavar="NAME",
        help="the model it serves (if it serves several); a model's folder for the embedded engine",
    )
    run.add_argument("--run", required=True, metavar="NAME", help="what this run is called")
    _journal(run)
    _sampling(run)
    _budgets(run)
    _deadlines(run)
    _identity(run)
    run.add_argument("--json", action="store_true", help="print the report as JSON")
    run.add_argument("--quiet", action="store_true", help="show no progress")


def _sampling(run: argparse.ArgumentParser) -> None:
    group = run.add_argument_group("what is sampled (part of the run's identity)")
    group.add_argument(
        "--samples",
        type=whole(1, MAX_SAMPLES),
        metavar="N",
        help="per task (1, or the rollout's own n)",
    )
    group.add_argument("--seed", type=seed, metavar="N", help="derive each request's seed from N")
    group.add_argument(
        "--temperature", type=number(0), default=1.0, metavar="T", help="%(default)s"
    )
    group.add_argument("--top-p", type=share, default=1.0, metavar="P", help="%(default)s")
    group.add_argument(
        "--max-tokens", type=whole(1), default=1024, metavar="N", help="per reply (%(default)s)"
    )
    group.add_argument(
        "--stop",
        action="append",
        default=[],
        type=text,
        metavar="TEXT",
        help="a text that ends a reply when it is said; again for more",
    )
    group.add_argument(
        "--reasoning-effort",
        metavar="LEVEL",
        help="how long the model thinks: low, medium, high, … (its own; refused where it has none)",
    )
    group.add_argument(
        "--tokenizer",
        metavar="DIR",
        help="the folder of the model's tokenizer (what the engine names)",
    )
    group.add_argument(
        "--renderer",
        metavar="NAME",
        help="how messages become tokens: a model family, template, or bytes (by the tokenizer)",
    )
    group.add_argument(
        "--scorer",
        metavar="[FILE.py:]NAME",
        help="the function that rewards (`score` of the rollout's file, if there is one)",
    )
    group.add_argument(
        "--group-refill",
        type=whole(0),
        default=1,
        metavar="N",
        help="how often a sample that infrastructure broke is made anew (%(default)s)",
    )
    group.add_argument(
        "--group-shortfall",
        choices=("partial", "drop"),
        default="partial",
        help="what becomes of a task's samples when some failed for good (%(default)s)",
    )
    group.add_argument(
        "--group-at-least",
        type=whole(1),
        default=1,
        metavar="M",
        help="partial: how many must be valid (%(default)s)",
    )


def _budgets(run: argparse.ArgumentParser) -> None:
    group = run.add_argument_group("budgets (may change from one start to the next)")
    group.add_argument(
        "--concurrency",
        type=whole(1),
        default=64,
        metavar="N",
        help="trajectories at once (%(default)s)",
    )
    group.add_argument(
        "--max-retry",
        type=whole(0),
        default=3,
        metavar="N",
        help="how often a failed trajectory is tried again (%(default)s)",
    )
    group.add_argument(
        "--max-failures",
        type=whole(1),
        metavar="N",
        help="stop when so many failed for good since the start (go on)",
    )
    group.add_argument(
        "--fail-on-permanent-failure",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="exit with 1 when a trajectory failed for good",
    )
    group.add_argument(
        "--call-tries",
        type=whole(1),
        default=5,
        metavar="N",
        help="of one call to the engine (%(default)s)",
    )
    group.add_argument(
        "--scorer-tries", type=whole(1), default=2, metavar="N", help="of one score (%(default)s)"
    )
    group.add_argument(
        "--partial-tokens",
        type=whole(0),
        default=0,
        metavar="N",
        help="stream, and make each N tokens of an unfinished reply durable; 0: whole replies only "
        "(with --seed on vLLM: only these repeat, when interrupted)",
    )
    _dialect(group)
    group.add_argument(
        "--on-divergence",
        choices=("fork", "fail"),
        default="fork",
        help="when the rollout no longer does what is recorded (%(default)s)",
    )
    _api_key(group)


def _deadlines(run: argparse.ArgumentParser) -> None:
    group = run.add_argument_group("deadlines, in seconds (may change too)")
    for name, default, meaning in (
        ("--try-timeout", 1800.0, "one try of a call"),
        ("--stall-timeout", 300.0, "how long a stream may send nothing"),
        ("--call-deadline", 3600.0, "a call with all its tries"),
        ("--attempt-deadline", 21600.0, "one attempt at a trajectory"),
        ("--scorer-timeout", 300.0, "one score"),
        ("--patience", 900.0, "how long to wait for an engine that is down"),
        ("--lease", 30.0, "after how much silence others may take the work over"),
        ("--grace", 10.0, "at a signal: how long calls in flight may finish"),
    ):
        least = 0.0 if name in ("--patience", "--grace") else 0.001
        group.add_argument(
            name,
            type=number(least),
            default=default,
            metavar="SECONDS",
            help=f"{meaning} ({default:g})",
        )
    group.add_argument(
        "--run-deadline", type=number(0.001), metavar="SECONDS", help="this command (none)"
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
    group.add_argument(
        "--retry-failed", action="store_true", help="try again those that failed for good"
    )


def add_runs(commands: Commands) -> None:
    runs = commands.add_parser(
        "runs",
        help="list the runs of a journal",
        description="Lists the runs of a journal: when each was begun, how far it is, who works "
        "on it.",
    )
    _journal(runs)
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
    _journal(show)
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
        "interrupted, and, on engines whose seeds hold for whole requests (vLLM), where a reply\n"
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
        choices=[one.value for one in Accepted],
        help="samples: those of another distribution than the one that was sampled from are "
        "refused (processed, the default), or exported as what they are (raw)",
    )
    export.add_argument(
        "--with-turn-traces",
        action="store_true",
        help="rows: one per trajectory, each turn with its whole prompt (large)",
    )
    _journal(export)
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
        "file", metavar="FILE", nargs="?", default=JOURNAL, help="the journal (%(default)s)"
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
    _journal(ledger)
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
    _dialect(check)
    _api_key(check)
    _json(check)


def _dialect(parser: Any) -> None:
    parser.add_argument(
        "--dialect",
        choices=("vllm", "vllm-generate", "sglang", "fireworks", "chat"),
        help="how to speak to the engine (found out)",
    )


def _api_key(parser: Any) -> None:
    parser.add_argument(
        "--api-key-env",
        default=API_KEY,
        metavar="NAME",
        help="the environment variable that holds the engine's key (%(default)s)",
    )


def _journal(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--journal", default=JOURNAL, metavar="PATH", help="the file (%(default)s)")


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
