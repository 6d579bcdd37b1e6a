"""Gives all messages one shape, because a table column has one type.

`content` is a text. If a message has content parts, `content` is null and `parts` lists them.
`others` holds the remaining fields of a message or part as JSON text. `holdfast.tasks.files` reads
this shape back.
"""

from collections.abc import Mapping

import msgspec

from holdfast.engine.export.row_tokens import Fields

OTHER_FIELDS = "others"
"""The field for values that have no place in the schema, as JSON text."""
_MESSAGE = (
    *("role", "content", "parts", "reasoning_content", "name", "tool_call_id", "tool_calls"),
)

_LISTS = (list, tuple)
"""A list from JSON is a `list`. A list in a record is a `tuple`."""


def nested_message(message: Mapping[str, object]) -> Fields:
    """Returns a chat API message with every field of the shape. Absent fields are null."""
    content = message.get("content")
    has_parts = isinstance(content, _LISTS)
    fields: Fields = {name: message.get(name) for name in _MESSAGE}
    fields["content"] = None if has_parts else content
    fields["parts"] = [_part(part) for part in content] if isinstance(content, _LISTS) else None
    if "reasoning" in message:
        fields["reasoning_content"] = message["reasoning"]
    calls = message.get("tool_calls")
    fields["tool_calls"] = [_call(call) for call in calls] if isinstance(calls, _LISTS) else None
    others = {
        name: value
        for name, value in message.items()
        if name not in (*_MESSAGE, "reasoning") and value is not None
    }
    fields[OTHER_FIELDS] = as_json(others) if others else None
    return fields


def _part(part: object) -> Fields:
    if not isinstance(part, Mapping):
        return {"type": None, "text": None, "image_url": None, OTHER_FIELDS: as_json(part)}
    image = part.get("image_url")
    url = image if isinstance(image, Mapping) else {"url": image} if image else None
    known = ("type", "text", "image_url")
    others = {name: value for name, value in part.items() if name not in known}
    return {
        "type": part.get("type"),
        "text": part.get("text"),
        "image_url": url and {"url": url.get("url"), "detail": url.get("detail")},
        OTHER_FIELDS: as_json(others) if others else None,
    }


def _call(call: object) -> Fields:
    fields = call if isinstance(call, Mapping) else {}
    function = fields.get("function")
    named = function if isinstance(function, Mapping) else {}
    return {
        "id": fields.get("id"),
        "type": fields.get("type", "function"),
        "function": {"name": named.get("name"), "arguments": named.get("arguments")},
    }


def as_json(value: object) -> str:
    return msgspec.json.encode(value).decode()
