"""Remembered: the latest conversations of one trajectory, so that what was read is not read again.

An agent sends its whole conversation with each call. What it sent before, byte for byte, is taken
as it was read then, and only what is new is read, judged and hashed: a call costs as much at the
end of a long trajectory as at its beginning. Nothing depends on what is remembered but the time.
"""

from collections.abc import Callable

from msgspec import Raw

from holdfast.gateway.calls import digest
from holdfast.records.message import Message

Messages = tuple[Message, ...]
Read = Callable[[bytes], Messages]
KEPT = 4
"""Conversations that go on side by side: an agent and its sub-agents."""
LEAST = 16
"""Messages of a conversation that is worth it: shorter ones are read faster than they are kept."""


class Remembered:
    def __init__(self) -> None:
        self._sent: list[tuple[bytes, Messages]] = []
        """What was sent, without its closing bracket, and how it was read; the latest last."""
        self._digests: list[tuple[Messages, list[bytes]]] = []

    def messages(self, sent: Raw, read: Read) -> Messages:
        """The messages of a JSON array. `read` reads one, each element by itself, and raises what
        it likes."""
        raw = bytes(sent)
        found: Messages | None = None
        for at, (known, said) in enumerate(self._sent):
            if raw.startswith(known) and (rest := _rest(raw, len(known))) is not None:
                found = said + read(rest)
                del self._sent[at]
                break
        found = read(raw) if found is None else found
        if len(found) >= LEAST:
            self._sent = [*self._sent[1 - KEPT :], (raw.rstrip()[:-1].rstrip(), found)]
        return found

    def digests(self, messages: Messages) -> list[bytes]:
        """`canonical.digests`."""
        found: list[bytes] = []
        for at, (known, digests) in enumerate(self._digests):
            if messages[: len(known)] == known:
                found = digests
                del self._digests[at]
                break
        last = found[-1] if found else digest.START
        found = found + digest.digests(messages[len(found) :], last)
        if len(found) >= LEAST:
            self._digests = [*self._digests[1 - KEPT :], (messages, found)]
        return found


def _rest(raw: bytes, known: int) -> bytes | None:
    """The array of what follows; None where what is known does not end with an element of it."""
    rest = raw[known:].lstrip()
    if rest[:1] == b",":
        return b"[" + rest[1:]
    return b"[]" if rest == b"]" else None
