"""Decides whether two requests, two conversations, or two sets of tools are the same.

Clients do not send back exactly what they got. They drop reasoning, split text into parts, format
the arguments of a call differently, and reorder the members of a schema. So the content of
conversations is compared: roles, text, images, results, and calls with their ids, names and parsed
arguments. Digests are chained message by message, so that the longest known beginning of a
conversation is found by looking up digests. Tools are rendered and stored as they were sent, since
their order affects the tokens, but are compared in a canonical order.
"""

import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache

import msgspec
from msgspec import Raw, Struct, structs

from holdfast.gateway.protocol.messages import GenerationRequest, RequestRejected
from holdfast.journal.types import digest_of
from holdfast.records.errors import JournalCorrupt
from holdfast.records.message import Message, Role
from holdfast.records.sampling import Sampling, packed
from holdfast.rollout.episodes.environment import Blobs

START = b"\0" * 16
"""The digest of an empty conversation."""
encode = msgspec.msgpack.Encoder().encode
in_order = msgspec.msgpack.Encoder(order="deterministic").encode
"""Encodes like `encode`, but gives equal objects the same order of members."""


def digests(messages: Iterable[Message], conversation: bytes = START) -> list[bytes]:
    """Returns the digest after each message. `conversation` is the digest before the first one."""
    chain: list[bytes] = []
    last = conversation
    for message in messages:
        last = after(last, message)
        chain.append(last)
    return chain


def beginning(messages: Sequence[Message], digests: Sequence[bytes]) -> bytes:
    """Returns the digest after the first user message, which identifies a conversation. A system
    prompt is not enough, because many sub-agents can have the same system prompt."""
    roles = (message.role for message in messages)
    first = next((at for at, role in enumerate(roles) if role is Role.USER), 0)
    return digests[first] if digests else START


def after(conversation: bytes, message: Message) -> bytes:
    """Returns the digest of a conversation that continues with `message`."""
    return hashlib.blake2b(conversation + _content(message), digest_size=16).digest()


def key_of(
    request: GenerationRequest, conversation: bytes, sampling: Sampling, *, tools: Raw
) -> bytes:
    """Returns the digest of everything in a request that can change its answer. `tools` must come
    from `in_order`, so that the order of a schema's members does not matter."""
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
    content = message.content
    text = content if isinstance(content, str) else message.text
    # Some clients strip the text that an assistant writes before its calls.
    parts: tuple[object, ...] = (
        str(message.role),
        text.strip() if calls else text,
        calls,
        message.tool_call_id or "",
    )
    # If there are images, their positions count.
    has_images = not isinstance(content, str) and message.images
    return encode((*parts, in_order(content)) if has_images else parts)


def arguments_of(arguments: str) -> str:
    """Returns JSON arguments in a canonical form, in which equal values are equal texts. Other text
    is returned unchanged."""
    try:
        value = _with_integers(msgspec.json.decode(arguments))
        return msgspec.json.encode(value, order="sorted").decode()
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return arguments


def _with_integers(value: object) -> object:
    """Replaces floats that are whole numbers by integers, since JavaScript sends 1.0 back as 1."""
    match value:
        case float() if value.is_integer() and abs(value) < 2**53:
            return int(value)
        case list():
            return [_with_integers(element) for element in value]
        case dict():
            return {name: _with_integers(member) for name, member in value.items()}
        case _:
            return value


Tools = tuple[dict[str, object], ...]
MAX_TOOL_SETS = 8
"""The most sets of tools that are kept: those of an agent and its sub-agents. Other sets are
encoded again."""


class ToolSet(Struct, frozen=True, eq=False):
    """The tools of one call."""

    digest: bytes
    """The digest of the blob with the tools. It is empty if there are no tools."""
    canonical: Raw
    """The tools as msgpack, in the canonical order, in which they are compared."""


NO_TOOLS = ToolSet(b"", Raw(encode(())))


class ToolSchemas:
    """Encodes each set of tools once, however many calls send it."""

    def __init__(self, blobs: Blobs, recorded: Iterable[bytes]):
        """`recorded` has the digests of the sets of tools that are in the record."""
        self._blobs = blobs
        self._sets: dict[bytes, ToolSet] = {}
        self._stored: set[bytes] = set()
        self._contents: dict[bytes, bytes] = {}
        """Maps the digest of a recorded set of tools to the digest of its canonical form."""
        self._unread = set(recorded) - {b""}

    def of(self, tools: Tools) -> ToolSet:
        """Returns the encoded set of tools. Raises `RequestRejected` for tools that cannot be
        recorded."""
        if not tools:
            return NO_TOOLS
        digest = digest_of(msgspec.json.encode(tools))
        tool_set = self._sets.get(digest)
        if tool_set is None:
            try:
                tool_set = self._sets[digest] = _tool_set(tools, digest)
            except OverflowError as error:
                message = "'tools' holds an integer of more than 64 bits"
                raise RequestRejected(400, message, param="tools", code="invalid_value") from error
            if len(self._sets) > MAX_TOOL_SETS:
                del self._sets[next(iter(self._sets))]
        return tool_set

    async def store(self, tool_set: ToolSet, tools: Tools) -> None:
        """Stores a set of tools if it is not stored yet. The first call also reads the recorded
        sets."""
        if tool_set.digest and tool_set.digest not in self._stored:
            await self._blobs.put_blob(msgspec.json.encode(tools))
            self._stored.add(tool_set.digest)
            self._contents[tool_set.digest] = digest_of(tool_set.canonical)
        while unread := self._unread - self._contents.keys():
            digest = unread.pop()
            self._contents[digest] = await self._read(digest)
        self._unread = set()

    def equal(self, tool_set: ToolSet) -> frozenset[bytes]:
        """Returns the digests of all known sets with the same content, including the digest of
        `tool_set`."""
        content = self._contents.get(tool_set.digest)
        equal = (digest for digest, stored in self._contents.items() if stored == content)
        return frozenset((tool_set.digest, *(equal if content else ())))

    async def _read(self, digest: bytes) -> bytes:
        try:
            tools = msgspec.json.decode(await self._blobs.get_blob(digest), type=Tools)
        except JournalCorrupt:
            # Its content is unknown, so it differs from every set that is sent.
            return digest
        return digest_of(_tool_set(tools, digest).canonical)


def _tool_set(tools: Tools, digest: bytes) -> ToolSet:
    return ToolSet(digest, Raw(in_order(tools)))
