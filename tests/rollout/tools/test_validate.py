"""Tools from a ready JSON schema: what is checked, and what the model is told."""

import asyncio
import functools
import json

import pytest

from holdfast.records.errors import UsageError
from holdfast.records.step import Contract
from holdfast.rollout.tools.tool import InvalidArguments, Tool
from holdfast.rollout.tools.validate import problem
from support.rollout.stage import TrajectoryUnderTest, call


def echo(**arguments: object) -> object:
    return arguments


SEARCH = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "minLength": 1, "maxLength": 5},
        "limit": {"type": "integer", "minimum": 1, "maximum": 9},
        "order": {"enum": ["new", "old", 1]},
        "ratio": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
        "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "kind": {"type": ["string", "null"]},
        "always": {"const": True},
        "tree": {"$ref": "#/$defs/tree"},
        "pair": {"prefixItems": [{"type": "integer"}], "items": False},
        "extra": {"type": "object", "additionalProperties": {"type": "integer"}},
        "never": False,
    },
    "required": ["query"],
    "additionalProperties": False,
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {"child": {"$ref": "#/$defs/tree"}, "value": {"type": "integer"}},
            "required": ["value"],
        }
    },
}
search = Tool.from_schema("search", "Searches.", SEARCH, echo)


def test_the_schema_is_shown_as_it_is():
    assert search.schema == {
        "type": "function",
        "function": {"name": "search", "description": "Searches.", "parameters": SEARCH},
    }


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"limit": 1, "order": "old"},
        {"limit": 9.0, "order": 1},
        {"ratio": 0.5, "tags": []},
        {"tags": ["a", "b"], "either": None, "kind": None},
        {"either": "x", "kind": "x", "always": True},
        {"tree": {"value": 1, "child": {"value": 2}, "other": "anything"}},
        {"pair": [1], "extra": {"any": 1}},
    ],
    ids=json.dumps,
)
def test_what_fits_is_passed_on_as_it_was_decoded(more):
    arguments = {"query": "kelp", **more}
    assert search.bind(json.dumps(arguments)) == arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "`$` lacks the required `query`"),
        ([], "`$` must be object, not array"),
        (None, "`$` must be object, not null"),
        ({"query": 1}, "`$.query` must be string, not integer"),
        ({"query": ""}, "`$.query` must have at least 1 characters"),
        ({"query": "kelpie"}, "`$.query` must have at most 5 characters"),
        ({"query": "k", "limit": 0}, "`$.limit` must be at least 1"),
        ({"query": "k", "limit": 10}, "`$.limit` must be at most 9"),
        ({"query": "k", "limit": 1.5}, "`$.limit` must be integer, not number"),
        ({"query": "k", "limit": True}, "`$.limit` must be integer, not boolean"),
        ({"query": "k", "limit": "1"}, "`$.limit` must be integer, not string"),
        ({"query": "k", "order": "best"}, '`$.order` must be one of "new", "old", 1'),
        ({"query": "k", "order": True}, "`$.order` must be one of"),
        ({"query": "k", "ratio": 0}, "`$.ratio` must be more than 0"),
        ({"query": "k", "ratio": 1}, "`$.ratio` must be less than 1"),
        ({"query": "k", "tags": "a"}, "`$.tags` must be array, not string"),
        ({"query": "k", "tags": ["a", 2]}, "`$.tags[1]` must be string, not integer"),
        ({"query": "k", "tags": ["a", "b", "c"]}, "`$.tags` must have at most 2 items"),
        ({"query": "k", "either": 1}, "`$.either` fits none of the alternatives: `$.either` must"),
        ({"query": "k", "kind": 1}, "`$.kind` must be string or null, not integer"),
        ({"query": "k", "always": 1}, "`$.always` must be true"),
        ({"query": "k", "tree": {"value": 1, "child": {}}}, "`$.tree.child` lacks the required"),
        ({"query": "k", "pair": [1, 2]}, "`$.pair[1]` is not allowed"),
        ({"query": "k", "extra": {"a": "b"}}, "`$.extra.a` must be integer, not string"),
        ({"query": "k", "never": 1}, "`$.never` is not allowed"),
        ({"query": "k", "lmit": 1}, "`$` has an unknown `lmit`; allowed: `query`, `limit`"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_model_is_told_what_does_not_fit_and_where(arguments, message):
    with pytest.raises(InvalidArguments) as caught:
        search.bind(json.dumps(arguments))
    assert str(caught.value).startswith(f"invalid arguments for search: {message}")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^never$"},
        {"type": "string", "format": "date"},
        {"not": {}},
        {"type": "quantum"},
        {"$ref": "https://example.org/other.json"},
        {"$ref": "#/nowhere"},
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"oneOf": [{"pattern": "a"}, {"pattern": "b"}]},
        {"patternProperties": {"^x": {}}, "additionalProperties": False},
        {"exclusiveMinimum": True, "minimum": 0},
        {"items": [{"type": "integer"}]},
        True,
        {},
    ],
    ids=str,
)
def test_rules_that_are_not_understood_pass(schema):
    for value in ("x", {"y": 1}):
        text = problem(value, schema)
        assert text in ("", "`$` must be string, not object")
        assert isinstance(value, dict) or not text


def test_all_of_several_schemas_have_to_fit():
    both = {"allOf": [{"required": ["a"]}, {"required": ["b"]}]}
    assert problem({"a": 1}, both) == "`$` lacks the required `b`"
    assert problem({"a": 1, "b": 2}, both) == ""
    either = {"oneOf": [{"type": "integer"}, {"type": "string"}]}
    assert problem(1, either) == ""
    assert "none of the alternatives" in problem([], either)


def test_values_nested_deeper_than_anyone_can_follow_are_told_to_the_model():
    deep = '{"query": "k", "tree": ' + '{"value": 1, "child": ' * 5000 + "{}" + "}" * 5001
    with pytest.raises(InvalidArguments, match="too deeply nested"):
        search.bind(deep)
    nested = functools.reduce(lambda inner, _: {"value": 1, "child": inner}, range(400), {})
    with pytest.raises(InvalidArguments, match=r"too deeply nested|lacks the required"):
        search.bind(json.dumps({"query": "k", "tree": nested}))


@pytest.mark.parametrize(
    "arguments",
    ["{", "nonsense", '{"query": "\\ud800"}', '{"query": "\ud800"}', '{"query": 1e999}'],
)
def test_arguments_that_are_no_json_are_told_to_the_model(arguments):
    with pytest.raises(InvalidArguments, match="invalid arguments for search"):
        search.bind(arguments)


def test_a_call_reaches_the_function_with_names_that_are_no_identifiers():
    schema = {"properties": {"content-type": {"type": "string"}}, "required": ["content-type"]}
    wrapped = Tool.from_schema(
        "send", "", schema, echo, contract="idempotent", timeout=5, max_result=9
    )
    assert (wrapped.contract, wrapped.timeout, wrapped.max_result) == (Contract.IDEMPOTENT, 5, 9)
    assert wrapped.schema["function"]["parameters"]["type"] == "object"
    full = Tool.from_schema("send", "", schema, echo)
    reply = asyncio.run(
        TrajectoryUnderTest().perform(lambda t: t.tool(call("send", '{"content-type": "a"}'), full))
    )
    assert reply.content == '{"content-type":"a"}'


def test_the_key_goes_to_a_function_that_asks_for_it_by_name():
    def keyed(idempotency_key: str, **arguments: object) -> str:
        return idempotency_key

    wrapped = Tool.from_schema("keyed", "", {"type": "object"}, keyed)
    assert wrapped.wants_key
    assert (
        len(
            asyncio.run(
                TrajectoryUnderTest().perform(lambda t: t.tool(call("keyed"), wrapped))
            ).content
        )
        == 32
    )
    own = {"type": "object", "properties": {"idempotency_key": {"type": "string"}}}
    assert not Tool.from_schema("keyed", "", own, keyed).wants_key
    assert not search.wants_key


@pytest.mark.parametrize(
    "schema",
    [{"type": "string"}, {"type": "object", "properties": []}, [], {"x": object()}],
    ids=["string", "properties", "list", "object"],
)
def test_parameters_that_describe_no_object_are_refused(schema):
    with pytest.raises(UsageError, match="tool bad"):
        Tool.from_schema("bad", "", schema, echo)


def test_changing_the_schema_afterwards_does_not_change_the_tool():
    schema: dict = {"type": "object", "properties": {}}
    wrapped = Tool.from_schema("one", "", schema, echo)
    schema["required"] = ["later"]
    assert wrapped.bind("{}") == {}
