"""The options of `holdfast run`, and the options that every run has."""

import argparse

from holdfast.cli.options.parser import Parser
from holdfast.embedded.arguments import add_vllm
from holdfast.engine import options

COMMON = (
    *("tasks", "policy", "model", "samples", "temperature"),
    *("max-tokens", "scorer", "concurrency", "run", "journal"),
)
CLUSTER = "use a cluster (needs a journal on PostgreSQL)"


def add_run(run: Parser) -> None:
    run.common = COMMON
    run.usage = "holdfast run FILE.py[:NAME] --tasks SOURCE [options]"
    run.description = (
        "Runs a rollout over tasks. If the run is interrupted, repeat the command to continue it.\n"
        "After a change of code, data or settings, the command begins the next run (agent-2) and\n"
        "samples only what is new.\n\n"
        "  holdfast run agent.py --tasks tasks.jsonl --samples 4 \\\n"
        "      --policy http://127.0.0.1:8000 --model NAME\n\n"
        "Without --policy, the embedded engine and its small model serve the run.\n\n"
        "agent.py defines an `async def` with one parameter, the trajectory, and optionally a\n"
        'function `score`. A line of tasks.jsonl is {"prompt": "…"} or {"messages": […]}; it may\n'
        "also have id, tools, ground_truth and metadata. docs/tasks.md lists other sources."
    )
    run.add_argument(
        "rollout",
        metavar="FILE.py[:NAME]",
        nargs="?",
        help="the rollout; NAME can be left out if the file has only one",
    )
    options.AGENT.add_to(run)
    options.RUN.add_to(run)
    whole_run(run)
    options.add_group(run, "check the command", (options.DRY_RUN,))
    options.add_group(run, CLUSTER, options.CLUSTER_PROCESSES)
    run.add_argument("--as-worker", type=int, help=argparse.SUPPRESS)


def whole_run(run: argparse.ArgumentParser) -> None:
    """Adds the options of every run, whether of a rollout or of agents at a gateway."""
    options.TASKS.add_to(run, required=True)
    for option in (options.POLICY, options.MODEL, options.JOURNAL):
        option.add_to(run)
    add_vllm(run)
    options.add_group(run, "choose the tasks", (options.COLUMNS, options.SYSTEM, options.LIMIT))
    for title, listed in options.SUBJECTS.items():
        options.add_group(run, title, listed)
    group = run.add_argument_group("continue an existing run")
    which = group.add_mutually_exclusive_group()
    which.add_argument("--new", "--fresh", **options.NEW.keywords())
    options.ACCEPT_CHANGES.add_to(which)
    options.JOIN.add_to(group)
    options.RETRY_FAILED.add_to(group)
    run.add_argument("--fork-of", metavar="JSON", help=argparse.SUPPRESS)


def add_serve(serve: argparse.ArgumentParser) -> None:
    from holdfast.embedded import arguments

    serve.description = arguments.DESCRIPTION
    arguments.add_to(serve)
