"""Numbers on the command line: refused where they are read, with the option's name."""

import math
from argparse import ArgumentTypeError
from collections.abc import Callable

_MOST = 2**63


def whole(at_least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        found = _integer(text)
        if not at_least <= found < _MOST:
            raise ArgumentTypeError(f"must be {at_least} or more, not {text}")
        return found

    return read


def seed(text: str) -> int:
    found = _integer(text)
    if not -_MOST <= found < _MOST:
        raise ArgumentTypeError(f"must fit in 64 bits, unlike {text}")
    return found


def number(at_least: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            found = float(text)
        except ValueError:
            raise ArgumentTypeError(f"wants a number, not {text!r}") from None
        if not (math.isfinite(found) and found >= at_least):
            raise ArgumentTypeError(f"must be {at_least:g} or more, not {text}")
        return found

    return read


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ArgumentTypeError(f"wants a whole number, not {text!r}") from None
