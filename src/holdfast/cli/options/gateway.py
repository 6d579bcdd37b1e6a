"""The options of `holdfast gateway`."""

import argparse

from holdfast.cli.options import run
from holdfast.cli.options.parser import Parser
from holdfast.engine.option_kinds import SECONDS_OR_NONE, Whole
from holdfast.engine.options import CLUSTER, CLUSTER_CODE, RUN, Option, add_group, seconds

_LISTENING = (
    Option(
        "host",
        "listen at this address (default: {})",
        default="127.0.0.1",
        metavar="HOST",
    ),
    Option(
        "port",
        "listen at this port; 0 takes a free one (default: {})",
        Whole(0, 65535),
        0,
        "N",
    ),
    Option(
        "token-env",
        "take agents' token from this variable; needed beyond loopback",
        metavar="NAME",
    ),
    Option("tls-cert", "serve https with this certificate, PEM", metavar="FILE"),
    Option("tls-key", "use this key of the certificate, PEM without a password", metavar="FILE"),
    Option(
        "advertise",
        "give agents this address (default: its own, or the machine's name)",
        metavar="HOST|URL",
    ),
    Option("workers", "serve with N processes (default: {})", Whole(1), 1, "N"),
    Option("log", "write one line for each request to this file; - is stderr", metavar="FILE"),
    Option("as-worker", argparse.SUPPRESS),
)
_AGENTS = (
    seconds(
        "silence", 1800.0, "give up an agent that sends nothing for this time", SECONDS_OR_NONE
    ),
    seconds(
        "rejoin",
        30.0,
        "after a restart, wait this long for living agents",
        SECONDS_OR_NONE,
    ),
    seconds(
        "drain",
        10.0,
        "when closing, wait this long to send responses",
        SECONDS_OR_NONE,
    ),
    Option(
        "ignore",
        "ignore this parameter or type of tools (tool:NAME); repeatable",
        metavar="NAME",
        action="append",
    ),
    Option(
        "on-refused",
        "fail or accept an agent's end after a refused call (default: {})",
        default="fail",
        choices=("fail", "accept"),
    ),
    Option("max-body", "refuse requests larger than this (default: {})", Whole(1), 64, "MIB"),
)


COMMON = (
    *("tasks", "run", "host", "port", "policy"),
    *("model", "samples", "scorer", "concurrency", "journal"),
)


def add_gateway(gateway: Parser) -> None:
    gateway.common = COMMON
    gateway.usage = "holdfast gateway --tasks SOURCE --run NAME [options]"
    gateway.description = (
        "Serves the trajectories of a run to agents that come by themselves.\n\n"
        "  holdfast gateway --tasks tasks.jsonl --samples 4 --run first --port 8100 \\\n"
        "      --policy http://127.0.0.1:8000\n\n"
        "An agent takes one with POST /trajectories, speaks to it as to OpenAI or Anthropic, and\n"
        "ends with POST /complete."
    )
    RUN.add_to(gateway, required=True, help="name the run")
    run.whole_run(gateway)
    add_group(gateway, "listen", _LISTENING)
    add_group(gateway, "deal with agents", _AGENTS)
    add_group(gateway, run.CLUSTER, (CLUSTER, *CLUSTER_CODE))
    gateway.add_argument("--as-node", type=int, help=argparse.SUPPRESS)
