"""Reads the text of an option as a whole number, a bounded number, a list, JSON or a table.

Each reader takes a text of the command line, and raises `ArgumentTypeError` if the text is wrong.
`Whole` and `Number` also check a value from Python and raise `UsageError`. This module imports
nothing slow.
"""

import json
import math
from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.records.errors import UsageError

MAX_INTEGER = 2**63 - 1


@dataclass(frozen=True)
class Whole:
    """A whole number."""

    least: int
    most: int = MAX_INTEGER

    def __call__(self, text: str) -> int:
        """Reads the text of a command line. Raises `ArgumentTypeError`."""
        try:
            value = int(text)
        except ValueError:
            raise ArgumentTypeError(f"wants a whole number, not {text!r}") from None
        if wrong := self._wrong(value):
            raise ArgumentTypeError(f"{wrong}, not {text}")
        return value

    def check(self, name: str, value: object) -> None:
        """Checks a value from Python. Raises `UsageError`."""
        if not isinstance(value, int) or isinstance(value, bool):
            raise UsageError(f"{name} must be a whole number, not {value!r:.100}")
        if wrong := self._wrong(value):
            raise UsageError(f"{name} {wrong}, not {value}")

    def _wrong(self, value: int) -> str:
        if self.least < 0 and not self.least <= value <= self.most:
            return "must fit in 64 bits"
        if value < self.least:
            return f"must be {self.least} or more"
        return f"must be {self.least} to {self.most}" if value > self.most else ""


@dataclass(frozen=True)
class Number:
    """A number within a bound. A command line refuses infinite numbers."""

    bound: str
    fits: Callable[[float], bool]

    def __call__(self, text: str) -> float:
        """Reads the text of a command line. Raises `ArgumentTypeError`."""
        try:
            value = float(text)
        except ValueError:
            raise ArgumentTypeError(f"wants a number, not {text!r}") from None
        if not math.isfinite(value):
            raise ArgumentTypeError(f"must be a finite number, {self.bound}, not {text}")
        if not self.fits(value):
            raise ArgumentTypeError(f"must be {self.bound}, not {text}")
        return value

    def check(self, name: str, value: object) -> None:
        """Checks a value from Python. Raises `UsageError`."""
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise UsageError(f"{name} must be a number, not {value!r:.100}")
        if not self.fits(value):
            raise UsageError(f"{name} must be {self.bound}, not {value}")


FINITE = Number("of any size", lambda value: True)
POSITIVE = Number("0 or more", lambda value: value >= 0)
GROWTH = Number("1 or more", lambda value: value >= 1)
FRACTION = Number("0 to 1", lambda value: 0 <= value <= 1)
PENALTY = Number("-2 to 2", lambda value: -2 <= value <= 2)
FACTOR = Number("above 0", lambda value: value > 0)
_BIAS = Number("-100 to 100", lambda value: -100 <= value <= 100)
SHARE = Number("above 0 and at most 1", lambda value: 0 < value <= 1)
SECONDS = Number("longer than 0 seconds", lambda value: value > 0)
SECONDS_OR_NONE = Number("0 seconds or more", lambda value: value >= 0)


def text(value: str) -> str:
    if not value:
        raise ArgumentTypeError("wants a text, not an empty one")
    return value


def visible_text(value: str) -> str:
    if not value.strip():
        raise ArgumentTypeError("wants a text, not an empty one")
    return value


def columns(value: str) -> list[tuple[str, str]]:
    """Reads pairs of task field and column: `prompt=question,ground_truth=answer`."""
    pairs = [pair.partition("=") for pair in value.split(",")]
    if wrong := [field for field, equals, column in pairs if not (field and equals and column)]:
        raise ArgumentTypeError(f"wants FIELD=COLUMN, like prompt=question, not {wrong[0]!r}")
    return [(field.strip(), column.strip()) for field, _, column in pairs]


def token_ids(value: str) -> list[int]:
    """Reads token ids separated by commas."""
    return [_token(part) for part in value.split(",")]


def token_bias(value: str) -> tuple[int, float]:
    """Reads the bias of one token: `42=-100`."""
    token, equals, bias = value.partition("=")
    if not equals:
        raise ArgumentTypeError(f"wants TOKEN=BIAS, like 42=-100, not {value!r}")
    return _token(token), _BIAS(bias)


def json_object(value: str) -> dict[str, object]:
    try:
        data = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ArgumentTypeError(f"is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise ArgumentTypeError(f'wants a JSON object, like {{"name": true}}, not {value:.100}')
    return data


def price_table(value: str) -> str:
    """Checks that the price table can be read, and returns its path."""
    from pathlib import Path

    from holdfast.engine.export.prices import read_prices

    try:
        read_prices(Path(value))
    except UsageError as error:
        raise ArgumentTypeError(str(error)) from None
    return value


def _token(text: str) -> int:
    if not text.strip().isdecimal() or int(text) >= 2**31:
        raise ArgumentTypeError(f"wants the id of a token, a whole number, not {text!r}")
    return int(text)


def workers(value: str) -> int | str:
    """Reads the number of workers, or `auto` for as many as needed."""
    return value if value == "auto" else Whole(1, 100_000)(value)
