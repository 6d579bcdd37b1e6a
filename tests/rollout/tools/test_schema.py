"""What a model is shown of a function, and what is refused when a tool is defined."""

import functools
import os
import subprocess
import sys
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest

from holdfast.records.errors import UsageError
from holdfast.rollout.tools.tool import InvalidArguments, Tool, tool


def shown(function) -> dict:
    return Tool(function).schema["function"]


def properties(function) -> dict:
    return shown(function)["parameters"]["properties"]


# --- docstrings


def google(query: str, limit: int = 5, *, exact: bool = False) -> list[str]:
    """Searches the archive.

    Newest first.

    Args:
        query (str): what to look for,
            in words: any language
        limit: how many at most
        exact (bool, optional): as written

    Returns:
        list[str]: titles

    Raises:
        KeyError: never

    Example:
        search("kelp")
    """
    return []


def numpy(query: str, limit: int = 5, exact: bool = False) -> list[str]:
    """Searches the archive.

    Newest first.

    Parameters
    ----------
    query : str
        what to look for,
        in words: any language
    limit, exact : int, optional
        how many at most

    Returns
    -------
    list[str]
        titles

    Raises
    ------
    KeyError
        never

    Example
    -------
    search("kelp")
    """
    return []


def rest(query: str, limit: int = 5, exact: bool = False) -> list[str]:
    """Searches the archive.

    Newest first.

    :param query: what to look for,
        in words: any language
    :param int limit: how many at most
    :type limit: int
    :raises KeyError: never
    :returns: titles
    :rtype: list[str]
    """
    return []


@pytest.mark.parametrize(
    ("function", "rest_of_description"),
    [
        (google, 'Example:\n    search("kelp")\n\nReturns: list[str]: titles'),
        (numpy, 'Example\n-------\nsearch("kelp")\n\nReturns: titles'),
        (rest, "Returns: titles"),
    ],
    ids=["google", "numpy", "rest"],
)
def test_docstrings_of_every_style_are_taken_apart(function, rest_of_description):
    prose = "Searches the archive.\n\nNewest first."
    assert shown(function)["description"] == f"{prose}\n\n{rest_of_description}"
    schema = properties(function)
    assert schema["query"]["description"] == "what to look for, in words: any language"
    assert schema["limit"] == {"type": "integer", "description": "how many at most", "default": 5}


def test_prose_that_only_looks_like_a_section_stays_prose():
    def look() -> None:
        """Takes a look.

        Returns: nothing much.
        Args:
        A note: it has a colon.
        """

    assert shown(look)["description"] == (
        "Takes a look.\n\nReturns: nothing much.\nArgs:\nA note: it has a colon."
    )


def test_the_key_is_never_shown_even_when_it_is_documented():
    def pay(amount: int, idempotency_key: str) -> None:
        """Pays.

        Args:
            amount: how much
            idempotency_key: against paying twice
        """

    paying = Tool(pay)
    assert "idempotency" not in str(paying.schema)
    assert paying.wants_key


def test_words_in_annotations_come_before_those_of_the_docstring():
    def f(
        a: Annotated[int, "from text"],
        b: Annotated[int, msgspec.Meta(description="from meta", ge=1)],
        c: Annotated[int, msgspec.Meta(le=9)],
        d: Annotated[int, "for none"] | None = None,
    ) -> None:
        """Does.

        Args:
            a: from the docstring
            b: from the docstring
            c: from the docstring
        """

    schema = properties(f)
    assert schema["a"] == {"type": "integer", "description": "from text"}
    assert schema["b"] == {"type": "integer", "description": "from meta", "minimum": 1}
    assert schema["c"] == {"type": "integer", "description": "from the docstring", "maximum": 9}
    assert schema["d"]["description"] == "for none"
    with pytest.raises(InvalidArguments, match=r"`int` >= 1"):
        Tool(f).bind('{"a": 1, "b": 0, "c": 1}')


# --- types


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    """A place."""

    x: int
    title: str = ""


class Options(TypedDict, total=False):
    deep: bool


class Node(msgspec.Struct):
    value: int
    children: "list[Node]" = []


def test_types_become_schemas_without_references():
    def f(
        color: Color,
        kind: Literal["a", "b"],
        at: Point,
        options: Options,
        many: list[Point],
        named: dict[str, float],
        anything: Any,
        maybe: str | None = None,
    ) -> None:
        """Does.

        Args:
            at: where to
        """

    place = {"type": "object", "required": ["x"], "description": "A place."}
    place["properties"] = {"x": {"type": "integer"}, "title": {"type": "string", "default": ""}}
    assert properties(f) == {
        "color": {"type": "string", "enum": ["blue", "red"]},
        "kind": {"type": "string", "enum": ["a", "b"]},
        "at": {**place, "description": "where to"},
        "options": {"type": "object", "properties": {"deep": {"type": "boolean"}}, "required": []},
        "many": {"type": "array", "items": place},
        "named": {"type": "object", "additionalProperties": {"type": "number"}},
        "anything": {},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
    }


def test_arguments_arrive_as_the_types_that_the_function_asks_for():
    def f(color: Color, at: Point, tree: Node) -> None: ...

    bound = Tool(f).bind(
        '{"color": "red", "at": {"x": 1}, "tree": {"value": 1, "children": [{"value": 2}]}}'
    )
    assert bound == {"color": Color.RED, "at": Point(1), "tree": Node(1, [Node(2)])}


def test_a_type_that_contains_itself_is_a_reference_that_can_be_followed():
    def f(tree: Node) -> None: ...

    parameters = shown(f)["parameters"]
    assert parameters["properties"]["tree"] == {"$ref": "#/$defs/Node"}
    children = parameters["$defs"]["Node"]["properties"]["children"]
    assert children["items"] == {"$ref": "#/$defs/Node"}


def test_the_schema_is_the_same_in_every_process():
    script = """
import msgspec
from holdfast.rollout.tools.tool import Tool
def node(name):
    return type(name, (msgspec.Struct,), {"__annotations__": {"next": f"{name} | None"},
                                          "__module__": "__main__"})
A, B, C, D = (node(name) for name in "ABCD")
def f(a: A, b: B, c: C, d: D) -> None: ...
print(msgspec.json.encode(Tool(f).schema).decode())
"""
    messages = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in range(3)
    }
    assert len(messages) == 1


def test_defaults_are_the_functions_own():
    marker, many = object(), [1, 2]

    def f(a: int = marker, b: list[int] = many, c: int = None, d: float = float("inf")):  # noqa: RUF013
        return a, b, c, d

    item = Tool(f)
    assert item.bind("{}") == {}
    assert item(**item.bind("{}"))[:2] == (marker, many)
    assert item.bind('{"c": null}') == {"c": None}
    schema = properties(f)
    assert "default" not in schema["a"]
    assert schema["b"]["default"] == [1, 2]
    assert schema["c"]["default"] is None
    assert "default" not in schema["d"]
    assert shown(f)["parameters"]["required"] == []


# --- callables


class Archive:
    """An archive."""

    def search(self, query: str) -> str:
        """Searches."""
        return f"found {query}"

    def __call__(self, query: str) -> str:
        return f"called with {query}"


def scaled(value: float, factor: float, offset: float = 0.0) -> float:
    """Scales."""
    return value * factor + offset


@pytest.mark.parametrize(
    ("function", "name", "description", "names"),
    [
        (Archive().search, "search", "Searches.", ["query"]),
        (Archive(), "Archive", "An archive.", ["query"]),
        (functools.partial(scaled, factor=2.0), "scaled", "Scales.", ["value", "offset"]),
        (functools.partial(scaled, 2.0), "scaled", "Scales.", ["factor", "offset"]),
        (functools.partial(Archive().search), "search", "Searches.", ["query"]),
    ],
    ids=["method", "object", "partial by name", "partial by place", "partial of a method"],
)
def test_callables_show_what_is_left_to_give(function, name, description, names):
    view = shown(function)
    assert (view["name"], view["description"]) == (name, description)
    assert list(view["parameters"]["properties"]) == names


def test_what_a_partial_holds_cannot_be_given_by_the_model():
    doubled = Tool(functools.partial(scaled, factor=2.0))
    assert doubled(**doubled.bind('{"value": 4}')) == 8.0
    with pytest.raises(InvalidArguments, match="unknown field `factor`"):
        doubled.bind('{"value": 4, "factor": 3}')


# --- refusals


class Opaque: ...


def untyped(a): ...
def opaque(a: Opaque) -> None: ...
def opaque_inside(a: list[Opaque]) -> None: ...
def lost(a: "Nowhere") -> None: ...  # noqa: F821
def ambiguous(a: Point | Node) -> None: ...
def yields(a: int):
    yield a


async def yields_later(a: int):
    yield a


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (untyped, "tool untyped: parameter a has no type"),
        (Archive.search, "tool search: parameter self has no type"),
        (opaque, "tool opaque: parameter a has the type Opaque, which cannot be given as JSON"),
        (opaque_inside, "parameter a has the type .*Opaque"),
        (ambiguous, "tool ambiguous: parameter a has the type .*Point"),
        (lost, "annotations cannot be read .*Nowhere"),
        (yields, "return a list"),
        (yields_later, "return a list"),
        (Archive, "is a class"),
        (print, "cannot be shown|wrap it"),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_what_a_model_cannot_give_is_refused_by_name(function, arguments):
    with pytest.raises(UsageError, match=arguments):
        Tool(function)


def nothing() -> None: ...


@pytest.mark.parametrize("name", ["", "a b", "files/read", "größe", "x" * 65, "a\n"])
def test_names_that_engines_do_not_take_are_refused(name):
    advice = r'1 to 64 letters.* as in @holdfast\.tool\(name="search"\) or Tool\('
    with pytest.raises(UsageError, match=advice):
        Tool(nothing, name=name)


def test_a_lambda_needs_a_name():
    with pytest.raises(UsageError, match=r"<lambda>.*name="):
        Tool(lambda: 1)
    assert Tool(lambda: 1, name="x" * 64).name == "x" * 64


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": 0},
        {"timeout": -1.0},
        {"timeout": float("nan")},
        {"timeout": float("inf")},
        {"max_result": 0},
        {"contract": "whatever"},
    ],
    ids=str,
)
def test_settings_without_sense_are_refused(options):
    with pytest.raises(UsageError, match=f"tool nothing: {next(iter(options))}="):
        tool(**options)(nothing)
