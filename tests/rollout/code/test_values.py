"""Plain data is a text that is the same in every process, and nothing of the user's is called."""

import argparse
import dataclasses
import datetime
import enum
import re
import tempfile
import types
import uuid
from decimal import Decimal
from pathlib import Path

import attrs
import msgspec
import pydantic
import pytest

from holdfast.rollout.code.values import DataText, stored
from support.rollout.project import Project


@dataclasses.dataclass
class Weights:
    weight: float
    texts: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    weight: float


class Structure(msgspec.Struct):
    weight: float


class Model(pydantic.BaseModel):
    weight: float


@attrs.define
class Defined:
    weight: float


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Unread(list):
    def __iter__(self):
        raise AssertionError("code of the user's was called")


def text(value: object, folder: str = "/home/me/agent") -> str:
    return DataText(lambda other: f"<{type(other).__qualname__}>", folder=folder).of(value)


VALUES = [
    (0.25, 0.75),
    (1, 2),
    (1, True),
    (1, 1.0),
    (10**5000, 10**5001),
    (None, 0),
    (Decimal("0.1"), Decimal("0.2")),
    ("a", "b"),
    ("a", b"a"),
    (b"a", b"b"),
    ("\ud800", "\ud801"),
    ((1, 2), (2, 1)),
    ([1, [2]], [1, [3]]),
    ([[1], 2], [[1, 2]]),
    ({1, 2}, {1, 3}),
    ({"a": {"b": "c"}}, {"a": {"b": "d"}}),
    (Weights(0.25), Weights(0.75)),
    (Weights(1, ("a",)), Weights(1, ("b",))),
    (Slotted(0.25), Slotted(0.75)),
    (Structure(0.25), Structure(0.75)),
    (Model(weight=0.25), Model(weight=0.75)),
    (Defined(0.25), Defined(0.75)),
    (Path("a"), Path("b")),
    (re.compile("a"), re.compile("a", re.IGNORECASE)),
    (argparse.Namespace(a=1), argparse.Namespace(a=2)),
    (types.SimpleNamespace(a=[1]), types.SimpleNamespace(a=[2])),
    (Color.RED, Color.BLUE),
    (Unread([1]), Unread([2])),
    ("/data/a.jsonl", "/data/b.jsonl"),
]


@pytest.mark.parametrize(("first", "second"), VALUES, ids=[str(at) for at in range(len(VALUES))])
def test_plain_data_counts_by_its_value(first: object, second: object) -> None:
    assert text(first) == text(first)
    assert text(first) != text(second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (object(), object()),
        (datetime.datetime(2000, 1, 1), datetime.datetime.now()),
        (uuid.uuid4(), uuid.uuid4()),
        (tempfile.gettempdir() + "/a1", tempfile.gettempdir() + "/b2"),
        ([1] * 200_000, [2] * 200_000),
        ("a" * 10_000_001, "b" * 10_000_001),
    ],
    ids=["order", "object", "time", "id", "temporary", "rows", "long"],
)
def test_anything_else_counts_by_its_type(first: object, second: object) -> None:
    is_same = text(first) == text(second)
    assert is_same, "or the difference of two long texts would be shown"


@pytest.mark.parametrize("kind", [str, Path])
def test_paths_count_from_where_the_program_lies(kind: type) -> None:
    for path in ("/home/me/agent/data", "/home/me/agent", "/home/me"):
        moved = path.replace("/home", "/srv/home")
        assert text(kind(path)) == text(kind(moved), folder="/srv/home/me/agent")
    assert text(kind("/home/me/agent/a")) != text(kind("/home/me/agent/b"))
    assert text(kind("/")) == text(kind("/"), folder="/agent")


def test_what_is_deep_or_holds_itself_is_read_in_a_moment() -> None:
    tree: dict[str, object] = {"it's": "a leaf"}
    for _ in range(40):
        tree = {"it's": tree, 'a "quote"': [tree, tree]}
    tree["parent"] = tree
    assert text(tree) == text(tree)
    ring: list[object] = [1]
    ring.append(ring)
    assert text(ring) != text([1, 2])


class Foreign:
    """Raises whatever is asked of it: what it holds is read past its class."""

    __slots__ = ("__dict__", "slot")

    def __init__(self) -> None:
        self.slot = 1
        self.held = 2

    def __getattribute__(self, name: str) -> object:
        raise AssertionError(f"{name} was asked for")


def test_an_object_is_read_past_its_class() -> None:
    assert stored(Foreign()) == {"slot": 1, "held": 2}
    assert stored(3) == {}


def test_values_are_the_same_in_every_process(project: Project) -> None:
    project.write(
        agent="from holdfast.rollout.code.fingerprint import fingerprint_of\n"
        "def make(held):\n  def score(t): return held\n  return score\n"
        "held = [{'a', 'b', 'c', 'd'}, {'k': {1, 'x', None}}, lambda t: 1, {len, sum, make}]\n"
        "print(fingerprint_of(make(held)))\n"
    )
    results = {
        project.python("-c", f"import {project.mark}_agent", PYTHONHASHSEED=seed) for seed in "123"
    }
    assert len(results) == 1
