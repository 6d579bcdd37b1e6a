"""Values on the command line: refused where they are read, with the option's name."""

import math
from argparse import ArgumentTypeError
from collections.abc import Callable

MOST = 2**63 - 1


def whole(at_least: int, at_most: int = MOST) -> Callable[[str], int]:
    """A whole number; one that is too large is told both bounds."""

    def read(text: str) -> int:
        found = _integer(text)
        if found < at_least:
            raise ArgumentTypeError(f"must be {at_least} or more, not {text}")
        if found > at_most:
            raise ArgumentTypeError(f"must be {at_least} to {at_most}, not {text}")
        return found

    return read


def seed(text: str) -> int:
    found = _integer(text)
    if not -MOST - 1 <= found <= MOST:
        raise ArgumentTypeError(f"must fit in 64 bits, unlike {text}")
    return found


def number(at_least: float) -> Callable[[str], float]:
    """A number; one without a size is told that it needs one."""

    def read(text: str) -> float:
        found = _number(text)
        if not math.isfinite(found):
            raise ArgumentTypeError(f"must be a finite number, {at_least:g} or more, not {text}")
        if found < at_least:
            raise ArgumentTypeError(f"must be {at_least:g} or more, not {text}")
        return found

    return read


def share(text: str) -> float:
    found = _number(text)
    if not 0 < found <= 1:
        raise ArgumentTypeError(f"must be above 0 and at most 1, not {text}")
    return found


def text(given: str) -> str:
    """Any but none at all."""
    if not given:
        raise ArgumentTypeError("wants a text, not an empty one")
    return given


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ArgumentTypeError(f"wants a whole number, not {text!r}") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ArgumentTypeError(f"wants a number, not {text!r}") from None
