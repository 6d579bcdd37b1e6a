"""The tools that the calls of one trajectory send, as they were sent and as they are compared.

A client that is started again may write the members of a schema in another order. What was sent is
rendered and stored, since the order is in the tokens. Comparisons use the canonical order, so that
another order makes no other call, and no other conversation.
"""

from collections.abc import Iterable

import msgspec
from msgspec import Raw, Struct

from holdfast.gateway.calls import digest as canonical
from holdfast.gateway.protocol.messages import RequestRejected
from holdfast.journal.journal import digest_of
from holdfast.records.errors import JournalCorrupt
from holdfast.rollout.episodes.environment import Blobs

Tools = tuple[dict[str, object], ...]
MAX_TOOL_SETS = 8
"""At hand: those of an agent and of its sub-agents. Others are encoded anew."""


class ToolSet(Struct, frozen=True, eq=False):
    """The tools of one call."""

    digest: bytes
    """Of the blob; empty if there are none."""
    canonical: Raw
    """msgpack, in the order that is compared."""


NO_TOOLS = ToolSet(b"", Raw(canonical.encode(())))


class ToolSchemas:
    """Encodes each set once, however many calls send it."""

    def __init__(self, blobs: Blobs, recorded: Iterable[bytes]):
        """`recorded`: the digests of the sets that the record has."""
        self._blobs = blobs
        self._sets: dict[bytes, ToolSet] = {}
        self._stored: set[bytes] = set()
        self._contents: dict[bytes, bytes] = {}
        """The digest of a recorded set's canonical form, by its own digest."""
        self._unread = set(recorded) - {b""}

    def of(self, tools: Tools) -> ToolSet:
        """Raises `RequestRejected` for tools that cannot be recorded."""
        if not tools:
            return NO_TOOLS
        digest = digest_of(msgspec.json.encode(tools))
        found = self._sets.get(digest)
        if found is None:
            try:
                found = self._sets[digest] = _tool_set(tools, digest)
            except OverflowError as error:
                message = "'tools' holds an integer of more than 64 bits"
                raise RequestRejected(400, message, param="tools", code="invalid_value") from error
            if len(self._sets) > MAX_TOOL_SETS:
                del self._sets[next(iter(self._sets))]
        return found

    async def store(self, tool_set: ToolSet, tools: Tools) -> None:
        """Stores them once; and reads the other sets of the record, once."""
        if tool_set.digest and tool_set.digest not in self._stored:
            await self._blobs.put_blob(msgspec.json.encode(tools))
            self._stored.add(tool_set.digest)
            self._contents[tool_set.digest] = digest_of(tool_set.canonical)
        while unread := self._unread - self._contents.keys():
            digest = unread.pop()
            self._contents[digest] = await self._read(digest)
        self._unread = set()

    def equal(self, tool_set: ToolSet) -> frozenset[bytes]:
        """The digests of all known sets with the same content."""
        content = self._contents.get(tool_set.digest)
        equal = (digest for digest, found in self._contents.items() if found == content)
        return frozenset((tool_set.digest, *(equal if content else ())))

    async def _read(self, digest: bytes) -> bytes:
        try:
            tools = msgspec.json.decode(await self._blobs.get_blob(digest), type=Tools)
        except JournalCorrupt:
            # Its content is not known: it differs from every set that is sent.
            return digest
        return digest_of(_tool_set(tools, digest).canonical)


def _tool_set(tools: Tools, digest: bytes) -> ToolSet:
    return ToolSet(digest, Raw(canonical.in_order(tools)))
