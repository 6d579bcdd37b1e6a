"""A conversation as the dictionaries that chat templates and the `renderers` package read.

What users and tools say, and what is put into calls, comes from outside: a special token that it
spells out is quoted, so that it becomes letters and not markup. What the system and the assistant
say is the author's own and may hold markup.
"""

import json
from collections.abc import Callable, Sequence

from holdfast.policy.rendering.parse_tool_calls import storable
from holdfast.records.errors import UsageError
from holdfast.records.message import Message, Role, ToolCall

OUTSIDE = (Role.USER, Role.TOOL)

Quoted = Callable[[str], str]
Arguments = Callable[[str, Quoted], object]


def as_dicts(
    messages: Sequence[Message],
    *,
    quoted: Quoted,
    arguments: Arguments,
    developer: bool,
) -> list[dict[str, object]]:
    """`developer`: whether the reader knows that role; otherwise it is the system that speaks."""
    return [
        _as_dict(message, quoted=quoted, arguments=arguments, developer=developer)
        for message in messages
    ]


def _as_dict(
    message: Message, *, quoted: Quoted, arguments: Arguments, developer: bool
) -> dict[str, object]:
    role = message.role
    text = storable(_text(message))
    found: dict[str, object] = {
        "role": "system" if role is Role.DEVELOPER and not developer else str(role.value),
        "content": quoted(text) if role in OUTSIDE else text,
    }
    if message.tool_calls:
        found["tool_calls"] = [_call(call, quoted, arguments) for call in message.tool_calls]
    if message.reasoning:
        found["reasoning_content"] = storable(message.reasoning)
    if message.tool_call_id:
        found["tool_call_id"] = message.tool_call_id
    if message.name:
        found["name"] = quoted(storable(message.name))
    return found


def decoded_arguments(text: str, quoted: Quoted) -> object:
    """An object, as chat templates want it; anything else is kept inside one."""
    try:
        found = _quoted_inside(json.loads(text), quoted)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"arguments": quoted(text)}


def verbatim_arguments(text: str, quoted: Quoted) -> object:
    """As the model wrote them."""
    return quoted(text)


def _quoted_inside(value: object, quoted: Quoted) -> object:
    if isinstance(value, str):
        return quoted(storable(value))
    if isinstance(value, list):
        return [_quoted_inside(item, quoted) for item in value]
    if isinstance(value, dict):
        return {
            quoted(storable(key)): _quoted_inside(entry, quoted) for key, entry in value.items()
        }
    return value


def _call(call: ToolCall, quoted: Quoted, arguments: Arguments) -> dict[str, object]:
    written = arguments(storable(call.arguments), quoted)
    function = {"name": quoted(storable(call.name)), "arguments": written}
    return {"id": call.id, "type": "function", "function": function}


def _text(message: Message) -> str:
    for part in message.content if isinstance(message.content, list) else ():
        if not isinstance(part.get("text"), str):
            raise UsageError(
                f"a {message.role.value} message holds a part of type "
                f"{part.get('type', 'unknown')!r}; only text can be rendered"
            )
    return message.text
