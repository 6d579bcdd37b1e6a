"""Writes messages in the form of OpenTelemetry's `gen_ai` conventions, as JSON texts of bounded
length."""

from collections.abc import Iterable, Iterator

import msgspec

from holdfast.records.message import Message, Role

MAX_TEXT = 16_384
"""The largest number of characters in one text. The journal has the whole text."""
_Part = dict[str, object]


def bounded(text: str) -> str:
    """Returns the text. If the text is too long, returns its beginning, followed by a note of how
    many characters are left out."""
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:MAX_TEXT]} … ({len(text) - MAX_TEXT:,} more characters are in the journal)"


def messages_text(messages: Iterable[Message], *, finish_reason: str = "") -> str:
    """Returns messages as JSON text, for an attribute of a span. Only a reply has a finish
    reason."""
    end: _Part = {"finish_reason": finish_reason} if finish_reason else {}
    listed = [{"role": each.role.value, "parts": list(_parts(each)), **end} for each in messages]
    return msgspec.json.encode(listed).decode()


def _parts(message: Message) -> Iterator[_Part]:
    if message.reasoning:
        yield {"type": "reasoning", "content": bounded(message.reasoning)}
    text = bounded(message.readable)
    if message.role is Role.TOOL:
        yield {"type": "tool_call_response", "id": message.tool_call_id, "response": text}
    elif text:
        yield {"type": "text", "content": text}
    for call in message.tool_calls:
        arguments = bounded(call.arguments)
        yield {"type": "tool_call", "id": call.id, "name": call.name, "arguments": arguments}
