"""What a wire can look up while it parses a request: conversations that were sent before, and the
recorded answers to which requests refer by id.

An agent sends its whole conversation with each call. The part that was sent before, byte for byte,
is taken from the cache, and only the rest is parsed and hashed: a call costs as much at the end of
a long trajectory as at its beginning. The cache changes nothing but the time. Answers come from the
record alone: every later process knows them, and none knows those behind a fork.
"""

from collections.abc import Callable

from msgspec import Raw, Struct

from holdfast.gateway.calls import digest
from holdfast.gateway.calls.answer import build_answer, sent_message
from holdfast.gateway.protocol.messages import EarlierAnswer, GenerationRequest
from holdfast.records.conversation import conversation
from holdfast.records.message import Message
from holdfast.records.step import Generated
from holdfast.rollout.replay.session import Session

Messages = tuple[Message, ...]
Parse = Callable[[bytes], Messages]
MAX_CONVERSATIONS = 4
"""Conversations that go on side by side: an agent and its sub-agents."""
MIN_MESSAGES = 16
"""Of a cached conversation: shorter ones are parsed faster than they are kept."""


class ConversationCache:
    """The latest conversations of one trajectory."""

    def __init__(self) -> None:
        self._sent: list[tuple[bytes, Messages]] = []
        """The JSON without its closing bracket, and its messages; the latest last."""
        self._digests: list[tuple[Messages, list[bytes]]] = []

    def messages(self, sent: Raw, parse: Parse) -> Messages:
        """The messages of a JSON array; `parse` parses each element, and raises what it likes."""
        raw = bytes(sent)
        found: Messages | None = None
        for at, (known, messages) in enumerate(self._sent):
            if raw.startswith(known) and (rest := _rest(raw, len(known))) is not None:
                found = messages + parse(rest)
                del self._sent[at]
                break
        found = parse(raw) if found is None else found
        if len(found) >= MIN_MESSAGES:
            latest = self._sent[1 - MAX_CONVERSATIONS :]
            self._sent = [*latest, (raw.rstrip()[:-1].rstrip(), found)]
        return found

    def digests(self, messages: Messages) -> list[bytes]:
        """`digest.digests`."""
        found: list[bytes] = []
        for at, (known, digests) in enumerate(self._digests):
            if messages[: len(known)] == known:
                found = digests
                del self._digests[at]
                break
        last = found[-1] if found else digest.START
        found = found + digest.digests(messages[len(found) :], last)
        if len(found) >= MIN_MESSAGES:
            self._digests = [*self._digests[1 - MAX_CONVERSATIONS :], (messages, found)]
        return found


def _rest(raw: bytes, known: int) -> bytes | None:
    """The array of what follows; None where the known part does not end with an element of it."""
    rest = raw[known:].lstrip()
    if rest[:1] == b",":
        return b"[" + rest[1:]
    return b"[]" if rest == b"]" else None


class TrajectoryLookup(Struct, frozen=True):
    """Of one trajectory; the `Known` of its requests."""

    session: Session
    cache: ConversationCache

    def messages(self, sent: Raw, parse: Parse) -> Messages:
        return self.cache.messages(sent, parse)

    def earlier_answer(self, answer: str) -> EarlierAnswer | None:
        history = self.session.history
        called = next((call for call in history.calls.values() if call.answer == answer), None)
        step = None if called is None else history.steps.get(called.path)
        if called is None or not isinstance(step, Generated):
            return None
        messages = conversation(history, self.session.task, step)
        # Results of tools that were run through the gateway may follow.
        end = max(at for at, message in enumerate(messages) if message is step.message)
        found = build_answer(self.session, called, GenerationRequest(called.model, ()), bare=False)
        return EarlierAnswer(found, (*messages[:end], sent_message(step)), called.instructed)
