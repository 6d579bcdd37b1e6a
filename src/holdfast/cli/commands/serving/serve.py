"""`holdfast serve`: the embedded engine in the foreground."""

import argparse

from holdfast.embedded import arguments


def serve(args: argparse.Namespace) -> int:
    from holdfast.embedded import serving

    return serving.serve(arguments.settings(args))
