"""Turns a conversation into the dictionaries that templates and the `renderers` package read.

The texts of users and tools, and the contents of calls, come from outside. A special token that
such a text spells out is quoted, so that it becomes letters and not markup. The texts of the system
and the assistant are the author's own and may hold markup.
"""

import json
from collections.abc import Callable, Sequence

from holdfast.policy.rendering.parse_tool_calls import make_storable
from holdfast.records.errors import UsageError
from holdfast.records.message import Message, Role, ToolCall

OUTSIDE = (Role.USER, Role.TOOL)

Quote = Callable[[str], str]
Arguments = Callable[[str, Quote], object]


def as_dicts(
    messages: Sequence[Message],
    *,
    quoted: Quote,
    arguments: Arguments,
    developer: bool,
) -> list[dict[str, object]]:
    """Returns the messages as dictionaries. `developer` says that their reader knows the role
    `developer`. Otherwise, this role becomes `system`."""
    return [
        _as_dict(message, quoted=quoted, arguments=arguments, developer=developer)
        for message in messages
    ]


def _as_dict(
    message: Message, *, quoted: Quote, arguments: Arguments, developer: bool
) -> dict[str, object]:
    role = message.role
    text = make_storable(_text(message))
    message_dict: dict[str, object] = {
        "role": "system" if role is Role.DEVELOPER and not developer else str(role.value),
        "content": quoted(text) if role in OUTSIDE else text,
    }
    if message.tool_calls:
        message_dict["tool_calls"] = [_call(call, quoted, arguments) for call in message.tool_calls]
    if message.reasoning:
        message_dict["reasoning_content"] = make_storable(message.reasoning)
    if message.tool_call_id:
        message_dict["tool_call_id"] = message.tool_call_id
    if message.name:
        message_dict["name"] = quoted(make_storable(message.name))
    return message_dict


def decode_arguments(text: str, quoted: Quote) -> object:
    """Returns a call's arguments as an object, as chat templates need it. Arguments that are not a
    JSON object are put inside an object as text."""
    try:
        decoded = _quote_inside(json.loads(text), quoted)
    except (ValueError, RecursionError):
        decoded = None
    return decoded if isinstance(decoded, dict) else {"arguments": quoted(text)}


def quote_arguments(text: str, quoted: Quote) -> object:
    """Returns the arguments as the model wrote them, quoted."""
    return quoted(text)


def _quote_inside(value: object, quoted: Quote) -> object:
    if isinstance(value, str):
        return quoted(make_storable(value))
    if isinstance(value, list):
        return [_quote_inside(item, quoted) for item in value]
    if isinstance(value, dict):
        return {
            quoted(make_storable(key)): _quote_inside(entry, quoted) for key, entry in value.items()
        }
    return value


def _call(call: ToolCall, quoted: Quote, arguments: Arguments) -> dict[str, object]:
    written = arguments(make_storable(call.arguments), quoted)
    function = {"name": quoted(make_storable(call.name)), "arguments": written}
    return {"id": call.id, "type": "function", "function": function}


def _text(message: Message) -> str:
    for part in message.content if isinstance(message.content, list) else ():
        if not isinstance(part.get("text"), str):
            raise UsageError(
                f"a {message.role.value} message holds a part of type "
                f"{part.get('type', 'unknown')!r}; only text can be rendered"
            )
    return message.text
