"""`holdfast serve`: the embedded engine in the foreground."""

import argparse
from typing import Any

from holdfast.embedded import arguments


def add_serve(commands: Any) -> None:
    parser = commands.add_parser(
        "serve",
        help="serve a model on this machine, for `run --policy`",
        description=arguments.DESCRIPTION,
    )
    arguments.add_to(parser)


def serve(args: argparse.Namespace) -> int:
    from holdfast.embedded import serving

    return serving.serve(arguments.settings(args))
