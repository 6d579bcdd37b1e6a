"""What code was made with is part of it where it is plain, and nothing of the user's is called."""

import argparse
import dataclasses
import enum
import functools
import importlib.util
import itertools
import os
import re
import subprocess
import sys
import threading
import time
import types
import uuid
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

from holdfast import AgentRolloutProcessor, tool
from holdfast.engine.judging.judge import Judge
from holdfast.rollout.code import changes
from holdfast.rollout.code.fingerprint import fingerprinted
from holdfast.rollout.processors.processor import RolloutProcessor, fingerprint_of


@dataclasses.dataclass
class Weights:
    one: float
    texts: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    one: float


class Structure(msgspec.Struct):
    one: float


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Foreign:
    """Raises whatever is asked of it: what it holds is read past its class."""

    def __init__(self, held: object = None):
        self.held = held

    def __getattribute__(self, name: str) -> object:
        raise AssertionError(f"{name} was asked for")

    def __repr__(self) -> str:
        raise AssertionError("its text was asked for")

    def __eq__(self, other: object) -> bool:
        raise AssertionError("it was compared")

    __hash__ = None  # type: ignore[assignment]


def closing(held: object):
    def score(t):
        return held

    return score


def defaulting(held: object):
    def score(t, weight=held):
        return weight

    return score


def with_keyword(held: object):
    def score(t, *, weight=held):
        return weight

    return score


def wrapping(held: object):
    @functools.wraps(closing)
    def score(t):
        return held

    return score


def nested(held: object):
    return closing(closing(held))


class Called:
    def __init__(self, held: object):
        self.held = held
        self.calls = 0
        self.seen: list[object] = []

    def __call__(self, t):
        self.calls += 1
        self.seen.append(t)
        return self.held

    def score(self, t):
        return self.held


class Inherited(Called):
    pass


class Processor(RolloutProcessor):
    def __init__(self, held: object):
        self.held = held


class Strict(Judge):
    pass


def weigh(t, held):
    return held


MAKERS = {
    "closure": closing,
    "default": defaulting,
    "keyword": with_keyword,
    "wrapper": wrapping,
    "nested": nested,
    "cached": lambda held: functools.lru_cache(closing(held)),
    "partial": lambda held: functools.partial(weigh, held=held),
    "partial of a closure": lambda held: functools.partial(closing(held)),
    "object": Called,
    "method": lambda held: Called(held).score,
    "held object": lambda held: closing(Called(held)),
    "held method": lambda held: closing(Called(held).score),
    "processor": Processor,
}
VALUES = [
    (0.25, 0.75),
    (1, 2),
    (1, True),
    (10**5000, 10**5001),
    (None, 0),
    (Decimal("0.1"), Decimal("0.2")),
    ("a", "b"),
    (b"a", b"b"),
    ("\ud800", "\ud801"),
    ((1, 2), (2, 1)),
    ([1, [2]], [1, [3]]),
    ({1, 2}, {1, 3}),
    ({"a": {"b": "c"}}, {"a": {"b": "d"}}),
    (Weights(0.25), Weights(0.75)),
    (Weights(1, ("a",)), Weights(1, ("b",))),
    (Slotted(0.25), Slotted(0.75)),
    (Structure(0.25), Structure(0.75)),
    (functools.partial(weigh, held=Weights(1)), functools.partial(weigh, held=Weights(2))),
    (Path("a"), Path("b")),
    (re.compile("a"), re.compile("a", re.IGNORECASE)),
    (re.compile("a" * 300 + "b"), re.compile("a" * 300 + "c")),
    (Foreign(1), Foreign(2)),
    ([Foreign(1)], [Foreign(2)]),
    (argparse.Namespace(a=1), argparse.Namespace(a=2)),
    (types.SimpleNamespace(a=[1]), types.SimpleNamespace(a=[2])),
    (Color.RED, Color.BLUE),
    (len, sum),
    (Called, Processor),
    (
        Judge("Right?", policy="http://127.0.0.1:1"),
        Judge("Wrong?", policy="http://127.0.0.1:1"),
    ),
]


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize(("first", "second"), VALUES, ids=[str(at) for at in range(len(VALUES))])
def test_plain_values_are_part_of_code_however_it_holds_them(make, first, second) -> None:
    assert fingerprint_of(make(first)) == fingerprint_of(make(first))
    assert fingerprint_of(make(first)) != fingerprint_of(make(second))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (threading.Lock(), threading.Lock()),
        (itertools.count(), itertools.count(3)),
        (Foreign(threading.Lock()), Foreign(threading.Lock())),
        ([Foreign(threading.Lock())], [Foreign(threading.Lock())]),
        (
            Judge("Right?", policy="http://127.0.0.1:1"),
            Judge("Right?", policy="http://127.0.0.1:2"),
        ),
        (
            Strict("Right?", policy="http://127.0.0.1:1", api_key="a"),
            Strict("Right?", policy="http://127.0.0.1:1", api_key="b"),
        ),
    ],
    ids=["order", "lock", "iterator", "foreign", "inside", "judge", "key"],
)
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_anything_else_counts_by_its_type(make, first, second) -> None:
    assert fingerprint_of(make(first)) == fingerprint_of(make(second))


def test_a_value_that_holds_itself_is_read_once() -> None:
    def recursive(t, deep=0.25):
        return recursive(t, deep)

    loop: list[object] = [1]
    loop += [loop, loop]
    assert fingerprint_of(recursive) == fingerprint_of(recursive)
    assert fingerprint_of(closing(loop)) == fingerprint_of(closing(loop))


def counting(seen: list[object], kept: dict[str, int], number: int = 0):
    def note(t):
        nonlocal number
        number += 1
        seen.append(t)

    def score(t, cache={}):  # noqa: B006
        note(t)
        kept["x"] = cache["y"] = number
        return len(seen)

    return score


def test_what_code_itself_changes_is_no_part_of_it() -> None:
    score = counting([], {})
    before = fingerprint_of(score)
    score(None)
    assert fingerprint_of(score) == before == fingerprint_of(counting([1], {"x": 2}, 3))
    called = Called(1)
    before = fingerprint_of(called)
    called(None)
    assert fingerprint_of(called) == before
    called.held = 2
    assert fingerprint_of(called) != before


def test_lambdas_and_functions_of_one_name_in_a_file_are_apart() -> None:
    first, second = (lambda t: 0.1), (lambda t: 0.9 if t else 0)
    # fmt: off
    inner, outer = (lambda t: 1), (lambda t: lambda t: 1)
    # fmt: on
    assert len(set(map(fingerprint_of, (first, second, inner, outer)))) == 4

    def again(t):
        return 0.1

    before = fingerprint_of(again)

    def again(t):
        return 0.9

    assert fingerprint_of(again) != before
    assert fingerprint_of(Called(1).score) != fingerprint_of(Inherited(1).score)
    assert fingerprint_of(Called(1)) != fingerprint_of(Inherited(1))


def test_values_are_the_same_in_every_process(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from holdfast.rollout.processors.processor import fingerprint_of\n"
        "def make(held):\n  def score(t): return held\n  return score\n"
        "print(fingerprint_of(make([{'a', 'b', 'c', 'd'}, {'k': {1, 'x', None}}, lambda t: 1])))\n"
    )
    found = {
        subprocess.run(
            [sys.executable, str(file)],
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        ).stdout
        for seed in "12"
    }
    assert len(found) == 1


class Unread(list):
    def __iter__(self):
        raise AssertionError("code of the user's was called")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([1] * 200_000, [2] * 200_000),
        ("a" * 10_000_001, "b" * 10_000_001),
        (Unread([1] * 1_000_000), Unread([2] * 1_000_000)),
    ],
    ids=["rows", "text", "list of the user's"],
)
@pytest.mark.parametrize("make", [closing, MAKERS["partial"]], ids=["closure", "partial"])
def test_what_is_too_large_to_be_read_at_each_start_counts_by_its_type(make, first, second) -> None:
    assert fingerprint_of(make(first)) == fingerprint_of(make(second))


def test_a_list_of_a_class_of_the_users_is_read_without_its_code() -> None:
    assert fingerprint_of(closing(Unread([1]))) != fingerprint_of(closing(Unread([2])))


def put(cache: dict[str, int], key: str) -> int:
    return cache.setdefault(key, 1)


def remembering(cache: dict[str, int]):
    def score(t):
        return put(cache, "x")

    return score


def renaming(cache: dict[str, int]):
    def score(t):
        key = "x"
        other = cache
        other[key] = 1
        return cache[key]

    return score


class Remembering:
    def __init__(self, cache: dict[str, int]):
        self.cache = cache

    def __call__(self, t: object) -> int:
        return put(self.cache, "x")

    @functools.cached_property
    def rest(self) -> int:
        return 3


class HandedOn:
    def __init__(self, cache: dict[str, int]):
        self.cache = cache

    def __call__(self, t: object) -> None:
        note(self)


def note(other: HandedOn) -> None:
    other.cache["x"] = 1


@pytest.mark.parametrize("make", [remembering, renaming, Remembering, HandedOn])
def test_what_is_handed_on_may_be_changed_there_and_is_no_part_of_it(make) -> None:
    score = make({})
    before = fingerprint_of(score)
    score(None)
    assert fingerprint_of(score) == before == fingerprint_of(make({"y": 2}))


def system_of(config: dict[str, int]) -> int:
    return first_of(config) + config["b"]


def first_of(config: dict[str, int]) -> int:
    known = config
    return known["a"]


def helped(config: dict[str, int]):
    def score(t):
        return system_of(config)

    return score


def known_here_as(config: dict[str, int]):
    def score(t):
        here = config
        return here["a"]

    return score


class Configured:
    def __init__(self, config: dict[str, int]):
        self.config = config

    def __call__(self, t: object) -> int:
        config = self.config
        return config["a"] + self.rest(self.config) + system_of(self.config)

    def rest(self, config: dict[str, int]) -> int:
        return config["b"]


class Chained:
    def configure(self, config: dict[str, int]) -> "Chained":
        self.config = config
        return self

    def __call__(self, t: object) -> int:
        return self.config["a"]


class Tooled:
    def __init__(self, tools: dict[str, int]):
        self.tools = tools

    async def __call__(self, t) -> None:
        await t.generate(tools=self.tools)


READERS = [helped, known_here_as, Configured, lambda config: Chained().configure(config), Tooled]


@pytest.mark.parametrize("make", READERS, ids=["helper", "alias", "object", "chain", "tools"])
def test_what_functions_of_the_users_own_only_read_is_part_of_it(make) -> None:
    first = fingerprint_of(make({"a": 1, "b": 2}))
    assert first == fingerprint_of(make({"a": 1, "b": 2}))
    assert first != fingerprint_of(make({"a": 2, "b": 2}))


def stamped():
    started = f"run-{time.time()}"
    key = os.urandom(8).hex()

    def score(t):
        return started, key

    return score


class Stamped:
    def __init__(self) -> None:
        self.started = time.monotonic()
        self.id: str = uuid.uuid4().hex

    def __call__(self, t: object) -> object:
        return self.started, self.id


@pytest.mark.parametrize("make", [stamped, Stamped, lambda: closing(Stamped())])
def test_when_it_was_started_is_no_part_of_it(make) -> None:
    assert fingerprint_of(make()) == fingerprint_of(make())


@dataclasses.dataclass
class Settings:
    hint: int
    started: float = dataclasses.field(default_factory=time.time)
    run: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex)
    calls: int = 0


def counting_in_place(hint: int):
    settings = Settings(hint)

    def score(t):
        settings.calls += 1
        return settings.hint

    return score


def counting_in_a_helper(hint: int):
    settings = {"hint": hint, "started": time.time()}

    def score(t):
        count(settings)
        return settings["hint"]

    return score


def count(settings: dict[str, float]) -> None:
    settings["n"] = settings.get("n", 0) + 1


class MadeByHelpers:
    hint = 0

    def __init__(self, hint: int):
        self._set_up(hint)
        self.calls = 0

    def _set_up(self, hint: int) -> None:
        self.hint = hint

    def __call__(self, t: object) -> int:
        self.calls += 1
        return self.hint


class FromConfig:
    def __init__(self) -> None:
        self.hint = 0

    @classmethod
    def of(cls, hint: int) -> "FromConfig":
        made = cls()
        made.hint = hint
        return made

    def __call__(self, t: object) -> int:
        return self.hint


class WithProperty:
    def __init__(self, hint: int):
        self.hint = hint

    @property
    def hint(self) -> int:
        return self._hint

    @hint.setter
    def hint(self, value: int) -> None:
        self._hint = value

    def __call__(self, t: object) -> int:
        return self.hint


def class_of(hint: int) -> object:
    class Local:
        prompt = f"hint {hint}"

        def __call__(self, t: object) -> str:
            return self.prompt

    return Local()


def partial_that_counts(hint: int):
    def score(t, stats, hint):
        stats["n"] = 1
        return hint

    return functools.partial(score, stats={}, hint=hint)


SHAPES = {
    "a counter in a dataclass": counting_in_place,
    "a counter in a helper": counting_in_a_helper,
    "a helper of __init__": MadeByHelpers,
    "a class method": FromConfig.of,
    "a property": WithProperty,
    "an attribute of a class": class_of,
    "a partial": partial_that_counts,
}


@pytest.mark.parametrize("make", SHAPES.values(), ids=SHAPES)
def test_what_changes_is_left_out_and_what_it_was_made_with_is_not(make) -> None:
    score = make(1)
    before = fingerprint_of(score)
    score(None)
    assert fingerprint_of(score) == before == fingerprint_of(make(1))
    assert fingerprint_of(make(2)) != before


def test_a_change_is_named() -> None:
    _, first = fingerprinted(functools.partial(weigh, held=1, more=threading.Lock()))
    _, second = fingerprinted(functools.partial(weigh, held=2, more=threading.Lock()))
    assert first.values == ("held", "more")
    digests = first.value_digests.items() - second.value_digests.items()
    assert [name for name, _ in digests] == ["held"]


def test_what_is_computed_once_is_no_part_of_an_object() -> None:
    called = Remembering({})
    before = fingerprint_of(called)
    assert called.rest == 3
    assert fingerprint_of(called) == before


def asking(sampling: dict[str, int], tools: list[str]):
    async def solve(t):
        await t.generate(**sampling, tools=tools)
        return len(sampling), sampling["n"]

    return solve


def test_what_is_only_read_or_given_to_the_rollout_is_part_of_it() -> None:
    first = fingerprint_of(asking({"n": 1}, ["a"]))
    assert first != fingerprint_of(asking({"n": 2}, ["a"]))
    assert first != fingerprint_of(asking({"n": 1}, ["b"]))


class Handling:
    def __init__(self, held: object):
        self.held = held
        self.checks = [self.one, self.two]
        self.handlers = {"one": self.one, "two": self.two}

    def one(self, t: object) -> object:
        return self.held

    def two(self, t: object) -> object:
        return self.held

    def __call__(self, t: object) -> object:
        return [check(t) for check in self.checks]


def test_what_is_deep_or_holds_itself_is_read_in_a_moment() -> None:
    assert fingerprint_of(Handling(1)) == fingerprint_of(Handling(1))
    tree: dict[str, object] = {"it's": "a leaf"}
    for _ in range(40):
        tree = {"it's": tree, 'a "quote"': [tree, tree]}
    tree["parent"] = tree
    assert fingerprint_of(closing(tree)) == fingerprint_of(closing(tree))


def one(a: int) -> int:
    """A tool."""
    return a


def other(a: int) -> int:
    """A tool."""
    return a


def asking_with(tools: object):
    async def solve(t):
        await t.generate(tools=tools)

    return solve


def agent_with(tools: object):
    return AgentRolloutProcessor(tools=tools)


@pytest.mark.parametrize("make", [asking_with, agent_with])
def test_a_tool_is_its_function_and_its_contract(make) -> None:
    first = fingerprint_of(make([tool(one)]))
    assert first == fingerprint_of(make([tool(one)]))
    others = [[tool(other)], [tool(contract="idempotent")(one)], [tool(one), tool(other)]]
    assert first not in [fingerprint_of(make(tools)) for tools in others]
    assert fingerprint_of(make([one])) != fingerprint_of(make([other]))


def test_what_ends_an_agent_is_part_of_it() -> None:
    first, second = (AgentRolloutProcessor(tools=[one], finish=f) for f in (one, other))
    assert fingerprint_of(first) != fingerprint_of(second)


def test_each_of_many_helpers_is_read_once(tmp_path: Path, monkeypatch) -> None:
    """And not once for each way from one to the other, of which there are thousands."""
    helpers = [
        f"def help{at}(cfg):\n"
        + "".join(f"    help{(3 * at + more) % 60}(cfg)\n" for more in range(6))
        for at in range(60)
    ]
    source = "\n".join([*helpers, "def made(cfg):\n    return lambda t: help0(cfg)\n"])
    (tmp_path / "many.py").write_text(source)
    spec = importlib.util.spec_from_file_location("many", tmp_path / "many.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    reads, nodes = [], changes.nodes_of
    monkeypatch.setattr(changes, "nodes_of", lambda subject: reads.append(1) or nodes(subject))
    fingerprint_of(module.made({"a": 1}))
    assert 60 < len(reads) <= 60 * (changes._HELPERS + 1) * 3
