"""Keeps the calls of one trajectory as a tree, and finds the position of a new call in it.

Each recorded generation ends a conversation. A request that begins with one of these conversations,
word for word, continues its tokens: the prompt and completion are kept as they were sampled, and
only the new messages are rendered. A request that rewrites earlier messages branches off, and the
record shows it. A request that shares no beginning with any conversation (a sub-agent) is a root of
its own.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from msgspec import Struct

from holdfast.gateway.calls import digest as canonical
from holdfast.gateway.calls.answer import sent_message
from holdfast.gateway.calls.raw_prompts import WIRE as RAW_WIRE
from holdfast.records.conversation import conversation
from holdfast.records.history import History, stream_of
from holdfast.records.message import Message
from holdfast.records.step import ADDED, Called, Generated
from holdfast.records.task import Task
from holdfast.rollout.replay.prompt import Stream

Tools = tuple[dict[str, object], ...]
OTHER_TOOLS: Tools = ({"other": "tools"},)
MAX_STREAMS = 8
"""Token streams that are kept at hand; others are read from the history when they are needed."""


class Conversation(Struct, frozen=True):
    """The part of a request that decides its position."""

    messages: Sequence[Message]
    digests: Sequence[bytes]
    tools: Tools
    equal: frozenset[bytes]
    """The digests of the recorded sets of tools that equal the request's tools."""

    @property
    def beginning(self) -> bytes:
        return canonical.beginning(self.messages, self.digests)


class TreePosition(Struct):
    """The position of a request in the tree."""

    stream: Stream
    messages: list[Message]
    """The request's conversation, with the known beginning as it was recorded."""
    parent: str
    """The generation that the request continues, or ""."""


class PrefixTree:
    def __init__(self, history: History, task: Task):
        self._history = history
        self._task = task
        self._ends: dict[bytes, str] = {}
        """Maps the digest of a conversation to the generation that ends it."""
        self._beginnings: dict[bytes, str] = {}
        """Maps the digest of a conversation's beginning to the last generation that has this
        beginning."""
        self._bases: dict[bytes, str] = {}
        """Maps the digest of a conversation to the base of its first recorded reply. A repeated
        request continues the same base, so that it does not matter which of its answers came first.
        """
        self._streams: OrderedDict[str, Stream] = OrderedDict()
        for called in history.calls.values():
            if called.wire != RAW_WIRE:  # A raw prompt is not a conversation: see `raw_prompts`.
                self._grow(called, [self._generation(path) for path in called.choices])

    def add(
        self, called: Called, steps: Sequence[Generated], position: TreePosition, *, tools: Tools
    ) -> None:
        """Adds a call that was answered live, at its position."""
        self._grow(called, steps)
        for step in steps:
            stream = position.stream.copy()
            stream.advance(step, position.messages, tools)
            self._keep(step.path, stream)

    def position(self, request: Conversation) -> TreePosition:
        """Returns the position of the request, with the tokens that it continues."""
        messages, digests = request.messages, request.digests
        for length in range(len(messages), 0, -1):
            parent = self._ends.get(digests[length - 1])
            if parent is not None:
                stream = self._stream(parent, request)
                known = list(stream.messages)
                return TreePosition(stream, [*known, *messages[length:]], parent)
        rewritten = ""
        if messages:
            rewritten = self._beginnings.get(request.beginning, "")
            rewritten = self._bases.get(digests[-1], rewritten)
        stream = self._stream(rewritten, request) if rewritten else Stream()
        return TreePosition(stream, list(messages), "")

    def positions(self, request: Conversation) -> Iterator[TreePosition]:
        """Yields the position of the request. Then yields every other position that the request
        could have got while fewer calls were recorded."""
        yield self.position(request)
        messages = request.messages
        lengths = {digest: length for length, digest in enumerate(request.digests, 1)}
        # A copy, because it may grow in the meantime.
        for called in reversed(list(self._history.calls.values())):
            for path in () if called.wire == RAW_WIRE else called.choices:
                ends = _ends(called, self._generation(path))
                if length := next((lengths[end] for end in ends if end in lengths), None):
                    stream = self._stream(path, request)
                    yield TreePosition(stream, [*stream.messages, *messages[length:]], path)
                elif called.beginning == request.beginning:
                    yield TreePosition(self._stream(path, request), list(messages), "")
        yield TreePosition(Stream(), list(messages), "")

    def _grow(self, called: Called, steps: Sequence[Generated]) -> None:
        for step in steps:
            # The first of several equal ends is kept, so later records change nothing.
            for end in _ends(called, step):
                self._ends.setdefault(end, step.path)
            self._beginnings[called.beginning] = step.path
            self._bases.setdefault(called.conversation, step.base)

    def _stream(self, path: str, request: Conversation) -> Stream:
        stream = self._streams.get(path)
        if stream is None:
            return self._read(path, request)
        self._streams.move_to_end(path)
        return stream.copy()

    def _keep(self, path: str, stream: Stream) -> None:
        self._streams[path] = stream
        while len(self._streams) > MAX_STREAMS:
            self._streams.popitem(last=False)

    def _read(self, path: str, request: Conversation) -> Stream:
        step = self._generation(path)
        messages = conversation(self._history, self._task, step)
        called = next(call for call in self._history.calls.values() if path in call.choices)
        # Only one thing matters: whether these are the tools of this request.
        tools = request.tools if called.tools in request.equal else OTHER_TOOLS
        stream = Stream.after(stream_of(self._history, path), step, messages, tools)
        if tools is request.tools:  # The tools of another request are not stored here.
            self._keep(path, stream.copy())
        return stream

    def _generation(self, path: str) -> Generated:
        step = self._history.steps[path]
        assert isinstance(step, Generated), "a call is answered by generations"
        return step


def _digest(message: Message) -> bytes:
    return hashlib.blake2b(canonical.in_order(message), digest_size=16).digest()


class RecordedImages:
    """Finds recorded messages with images, so that each image is stored only once. Agents send
    images again with every conversation that they begin or rewrite."""

    def __init__(self, history: History, task: Task):
        self._references: dict[bytes, str] = {}
        for at, message in enumerate(task.messages):
            self._add(message, f"task:{at}")
        for step in history.generations:
            self.add(step)

    def add(self, step: Generated) -> None:
        """Adds the messages that a generation recorded."""
        for at, message in enumerate(step.added):
            if not isinstance(message, str):
                self._add(message, f"{ADDED}{step.path}:{at}")

    def references(self, messages: Sequence[Message]) -> tuple[Message | str, ...]:
        """Returns the messages as they are recorded. A reference replaces each message whose images
        the record already has."""
        return tuple(
            self._references.get(_digest(message), message) if message.images else message
            for message in messages
        )

    def _add(self, message: Message, reference: str) -> None:
        if message.images:
            self._references.setdefault(_digest(message), reference)


def _ends(called: Called, step: Generated) -> list[bytes]:
    """Returns the digests of the conversation after a reply. One is for the reply as the agent got
    it. If the sampled reply differs, another one is for the reply as it was sampled."""
    message = sent_message(step)
    ends = [canonical.after(called.conversation, message)]
    if message is not step.message:
        ends.append(canonical.after(called.conversation, step.message))
    return ends
