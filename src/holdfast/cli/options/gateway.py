"""The options of `holdfast gateway`."""

import argparse

from holdfast.cli.options.run import Commands, whole_run
from holdfast.engine.options import SECONDS_OR_NONE, Whole


def add_gateway(commands: Commands) -> None:
    gateway = commands.add_parser(
        "gateway",
        help="a run of agents that others start: they come to a gateway and take trajectories",
        description="Serves the trajectories of a run to agents that come by themselves.\n\n"
        "  holdfast gateway --tasks tasks.jsonl --samples 4 --run first --port 8100 \\\n"
        "      --policy http://127.0.0.1:8000\n\n"
        "An agent takes one with POST /trajectories, speaks to it as to OpenAI or Anthropic, and\n"
        "ends with POST /complete.",
    )
    gateway.add_argument("--host", default="127.0.0.1", metavar="HOST", help="%(default)s")
    gateway.add_argument(
        "--port", type=Whole(0, 65535), default=0, metavar="N", help="any that is free"
    )
    gateway.add_argument(
        "--token-env",
        metavar="NAME",
        help="the variable with the token that takers of trajectories send; needed beyond loopback",
    )
    _tls(gateway)
    _agents(gateway)
    whole_run(gateway)


def _tls(gateway: argparse.ArgumentParser) -> None:
    gateway.add_argument("--tls-cert", metavar="FILE", help="serve https: the certificate, PEM")
    gateway.add_argument("--tls-key", metavar="FILE", help="its key, PEM, without a password")
    gateway.add_argument(
        "--advertise",
        metavar="HOST|URL",
        help="the address that agents get (beyond loopback: by which others reach this "
        "machine, its full name or an address)",
    )
    gateway.add_argument(
        "--workers",
        type=Whole(1),
        default=1,
        metavar="N",
        help="processes that serve the address together (%(default)s)",
    )
    gateway.add_argument("--log", metavar="FILE", help="one line for each request; -: stderr")
    gateway.add_argument("--as-worker", help=argparse.SUPPRESS)


def _agents(gateway: argparse.ArgumentParser) -> None:
    for name, default, meaning in (
        ("--silence", 1800.0, "after which an agent that asks nothing is given up"),
        ("--rejoin", 30.0, "in which an agent that outlived the gateway may go on"),
        ("--drain", 10.0, "in which responses under way are sent when the gateway closes"),
    ):
        gateway.add_argument(
            name,
            type=SECONDS_OR_NONE,
            default=default,
            metavar="SECONDS",
            help=f"{meaning} ({default:g})",
        )
    gateway.add_argument(
        "--ignore",
        action="append",
        metavar="NAME",
        help="leave this out of every request, and say so in the record: a parameter (seed), or a "
        "type of tools (tool:web_search; tool:*); again for more",
    )
    gateway.add_argument(
        "--on-refused",
        choices=["fail", "accept"],
        default="fail",
        help="an agent was refused a call, did not ask again, and says that it is done: its "
        "trajectory has failed, or is what the agent says (%(default)s)",
    )
    gateway.add_argument(
        "--max-body",
        type=Whole(1),
        default=64,
        metavar="MIB",
        help="the largest request that is read (%(default)s)",
    )
