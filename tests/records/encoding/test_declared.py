"""What is given from Python is what was declared, or is named in one line."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import pytest
from msgspec import Struct

import holdfast
from holdfast.records.encoding.declared import as_declared, check_fields, checks_arguments
from holdfast.records.errors import UsageError


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Pen(Struct, frozen=True):
    width: float
    colour: Colour = Colour.RED

    def __post_init__(self) -> None:
        check_fields(self, "pen ")


class Draws(Protocol):
    def draw(self) -> None: ...


class Hand:
    def draw(self) -> None:
        """Draws."""


@pytest.mark.parametrize(
    ("value", "kind", "result"),
    [
        (3, float, 3),
        ("red", Colour, Colour.RED),
        ("a/b", Path, Path("a/b")),
        # An address stays the text that it is: a path would lose a slash.
        ("postgresql://host/name", Path | str, "postgresql://host/name"),
        (["a"], tuple[str, ...], ("a",)),
        ((1.5, None), Sequence[float | None], [1.5, None]),
        ({"width": 2, "colour": "blue"}, Pen | None, Pen(2, Colour.BLUE)),
        ({"a": {"width": 2}}, dict[str, Pen], {"a": Pen(2)}),
        (None, Pen | None, None),
        (print, Callable[[str], None], print),
        (3, Any, 3),
    ],
)
def test_what_is_as_good_becomes_what_is_declared(value, kind, result):
    assert as_declared("x", value, kind) == result


def test_a_protocol_is_whatever_has_its_members():
    hand = Hand()
    assert as_declared("x", hand, Draws) is hand
    with pytest.raises(UsageError, match="x must be a Draws or a text, not 3"):
        as_declared("x", 3, Draws | str)


@pytest.mark.parametrize(
    ("value", "kind", "arguments"),
    [
        ("3", int, "x must be a whole number, not '3'"),
        (3.5, int, "x must be a whole number, not 3.5"),
        (True, int, "x must be a whole number, not True"),
        (2**70, int, "x must fit in 64 bits"),
        ("3", float | None, "x must be a number, not '3'"),
        (1, bool, "x must be True or False, not 1"),
        (3, str, "x must be a text, not 3"),
        ("", Path, "x must be a path, not ''"),
        ("green", Colour, "x='green' is none of red, blue"),
        ("red", tuple[str, ...], "x must be a list, not 'red'"),
        (["a", 3], Sequence[str], "x[1] must be a text, not 3"),
        ("red", Iterable[str], "x must be a list, not 'red'"),
        ({"a": 3}, Mapping[str, str], "x['a'] must be a text, not 3"),
        ({3: "a"}, Mapping[str, str], "a key of x must be a text, not of type int"),
        (3, Mapping[str, str], "x must be a dict, not 3"),
        (3, Pen | None, "x must be a Pen(…) or a dict of its fields, not 3"),
        ({"widht": 3}, Pen, "x has no 'widht'; is 'width' meant?"),
        ({"zzz": 3}, Pen, "x has no 'zzz'; it has width, colour"),
        ({}, Pen, "x needs width"),
        ({"width": "3"}, Pen, "pen width must be a number, not '3'"),
        ("print", Callable[[str], None], "x must be a function, not 'print'"),
    ],
)
def test_everything_else_is_named(value, kind, arguments):
    with pytest.raises(UsageError) as caught:
        as_declared("x", value, kind)
    assert str(caught.value) == arguments


def test_no_secret_is_in_an_error():
    with pytest.raises(UsageError, match="api_key must be a text, not of type list"):
        as_declared("api_key", ["sk-secret"], str | None)


@checks_arguments(own="free")
def draw(pen: Pen, *rest: int, free: str = "", **more: int) -> tuple[object, ...]:
    return pen, rest, free, more


@checks_arguments()
async def draw_later(pen: Pen, times: int = 1) -> Pen:
    return pen


def test_a_function_gets_its_arguments_as_they_are_declared():
    assert draw({"width": 2}, 1, free=3, more=4) == (Pen(2), (1,), 3, {"more": 4})
    assert asyncio.run(draw_later({"width": 2})) == Pen(2)
    assert asyncio.iscoroutinefunction(draw_later)
    with pytest.raises(UsageError, match="draw_later has no argument 'tims'; is 'times' meant"):
        asyncio.run(draw_later(Pen(2), tims=2))
    with pytest.raises(UsageError, match="draw_later: missing a required argument: 'pen'"):
        asyncio.run(draw_later())
    with pytest.raises(UsageError, match="times must be a whole number, not '2'"):
        asyncio.run(draw_later(Pen(2), "2"))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: holdfast.Settings(concurency=1), "Settings has no field 'concurency'; is 'conc"),
        (lambda: holdfast.Sampling(temp=1), "Sampling has no field 'temp'; is 'temperature' mean"),
        (lambda: holdfast.Score(1, metric={}), "Score has no field 'metric'; is 'metrics' meant"),
    ],
)
def test_a_field_that_a_value_does_not_have_is_named(make, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        make()
