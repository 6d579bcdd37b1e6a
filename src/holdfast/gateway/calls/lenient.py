"""Lenient: a request whose wire does not know all of it, read once more without what says nothing.

Libraries send back what they were told with members of their own beside it. Those that are null
change nothing that is sampled, whatever they are called. What is refused all the same is refused
with its way out, where there is one.
"""

import msgspec

from holdfast.gateway.protocol.messages import Ask, Known, RequestRejected, Wire

_VERBATIM = ("functions", "metadata", "output_config", "response_format", "text", "tools")
"""Members that hold schemas, in which null is a value."""


def ask(wire: Wire, body: bytes, known: Known | None) -> Ask:
    """What the wire reads. Raises `RequestRejected` as it does."""
    try:
        return wire.ask(body, known)
    except RequestRejected as refused:
        lean = _without_nulls(body) if refused.is_unknown else body
        if lean == body:
            raise
    return wire.ask(lean, known)


def _without_nulls(body: bytes) -> bytes:
    try:
        return msgspec.json.encode(_lean(msgspec.json.decode(body)))
    except (ValueError, RecursionError):
        return body


def _lean(value: object) -> object:
    if isinstance(value, list):
        return [_lean(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        name: one if _is_verbatim(name, one) else _lean(one)
        for name, one in value.items()
        if one is not None
    }


def _is_verbatim(name: str, value: object) -> bool:
    """An object that is the `input` of a call holds its arguments."""
    return (name in _VERBATIM and not isinstance(value, str)) or (
        name == "input" and isinstance(value, dict)
    )
