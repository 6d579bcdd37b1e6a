"""The options of `holdfast view` and `holdfast trace`."""

import argparse

from holdfast.engine.option_kinds import Whole
from holdfast.engine.options import JOURNAL, OTEL, PRICE

MAX_PORT = 65_535


def add_view(view: argparse.ArgumentParser) -> None:
    view.description = (
        "Shows the runs of a journal in a browser: conversations, tokens, failures, and how a\n"
        "training goes. Pages follow runs that are being worked on. They only read, except that\n"
        "you can tag runs.\n\n"
        "  holdfast view\n"
        "  holdfast view first --journal other.db"
    )
    view.add_argument(
        "run", metavar="RUN", nargs="?", help="begin with this run (default: the list of runs)"
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
        "Sends what a run has recorded to an OpenTelemetry collector: spans of the run, of its\n"
        "trajectories, turns and tool calls, and of training steps. Sending a run again sends the\n"
        "same spans. `holdfast run --otel URL` sends a run while it works.\n\n"
        "  holdfast trace first --otel http://127.0.0.1:4318"
    )
    trace.add_argument("run", metavar="RUN", nargs="?", help="the run")
    OTEL.add_to(trace, required=True)
    JOURNAL.add_to(trace)
    trace.add_argument("--until-stdin-closes", action="store_true", help=argparse.SUPPRESS)
