"""Tree: the calls of one trajectory, and where a new one belongs.

Each recorded generation ends a conversation. A request that begins with one of these conversations,
word for word, goes on with its tokens: prompt and completion are kept as they were sampled, and
only what is new is rendered. One that rewrites what was said before breaks off visibly. One that
has nothing to do with any of them (a sub-agent) is a root of its own.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from msgspec import Struct

from holdfast.gateway.calls import digest as canonical
from holdfast.gateway.calls.answer import message_of
from holdfast.gateway.calls.raw_prompts import WIRE as BARE_WIRE
from holdfast.records.conversation import conversation
from holdfast.records.history import History, stream_of
from holdfast.records.message import Message
from holdfast.records.step import ADDED, Called, Generated
from holdfast.records.task import Task
from holdfast.rollout.replay.prompt import Stream

Tools = tuple[dict[str, object], ...]
OTHER_TOOLS: Tools = ({"other": "tools"},)
STREAMS = 8
"""Token streams that are kept at hand; others are read from the history when they are needed."""


class TreePosition(Struct):
    """Where a request belongs."""

    stream: Stream
    messages: list[Message]
    """The request's conversation, with the known beginning as it was recorded."""
    parent: str
    """The generation that it goes on with; "" for none."""


class PrefixTree:
    def __init__(self, history: History, task: Task):
        self._history = history
        self._task = task
        self._ends: dict[bytes, str] = {}
        """Which generation ends a conversation, by its digest."""
        self._beginnings: dict[bytes, str] = {}
        """The last generation of a conversation, by the digest of its first message."""
        self._bases: dict[bytes, str] = {}
        """What a conversation was first continued from, by its digest: one that is asked again goes
        on from the same, so that it does not matter which of its answers came first."""
        self._streams: OrderedDict[str, Stream] = OrderedDict()
        for called in history.calls.values():
            if called.wire == BARE_WIRE:
                continue  # No conversation: see `bare`.
            self._grow(called, [self._generation(path) for path in called.choices])

    def add(
        self, called: Called, steps: Sequence[Generated], place: TreePosition, *, tools: Tools
    ) -> None:
        """Takes in a call that was answered live, at its place."""
        self._grow(called, steps)
        for step in steps:
            stream = place.stream.copy()
            stream.advance(step, place.messages, tools)
            self._keep(step.path, stream)

    def place(
        self,
        messages: Sequence[Message],
        digests: Sequence[bytes],
        *,
        tools: Tools,
        equal: frozenset[bytes],
    ) -> TreePosition:
        """Where a request with these messages belongs, and the tokens that it goes on with.
        `equal`: what recorded tools that say the same as `tools` are called."""
        asked = (tools, equal)
        for length in range(len(messages), 0, -1):
            parent = self._ends.get(digests[length - 1])
            if parent is not None:
                stream = self._stream(parent, asked)
                known = list(stream.messages)
                return TreePosition(stream, [*known, *messages[length:]], parent)
        beginning = canonical.beginning(messages, digests)
        rewritten = self._beginnings.get(beginning, "") if messages else ""
        rewritten = self._bases.get(digests[-1], rewritten) if messages else ""
        stream = self._stream(rewritten, asked) if rewritten else Stream()
        return TreePosition(stream, list(messages), "")

    def places(
        self,
        messages: Sequence[Message],
        digests: Sequence[bytes],
        *,
        tools: Tools,
        equal: frozenset[bytes],
    ) -> Iterator[TreePosition]:
        """Where it belongs, and then every other place where it may have belonged before what is
        recorded now was."""
        yield self.place(messages, digests, tools=tools, equal=equal)
        asked = (tools, equal)
        lengths = {digest: length for length, digest in enumerate(digests, 1)}
        beginning = canonical.beginning(messages, digests)
        for called in reversed(list(self._history.calls.values())):  # It may grow meanwhile.
            for path in () if called.wire == BARE_WIRE else called.choices:
                ends = _ends(called, self._generation(path))
                if length := next((lengths[end] for end in ends if end in lengths), None):
                    stream = self._stream(path, asked)
                    yield TreePosition(stream, [*stream.messages, *messages[length:]], path)
                elif called.beginning == beginning:
                    yield TreePosition(self._stream(path, asked), list(messages), "")
        yield TreePosition(Stream(), list(messages), "")

    def _grow(self, called: Called, steps: Sequence[Generated]) -> None:
        for step in steps:
            # Of equal ones, the first: so it does not matter what was recorded after it.
            for end in _ends(called, step):
                self._ends.setdefault(end, step.path)
            self._beginnings[called.beginning] = step.path
            self._bases.setdefault(called.conversation, step.base)

    def _stream(self, path: str, asked: tuple[Tools, frozenset[bytes]]) -> Stream:
        found = self._streams.get(path)
        if found is None:
            return self._read(path, asked)
        self._streams.move_to_end(path)
        return found.copy()

    def _keep(self, path: str, stream: Stream) -> None:
        self._streams[path] = stream
        while len(self._streams) > STREAMS:
            self._streams.popitem(last=False)

    def _read(self, path: str, asked: tuple[Tools, frozenset[bytes]]) -> Stream:
        step = self._generation(path)
        said = conversation(self._history, self._task, step)
        called = next(one for one in self._history.calls.values() if path in one.choices)
        # Only whether they are the tools of this request is ever asked.
        tools, equal = asked
        then = tools if called.tools in equal else OTHER_TOOLS
        stream = Stream.after(stream_of(self._history, path), step, said, then)
        if then is tools:  # Another request may have them.
            self._keep(path, stream.copy())
        return stream

    def _generation(self, path: str) -> Generated:
        step = self._history.steps[path]
        assert isinstance(step, Generated), "a call is answered by generations"
        return step


def _digest(message: Message) -> bytes:
    return hashlib.blake2b(canonical.in_order(message), digest_size=16).digest()


class RecordedImages:
    """Where the record has messages with images, so that none is stored twice: an agent sends them
    again with every conversation that it begins, or rewrites."""

    def __init__(self, history: History, task: Task):
        self._references: dict[bytes, str] = {}
        for at, message in enumerate(task.messages):
            self._add(message, f"task:{at}")
        for step in history.generations:
            self.add(step)

    def add(self, step: Generated) -> None:
        """Takes in what a generation recorded."""
        for at, message in enumerate(step.added):
            if not isinstance(message, str):
                self._add(message, f"{ADDED}{step.path}:{at}")

    def references(self, messages: Sequence[Message]) -> tuple[Message | str, ...]:
        """The messages as they are recorded: those that the record has, by reference."""
        return tuple(
            self._references.get(_digest(message), message) if message.images else message
            for message in messages
        )

    def _add(self, message: Message, reference: str) -> None:
        if message.images:
            self._references.setdefault(_digest(message), reference)


def _ends(called: Called, step: Generated) -> list[bytes]:
    """The conversation after a reply: as the agent was told it, and as it was sampled."""
    told = message_of(step)
    ends = [canonical.after(called.conversation, told)]
    if told is not step.message:
        ends.append(canonical.after(called.conversation, step.message))
    return ends
