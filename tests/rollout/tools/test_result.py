"""What a model is shown of what a tool returned."""

import asyncio
import math

import pytest

from holdfast.records.errors import ToolBug
from holdfast.rollout.tools.tool import Tool, tool
from support.rollout.stage import TrajectoryUnderTest, call


def shown(value: object, **options) -> str:
    return Tool(lambda: value, name="gives", **options).render_result(value)


def cyclic_list() -> list:
    items: list = []
    items.append(items)
    return items


def cyclic_dict() -> dict:
    fields: dict = {}
    fields["self"] = fields
    return fields


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("text stays \n as it is", "text stays \n as it is"),
        (b"\xff\xfe raw", "\ufffd\ufffd raw"),
        ("\udcff", "\\udcff"),
        (math.nan, "NaN"),
        ([math.inf, -math.inf, None], "[Infinity,-Infinity,null]"),
        ({"loss": math.nan, "ü": 1}, '{"loss":NaN,"ü":1}'),
        (cyclic_list(), "[[...]]"),
        (cyclic_dict(), "{'self': {...}}"),
        ("", ""),
    ],
    ids=["text", "bytes", "surrogate", "nan", "inf", "nan in dict", "list", "dict", "empty"],
)
def test_odd_values_are_shown_as_what_they_are(value, text):
    assert shown(value) == text


def test_a_long_result_is_cut_in_the_middle_and_says_so():
    text = "a" * 5_000_000 + "b" * 5_000_000
    view = shown(text)
    head, line, tail = view.split("\n")
    assert (head, tail) == ("a" * 50_000, "b" * 50_000)
    assert line == "… 9,900,000 characters left out …"


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (10, "0123456789"),
        (9, "01234\n… 1 characters left out …\n6789"),
        (2, "0\n… 8 characters left out …\n9"),
        (1, "0\n… 9 characters left out …\n"),
    ],
)
def test_exactly_the_limit_is_shown(limit, text):
    assert shown("0123456789", max_result=limit) == text


def test_what_is_recorded_is_what_the_model_is_shown():
    subject = TrajectoryUnderTest()

    @tool(max_result=10)
    def long() -> str:
        return "x" * 1_000

    async def rollout(t):
        reply = await t.tool(call("long"), long)
        return reply.content, t.messages[-1].text

    live = asyncio.run(subject.perform(rollout))
    assert live[0] == live[1] == "xxxxx\n… 990 characters left out …\nxxxxx"
    assert asyncio.run(subject.perform(rollout)) == live


class Silent:
    def __repr__(self) -> str:
        raise KeyError("no words")


class Endless:
    def __repr__(self) -> str:
        return repr(self)


@pytest.mark.parametrize(
    "value", [Silent(), [Silent()], {"a": Endless()}], ids=["object", "list", "endless"]
)
def test_a_result_that_cannot_say_what_it_is_breaks_the_call_with_a_reason(value):
    gives = Tool(lambda: value, name="gives")
    with pytest.raises(ToolBug, match=r"cannot be shown: its repr raised (Key|Recurs)"):
        asyncio.run(TrajectoryUnderTest().perform(lambda t: t.tool(call("gives"), gives)))


def test_a_tool_that_recurses_without_end_breaks_its_call():
    def deeper(level: int) -> int:
        return deeper(level + 1)

    with pytest.raises(ToolBug, match="tool deeper broke: RecursionError"):
        asyncio.run(
            TrajectoryUnderTest().perform(lambda t: t.tool(call("deeper", '{"level": 0}'), deeper))
        )
