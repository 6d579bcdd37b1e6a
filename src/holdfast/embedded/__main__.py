"""`python -m holdfast.embedded`: the same as `holdfast serve`."""

import argparse
import sys

from holdfast.embedded import arguments, serving
from holdfast.records.errors import UsageError

_USAGE = 2


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m holdfast.embedded",
        description=arguments.DESCRIPTION,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    arguments.add_to(parser)
    args = parser.parse_args()
    try:
        return serving.serve(arguments.settings(args))
    except UsageError as error:
        sys.stderr.write(f"holdfast: {error}\n")
        return _USAGE


if __name__ == "__main__":
    sys.exit(main())
