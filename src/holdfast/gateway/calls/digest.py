"""When are two requests, or two conversations, the same?

Clients do not send back exactly what they got: they drop reasoning, split text into parts, write a
call's arguments anew. Compared is the content of a conversation: roles, text, images, calls with
their ids, names and arguments as values, results. Digests are chained message by message, so that
the longest known beginning of a conversation is found by looking digests up.
"""

import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache

import msgspec
from msgspec import Raw, structs

from holdfast.gateway.protocol.messages import GenerationRequest
from holdfast.records.message import Message, Role
from holdfast.records.sampling import Sampling, packed

START = b"\0" * 16
"""The digest of an empty conversation."""
encode = msgspec.msgpack.Encoder().encode
in_order = msgspec.msgpack.Encoder(order="deterministic").encode
"""The same with the members of objects in one order, whatever order they came in."""


def digests(messages: Iterable[Message], conversation: bytes = START) -> list[bytes]:
    """The digest after each message; `conversation` is the digest before them."""
    found: list[bytes] = []
    last = conversation
    for message in messages:
        last = after(last, message)
        found.append(last)
    return found


def beginning(messages: Sequence[Message], digests: Sequence[bytes]) -> bytes:
    """The digest of what identifies a conversation: up to the first message of a user. A system
    prompt alone may be that of many sub-agents."""
    roles = (message.role for message in messages)
    first = next((at for at, role in enumerate(roles) if role is Role.USER), 0)
    return digests[first] if digests else START


def after(conversation: bytes, message: Message) -> bytes:
    """The digest of a conversation that goes on with `message`."""
    return hashlib.blake2b(conversation + _content(message), digest_size=16).digest()


def key_of(
    request: GenerationRequest, conversation: bytes, sampling: Sampling, *, tools: Raw
) -> bytes:
    """The digest of everything in a request that makes another answer right. `tools`: as
    `in_order`, so that the order of a schema's members makes no other request."""
    if isinstance(sampling.json, str):
        sampling = structs.replace(sampling, json=_schema(sampling.json))
    how = Raw(packed(sampling))
    parts: tuple[object, ...] = (tools, how, request.n, request.text, request.prompt_ids)
    if request.prompts:
        parts = (*parts, request.prompts)
    if request.seed is not None:
        parts = (*parts, "seed", request.seed)
    return hashlib.blake2b(conversation + encode(parts), digest_size=16).digest()


@lru_cache(maxsize=64)
def _schema(text: str) -> str:
    return msgspec.json.encode(msgspec.json.decode(text), order="deterministic").decode()


def _content(message: Message) -> bytes:
    calls = [(call.id, call.name, arguments_of(call.arguments)) for call in message.tool_calls]
    text = message.text
    # An assistant's text before its calls loses its ends in some clients.
    content: tuple[object, ...] = (
        str(message.role),
        text.strip() if calls else text,
        calls,
        message.tool_call_id or "",
    )
    # With images, their positions count.
    return encode((*content, in_order(message.content)) if message.images else content)


def arguments_of(arguments: str) -> str:
    """Equal JSON is equal text; what is no JSON stays as it is."""
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
            return [_with_integers(element) for element in value]
        case dict():
            return {name: _with_integers(member) for name, member in value.items()}
        case _:
            return value
