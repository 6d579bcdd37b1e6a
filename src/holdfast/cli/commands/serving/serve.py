"""`holdfast serve`: the embedded engine in the foreground."""

import argparse

from holdfast.embedded import arguments, serving


def serve(args: argparse.Namespace) -> int:
    return serving.serve(arguments.settings(args))
