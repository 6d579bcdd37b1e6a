"""The options of `holdfast view` and `holdfast trace`."""

import argparse

from holdfast.engine.option_kinds import Whole
from holdfast.engine.options import JOURNAL, OTEL, PRICE

MAX_PORT = 65_535


def add_view(view: argparse.ArgumentParser) -> None:
    view.description = (
        "Shows the runs of a journal in a browser: conversations, tokens, failures, and how a\n"
        "training goes. The pages of a live run update themselves. They change nothing in the\n"
        "journal, unless you tag a run or fork a trajectory.\n\n"
        "  holdfast view\n"
        "  holdfast view first --journal other.db"
    )
    view.add_argument(
        "run",
        metavar="RUN",
        nargs="?",
        help="open the page of this run (default: the list of runs)",
    )
    JOURNAL.add_to(view)
    view.add_argument(
        "--port",
        type=Whole(0, MAX_PORT),
        metavar="N",
        help="listen on this port of 127.0.0.1; 0: any free port (default: 7777)",
    )
    view.add_argument("--open", action="store_true", help="open the page in a browser")
    PRICE.add_to(view)
    view.add_argument(
        "--tokenizer", metavar="DIR", help="show tokens with the tokenizer in this folder"
    )
    view.add_argument("--until-stdin-closes", action="store_true", help=argparse.SUPPRESS)


def add_trace(trace: argparse.ArgumentParser) -> None:
    trace.description = (
        "Sends a recorded run to an OpenTelemetry collector: spans of the run, its trajectories,\n"
        "turns and tool calls, and its training steps. If you send a run again, the spans have\n"
        "the same ids. `holdfast run --otel URL` sends a run while it is live.\n\n"
        "  holdfast trace first --otel http://127.0.0.1:4318"
    )
    trace.add_argument("run", metavar="RUN", nargs="?", help="the run")
    OTEL.add_to(trace, required=True)
    JOURNAL.add_to(trace)
    trace.add_argument("--until-stdin-closes", action="store_true", help=argparse.SUPPRESS)
