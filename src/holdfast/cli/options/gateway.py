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
        "listen at this port; 0: any free port (default: {})",
        Whole(0, 65535),
        0,
        "N",
    ),
    Option(
        "token-env",
        "require the token from this variable; needed beyond loopback",
        metavar="NAME",
    ),
    Option("tls-cert", "serve https with this certificate (PEM)", metavar="FILE"),
    Option("tls-key", "use this key of the certificate (PEM, without a password)", metavar="FILE"),
    Option(
        "advertise",
        "tell agents this address (default: --host, or the machine's name)",
        metavar="HOST|URL",
    ),
    Option("workers", "serve with N processes (default: {})", Whole(1), 1, "N"),
    Option("log", "write a line for each request to this file (-: standard error)", metavar="FILE"),
    Option("as-worker", argparse.SUPPRESS),
)
_AGENTS = (
    seconds(
        "silence",
        1800.0,
        "fail an agent that is silent for this time",
        SECONDS_OR_NONE,
    ),
    seconds(
        "rejoin",
        30.0,
        "after a restart, give agents this long to call again",
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
        "ignore this request parameter, or type of tools: tool:NAME",
        metavar="NAME",
        action="append",
    ),
    Option(
        "on-refused",
        "fail or accept a trajectory with a refused call (default: {})",
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
        "Records a run of agents that you start yourself. The agents call the gateway instead of\n"
        "the engine.\n\n"
        "  holdfast gateway --tasks tasks.jsonl --samples 4 --run first --port 8100 \\\n"
        "      --policy http://127.0.0.1:8000\n\n"
        "An agent gets a trajectory from POST /trajectories, calls its address like the OpenAI or\n"
        "Anthropic API, and finishes with POST /complete."
    )
    RUN.add_to(gateway, required=True, help="name the run")
    run.whole_run(gateway)
    add_group(gateway, "listen", _LISTENING)
    add_group(gateway, "control agents", _AGENTS)
    add_group(gateway, run.CLUSTER, (CLUSTER, *CLUSTER_CODE))
    gateway.add_argument("--as-node", type=int, help=argparse.SUPPRESS)
