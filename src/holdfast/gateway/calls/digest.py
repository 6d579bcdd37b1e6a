"""When are two requests, or two conversations, the same?

Clients do not send back exactly what they were told: they drop reasoning, split text into parts,
write a call's arguments anew. What is compared is what a conversation says: roles, text, images,
calls with their ids, names and arguments as values, results. Digests are chained message by
message, so that the longest known beginning of a conversation is found by looking digests up.
"""

import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache

import msgspec
from msgspec import Raw, structs

from holdfast.gateway.protocol.messages import Ask
from holdfast.records.message import Message, Role
from holdfast.records.sampling import Sampling

START = b"\0" * 16
"""The digest of a conversation in which nothing was said."""
encode = msgspec.msgpack.Encoder().encode
in_order = msgspec.msgpack.Encoder(order="deterministic").encode
"""The same with the members of objects in one order, whatever order they came in."""


def digests(messages: Iterable[Message], conversation: bytes = START) -> list[bytes]:
    """The digest of the conversation after each of its messages; `conversation` is that of what
    was said before them."""
    found: list[bytes] = []
    last = conversation
    for message in messages:
        last = after(last, message)
        found.append(last)
    return found


def beginning(messages: Sequence[Message], digests: Sequence[bytes]) -> bytes:
    """The digest of what makes a conversation this one: up to the first thing that a user said. A
    system prompt alone may be that of many sub-agents."""
    first = next((n for n, one in enumerate(messages) if one.role is Role.USER), 0)
    return digests[first] if digests else START


def after(conversation: bytes, message: Message) -> bytes:
    """The digest of a conversation that goes on with `message`."""
    return hashlib.blake2b(conversation + _said(message), digest_size=16).digest()


def key_of(ask: Ask, conversation: bytes, sampling: Sampling, *, tools: Raw) -> bytes:
    """The digest of everything in a request that makes another answer right. `tools`: as
    `in_order`, so that the order of a schema's members makes no other request."""
    if isinstance(sampling.json, str):
        sampling = structs.replace(sampling, json=_schema(sampling.json))
    return _key(ask, conversation, sampling, tools)


def older_key_of(ask: Ask, conversation: bytes, sampling: Sampling) -> bytes:
    """As it is in older records: of a request as it came. The same, where the members of its
    schemas came in order."""
    return _key(ask, conversation, sampling, ask.tools)


def _key(ask: Ask, conversation: bytes, sampling: Sampling, tools: object) -> bytes:
    others: tuple[object, ...] = (tools, sampling, ask.n, ask.text, ask.prompt_ids)
    if ask.prompts:
        others = (*others, ask.prompts)
    if ask.seed is not None:
        others = (*others, "seed", ask.seed)
    return hashlib.blake2b(conversation + encode(others), digest_size=16).digest()


@lru_cache(maxsize=64)
def _schema(text: str) -> str:
    return msgspec.json.encode(msgspec.json.decode(text), order="deterministic").decode()


def _said(message: Message) -> bytes:
    calls = [(one.id, one.name, arguments_of(one.arguments)) for one in message.tool_calls]
    text = message.text
    # An assistant's text before its calls loses its ends in some clients.
    said: tuple[object, ...] = (
        str(message.role),
        text.strip() if calls else text,
        calls,
        message.tool_call_id or "",
    )
    # With images it counts where they stand.
    return encode((*said, in_order(message.content)) if message.images else said)


def arguments_of(arguments: str) -> str:
    """JSON that says the same is the same text; what is no JSON stays as it is."""
    try:
        value = _with_integers(msgspec.json.decode(arguments))
        return msgspec.json.encode(value, order="sorted").decode()
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return arguments


def _with_integers(value: object) -> object:
    """JavaScript knows one kind of numbers, and sends 1.0 back as 1."""
    match value:
        case float() if value.is_integer() and abs(value) < 2**53:
            return int(value)
        case list():
            return [_with_integers(one) for one in value]
        case dict():
            return {name: _with_integers(one) for name, one in value.items()}
        case _:
            return value
