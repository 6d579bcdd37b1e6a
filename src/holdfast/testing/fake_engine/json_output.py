"""JSON replies of the fake engine, for requests that need any JSON object, or an object that fits a
schema.

A reply is a pure function of the schema and a number. The most common part of JSON Schema is
supported. Any other schema is rejected, with vLLM's messages, when a request is read.
"""

import json
from collections.abc import Mapping
from typing import Any
from zlib import crc32

from holdfast.engine_api.errors import EngineRequestRejected
from holdfast.engine_api.requests import ResponseFormat, StructuredOutputs, decode
from holdfast.testing.fake_engine.tokens import ALPHABET, mix

ANY: dict[str, object] = {
    "type": "object",
    "properties": {"said": {"type": "string"}, "number": {"type": "integer"}},
    "required": ["said", "number"],
}
"""The schema of the reply if a request asks for any JSON object."""
TAGS = "structural_tag"
_TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
_MAX_DEPTH = 32


def required_schema(
    response_format: ResponseFormat | None, structured: StructuredOutputs | None
) -> dict[str, object] | None:
    """Returns the schema that a reply must fit, or None if the reply may be any text. Raises
    `EngineRequestRejected` for a schema that is not supported."""
    if structured is not None:
        return _structured_schema(structured)
    if response_format is None or response_format.type == "text":
        return None
    if response_format.type == "json_object":
        return ANY
    declared = response_format.json_schema
    if declared is None or declared.schema is None:
        problem = "When response_format type is 'json_schema', the 'json_schema' field must be "
        raise EngineRequestRejected(
            400, f"{problem}provided. (parameter=response_format)", param="response_format"
        )
    return check_schema(declared.schema)


def _structured_schema(structured: StructuredOutputs) -> dict[str, object]:
    kinds = [structured.json, structured.json_object, structured.structural_tag]
    if (count := sum(kind is not None for kind in kinds)) != 1:
        many = "multiple" if count else "none"
        problem = f"one kind of structured outputs constraint but {many} are specified"
        raise EngineRequestRejected(400, f"You must use {problem}")
    if structured.structural_tag is not None:
        return parse_structural_tag(structured.structural_tag)
    if structured.json is None:
        return ANY
    schema = structured.json
    return parse_schema(schema) if isinstance(schema, str) else check_schema(schema)


def parse_schema(schema: str) -> dict[str, object]:
    return check_schema(decode(schema.encode(), dict[str, object]))


def check_schema(schema: dict[str, object]) -> dict[str, object]:
    """Returns the schema unchanged. Raises `EngineRequestRejected` if no reply can be written for
    it."""
    write_json(schema, 0)
    return schema


def write_json(schema: Mapping[str, object], state: int) -> str:
    """Returns JSON that fits the schema. For a structural tag, returns one of the tags around such
    JSON."""
    if schema.get("type") == TAGS:
        return _write_tagged(schema, state)
    return json.dumps(_value(schema, schema, state, 0))


def parse_structural_tag(text: str) -> dict[str, object]:
    """Reads a structural tag, in the format that vLLM and SGLang accept."""
    try:
        tag = json.loads(text)
        write_json(tag, 0)
    except (ValueError, KeyError, TypeError) as error:
        raise _grammar_error(f"Invalid structural tag: {error}") from error
    if not isinstance(tag, dict) or tag.get("type") != TAGS:
        raise _grammar_error("Invalid structural tag")
    return tag


def _write_tagged(schema: Mapping[str, Any], state: int) -> str:
    form = schema["format"]
    assert form["type"] in ("tags_with_separator", "triggered_tags"), "what Holdfast asks for"
    calls = 1 if form["stop_after_first"] else 1 + mix(state) % 2
    texts = []
    for number in range(calls):
        drawn = crc32(b"%d" % number, state)
        tag = form["tags"][mix(drawn) % len(form["tags"])]
        inside = write_json(tag["content"]["json_schema"], drawn)
        texts.append(f"{tag['begin']}{inside}{tag['end']}")
    return str(form.get("separator", "")).join(texts)


def _value(
    schema: Mapping[str, object], root: Mapping[str, object], state: int, depth: int
) -> object:
    if depth > _MAX_DEPTH:
        raise _grammar_error("it never ends")
    if "$ref" in schema:
        return _value(_resolve(root, schema["$ref"]), root, state, depth + 1)
    if "const" in schema:
        return schema["const"]
    for name in ("enum", "anyOf", "oneOf"):
        if isinstance(options := schema.get(name), list) and options:
            chosen = options[mix(state) % len(options)]
            return chosen if name == "enum" else _value(chosen, root, state, depth + 1)
    return _typed_value(schema, root, state, depth)


def _typed_value(
    schema: Mapping[str, object], root: Mapping[str, object], state: int, depth: int
) -> object:
    kind = schema.get("type", "object")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if kind not in _TYPES:
        raise _grammar_error(f"Invalid type: {kind}")
    if kind == "object":
        return _object(schema, root, state, depth)
    if kind == "array":
        return _array(schema, root, state, depth)
    plain = {
        "string": _word(state),
        "integer": mix(state) % 100,
        "number": mix(state) % 100 / 4,
        "boolean": bool(mix(state) & 1),
        "null": None,
    }
    return plain[str(kind)]


def _object(
    schema: Mapping[str, object], root: Mapping[str, object], state: int, depth: int
) -> object:
    properties = schema.get("properties")
    members: dict[str, object] = {}
    for name, inner in properties.items() if isinstance(properties, dict) else ():
        members[name] = _value(inner, root, crc32(str(name).encode(), state), depth + 1)
    return members


def _array(
    schema: Mapping[str, object], root: Mapping[str, object], state: int, depth: int
) -> object:
    least, items = schema.get("minItems", 0), schema.get("items")
    inner = items if isinstance(items, dict) else {"type": "integer"}
    length = max(least if isinstance(least, int) else 0, mix(state) % 3)
    most = schema.get("maxItems")
    length = min(length, most) if isinstance(most, int) else length
    return [_value(inner, root, crc32(b"%d" % n, state), depth + 1) for n in range(length)]


def _word(state: int) -> str:
    length = 3 + mix(state) % 8
    return "".join(chr(ALPHABET[mix(crc32(b"%d" % n, state)) % 26]) for n in range(length))


def _resolve(root: Mapping[str, object], reference: object) -> Mapping[str, object]:
    target: object = root
    for name in str(reference).removeprefix("#/").split("/") if reference != "#" else ():
        target = target.get(name) if isinstance(target, dict) else None
    if not isinstance(target, dict):
        raise _grammar_error(f"Cannot find definition for ref: {reference}")
    return target


def _grammar_error(why: str) -> EngineRequestRejected:
    return EngineRequestRejected(400, f"Grammar error: {why}")
