"""The same call as several clients send it."""

import json

from holdfast.policy.rendering.renderer import ByteRenderer
from support.gateway.counter import CHAT, MESSAGES, RESPONSES

SCHEMA = {
    "type": "object",
    "properties": {"b": {"type": "integer"}, "a": {"description": "x", "type": "integer"}},
}
FUNCTION = {"parameters": SCHEMA, "name": "add", "description": "Adds."}
SHOWN = {
    CHAT: {
        "messages": [{"role": "user", "content": "add"}],
        "tools": [{"type": "function", "function": FUNCTION}],
    },
    RESPONSES: {"input": "add", "tools": [{"type": "function", **FUNCTION}]},
    MESSAGES: {
        "max_tokens": 500,
        "messages": [{"role": "user", "content": "add"}],
        "tools": [{"name": "add", "input_schema": SCHEMA}],
    },
}


def turned(value: object) -> object:
    """The same with the members of all objects in another order."""
    if isinstance(value, dict):
        return {name: turned(item) for name, item in reversed(value.items())}
    return [turned(item) for item in value] if isinstance(value, list) else value


class AsSent(ByteRenderer):
    """As templates do it: the order of members is in the tokens."""

    def render(self, messages, tools):
        shown = json.dumps(list(tools), separators=(",", ":")).encode()
        return [self.OPEN, *shown, self.END, *super().render(messages, ())]
