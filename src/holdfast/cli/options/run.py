"""The options of `holdfast run`, and those that every run has."""

import argparse

from holdfast.engine import options


def add_run(run: argparse.ArgumentParser) -> None:
    run.description = (
        "Runs a rollout over tasks. The same command again goes on where it was.\n\n"
        "  holdfast run agent.py --tasks tasks.jsonl --samples 4 --run first \\\n"
        "      --policy http://127.0.0.1:8000 --model NAME\n\n"
        "Without --policy, the embedded engine and its small model serve the run.\n\n"
        "agent.py has an `async def` of one argument, the trajectory's context, and perhaps a\n"
        'function `score`. A line of tasks.jsonl is {"prompt": "…"} or {"messages": […]}; it may\n'
        "also have id, tools, ground_truth, metadata. docs/tasks.md: other sources of tasks."
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


def add_serve(serve: argparse.ArgumentParser) -> None:
    from holdfast.embedded import arguments

    serve.description = arguments.DESCRIPTION
    arguments.add_to(serve)
