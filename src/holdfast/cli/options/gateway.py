"""The options of `holdfast gateway`."""

import argparse

from holdfast.cli.options.run import whole_run
from holdfast.engine.options import (
    CLUSTER,
    CLUSTER_CODE,
    SECONDS_OR_NONE,
    Option,
    Whole,
    seconds,
)

_LISTENING = (
    Option("host", "{}", default="127.0.0.1", metavar="HOST"),
    Option("port", "any that is free", Whole(0, 65535), 0, "N"),
    Option(
        "token-env",
        "the variable with the token that takers of trajectories send; needed beyond loopback "
        "(a token in a file that the command names)",
        metavar="NAME",
    ),
    Option("tls-cert", "serve https: the certificate, PEM", metavar="FILE"),
    Option("tls-key", "its key, PEM, without a password", metavar="FILE"),
    Option(
        "advertise",
        "the address that agents get (beyond loopback: by which others reach this "
        "machine, its full name or an address)",
        metavar="HOST|URL",
    ),
    Option("workers", "processes that serve the address together ({})", Whole(1), 1, "N"),
    Option("log", "one line for each request; -: stderr", metavar="FILE"),
    Option("as-worker", argparse.SUPPRESS),
)
_AGENTS = (
    seconds(
        "silence", 1800.0, "after which an agent that asks nothing is given up", SECONDS_OR_NONE
    ),
    seconds(
        "rejoin", 30.0, "in which an agent that outlived the gateway may go on", SECONDS_OR_NONE
    ),
    seconds(
        "drain",
        10.0,
        "in which responses under way are sent when the gateway closes",
        SECONDS_OR_NONE,
    ),
    Option(
        "ignore",
        "leave this out of every request, and say so in the record: a parameter (seed), or a "
        "type of tools (tool:web_search; tool:*); again for more",
        metavar="NAME",
        action="append",
    ),
    Option(
        "on-refused",
        "an agent was refused a call, did not ask again, and says that it is done: its "
        "trajectory has failed, or is what the agent says ({})",
        default="fail",
        choices=("fail", "accept"),
    ),
    Option("max-body", "the largest request that is read ({})", Whole(1), 64, "MIB"),
)


def add_gateway(gateway: argparse.ArgumentParser) -> None:
    gateway.description = (
        "Serves the trajectories of a run to agents that come by themselves.\n\n"
        "  holdfast gateway --tasks tasks.jsonl --samples 4 --run first --port 8100 \\\n"
        "      --policy http://127.0.0.1:8000\n\n"
        "An agent takes one with POST /trajectories, speaks to it as to OpenAI or Anthropic, and\n"
        "ends with POST /complete."
    )
    for option in (*_LISTENING, *_AGENTS):
        option.add_to(gateway)
    whole_run(gateway)
    group = gateway.add_argument_group("a cluster (needs a journal on PostgreSQL)")
    for option in (CLUSTER, *CLUSTER_CODE):
        option.add_to(group)
    gateway.add_argument("--as-node", type=int, help=argparse.SUPPRESS)
