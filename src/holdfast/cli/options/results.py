"""The options of the commands that compare and report results."""

from typing import Any

from holdfast.engine.options import FORCE, FULL_TRACEBACKS, JOURNAL, PRICE, Whole

Commands = Any  # argparse's subparsers action has no public name
MEGABYTES = 64


def add_compare(commands: Commands) -> None:
    compare = commands.add_parser(
        "compare",
        help="compare the scores of two runs, task by task",
        description="Compares two runs on the tasks that both have: the mean difference of B from\n"
        "A with its standard error, interval and p value, the tasks that changed most, and what\n"
        "differs in how the runs were made. A RUN that is no run of the journal but a file is\n"
        "read as results of another tool (EvaluationRows, Inspect logs, verifiers results).",
    )
    compare.add_argument("run_a", metavar="RUN_A", help="the one to compare with")
    compare.add_argument("run_b", metavar="RUN_B", help="the one that is compared")
    JOURNAL.add_to(compare)
    compare.add_argument("--journal-b", metavar="PATH", help="where RUN_B is, if elsewhere")
    compare.add_argument("--metric", metavar="NAME", help="compare a metric instead of the score")
    compare.add_argument(
        "--by-id", action="store_true", help="also compare tasks that ask something else in B"
    )
    compare.add_argument("--json", action="store_true", help="print JSON, for scripts")


def add_report(commands: Commands) -> None:
    report = commands.add_parser(
        "report",
        help="a run in numbers, or as one HTML file that needs no server and no network",
        description="Prints what became of a run: outcomes, rewards, failures, what was trained,\n"
        "and input, target and answer of its rows, by task. With --out, writes it as one HTML\n"
        "file with the learning curve and every conversation, which opens without a server, asks\n"
        "the network for nothing, and is replaced when all of it is there.",
    )
    report.add_argument("run", metavar="RUN", help="its name, as `holdfast runs` lists it")
    report.add_argument("--out", metavar="FILE.html", help="write HTML (print the numbers)")
    FORCE.add_to(report)
    report.add_argument("--all", action="store_true", help="print every row, not the first 40")
    JOURNAL.add_to(report)
    PRICE.add_to(report)
    FULL_TRACEBACKS.add_to(report)
    report.add_argument(
        "--tokenizer",
        metavar="DIR",
        help="the folder of the model's tokenizer: replies are then shown token by token",
    )
    report.add_argument(
        "--max-megabytes",
        type=Whole(1),
        default=MEGABYTES,
        metavar="N",
        help="how large the conversations may be together; beyond, they are shortened "
        "(%(default)s)",
    )
    report.add_argument(
        "--json", action="store_true", help="the numbers, or what was written, as JSON"
    )
