"""Shown tools: the tools that the calls of one trajectory show, as they were sent and as they are
compared.

A client that is started again may write the members of a schema in another order. What is rendered
and stored is what was sent, since the order is in the tokens. What is compared is what it says, so
that the order makes no other call, and no other conversation.
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
KEPT = 8
"""Sets of tools at hand: those of an agent and of its sub-agents. Others are read anew."""


class StoredSchemas(Struct, frozen=True, eq=False):
    """One set of tools."""

    digest: bytes
    """Of the blob; nothing, if there are none."""
    said: Raw
    """msgpack, in the order that is compared."""
    in_order: bool
    """Whether they came in that order."""


NO_TOOLS = StoredSchemas(b"", Raw(canonical.encode(())), in_order=True)


class ShownTools:
    """Reads each set once, however many calls show it."""

    def __init__(self, blobs: Blobs, recorded: Iterable[bytes]):
        """`recorded`: the digests of the sets that the record has."""
        self._blobs = blobs
        self._shown: dict[bytes, StoredSchemas] = {}
        self._stored: set[bytes] = set()
        self._said: dict[bytes, bytes] = {}
        """What a recorded set says, as a digest, by its own."""
        self._unread = set(recorded) - {b""}

    def of(self, tools: Tools) -> StoredSchemas:
        """Raises `RequestRejected` for what cannot be recorded."""
        if not tools:
            return NO_TOOLS
        digest = digest_of(msgspec.json.encode(tools))
        found = self._shown.get(digest)
        if found is None:
            try:
                found = self._shown[digest] = _shown(tools, digest)
            except OverflowError as error:
                words = "'tools' holds an integer of more than 64 bits"
                raise RequestRejected(400, words, param="tools", code="invalid_value") from error
            if len(self._shown) > KEPT:
                del self._shown[next(iter(self._shown))]
        return found

    async def keep(self, shown: StoredSchemas, tools: Tools) -> None:
        """They are stored once; and those that the record has besides are known from now on."""
        if shown.digest and shown.digest not in self._stored:
            await self._blobs.put_blob(msgspec.json.encode(tools))
            self._stored.add(shown.digest)
            self._said[shown.digest] = digest_of(shown.said)
        while unread := self._unread - self._said.keys():
            digest = unread.pop()
            self._said[digest] = await self._read(digest)
        self._unread = set()

    def equal(self, shown: StoredSchemas) -> frozenset[bytes]:
        """The digests of all known sets that say the same."""
        said = self._said.get(shown.digest)
        others = (one for one, found in self._said.items() if found == said)
        return frozenset((shown.digest, *others)) if said else frozenset((shown.digest,))

    async def _read(self, digest: bytes) -> bytes:
        try:
            tools = msgspec.json.decode(await self._blobs.get_blob(digest), type=Tools)
        except JournalCorrupt:
            # What they were is not known: they are others than any that are sent.
            return digest
        return digest_of(_shown(tools, digest).said)


def _shown(tools: Tools, digest: bytes) -> StoredSchemas:
    said = canonical.in_order(tools)
    return StoredSchemas(digest, Raw(said), said == canonical.encode(tools))
