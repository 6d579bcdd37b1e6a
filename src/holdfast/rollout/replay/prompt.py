"""The prompt of the next turn: the tokens of the stream that are kept, and the tokens after them.

Invariant (I3): the stream consists only of tokens that were sent to an engine and tokens that an
engine sampled. As long as messages are only added, the next prompt is the stream plus a bridge (the
tokens between the last reply and the next one). If earlier messages or the tools have changed, the
conversation is rendered anew. Then the common beginning of both token sequences is kept, and
`prefix_break` names the reason.
"""

import hashlib
from array import array
from collections.abc import Sequence
from functools import partial

import msgspec
from msgspec import Struct

from holdfast.off_loop import MIN_THREAD_SIZE, off_loop
from holdfast.policy.rendering.messages_only import MessagesOnly
from holdfast.policy.rendering.renderer import Renderer
from holdfast.records.encoding.tokens import common_prefix, ids_of, pack_ids, unpack_ids
from holdfast.records.errors import IMAGES, Unsupported
from holdfast.records.message import Message, size_of
from holdfast.records.sampling import Sampling, packed
from holdfast.records.step import Generated


class Prompt(Struct, gc=False):
    """A prompt: the first `keep` tokens of the stream of `base`, then `delta`."""

    base: str
    keep: int
    delta: "array[int]"
    prefix_break: str
    fingerprint: bytes
    added: Sequence[Message] = ()
    """The messages that the prompt adds to the messages of the stream."""


class Stream:
    """A token stream and the messages that it represents.

    The tokens of the last turn are appended only when they are first needed, because many
    conversations never continue. Copies share the arrays, which never change.
    """

    __slots__ = (
        "_completion",
        "_digest",
        "_ids",
        "_tools",
        "_turn",
        "_written",
        "base",
        "messages",
    )

    def __init__(self) -> None:
        self._ids: array[int] = array("i")
        self._turn: tuple[int, bytes, bytes] | None = None
        """The last turn: how many of `_ids` are kept, then the packed prompt and completion that
        follow."""
        self.base = ""
        self.messages: list[Message] = []
        """The messages of the stream, including the last reply."""
        self._completion: array[int] = array("i")
        self._digest = b""
        self._tools: tuple[dict[str, object], ...] = ()
        self._written: tuple[str | None, str] = (None, "")
        """The parts of the sampling that the renderer wrote into the prompt."""

    @classmethod
    def after(
        cls,
        ids: "array[int]",
        step: Generated,
        messages: Sequence[Message],
        tools: tuple[dict[str, object], ...],
    ) -> "Stream":
        """Returns the stream after the recorded `step`. The last of `messages` is the reply of that
        step."""
        stream = cls()
        stream._ids, stream.base = ids, step.path
        stream._completion = unpack_ids(step.ids)
        stream._digest = _hash(step.fingerprint, step.ids, *_text_without_tokens(step))
        stream.messages, stream._tools = list(messages), tools
        stream._written = _written(step.sampling)
        return stream

    @property
    def ids(self) -> "array[int]":
        """The tokens of the stream. Do not change them."""
        if self._turn is not None:
            keep, delta, completion = self._turn
            self._ids, self._turn = self._ids[:keep] + unpack_ids(delta + completion), None
        return self._ids

    def copy(self) -> "Stream":
        other = Stream()
        other._ids, other._turn, other.base = self._ids, self._turn, self.base
        other.messages, other._completion = list(self.messages), self._completion
        other._digest, other._tools = self._digest, self._tools
        other._written = self._written
        return other

    def prompt_ids(self, prompt: Prompt) -> "array[int]":
        """Returns all tokens of the prompt. Do not change the returned array, which may belong to
        the prompt."""
        return self.ids[: prompt.keep] + prompt.delta if prompt.keep else prompt.delta

    async def prepare(
        self,
        messages: Sequence[Message],
        tools: tuple[dict[str, object], ...],
        *,
        renderer: Renderer,
        sampling: Sampling,
    ) -> Prompt:
        """Returns the next prompt. A large conversation is rendered in a thread. Raises
        `Unsupported` for images that cannot be rendered."""
        is_known = list(messages[: len(self.messages)]) == self.messages
        new = messages[len(self.messages) :] if is_known else messages
        if not isinstance(renderer, MessagesOnly):
            _check_text_only(new)
        # Joined here and not in the thread, where a copy made in the meantime might contain half of
        # it.
        size = sum(map(size_of, new)) + (len(self.ids) if is_known else 0)
        size += len(msgspec.msgpack.encode(tools))
        make = partial(self.next_prompt, messages, tools, renderer=renderer, sampling=sampling)
        return make() if size < MIN_THREAD_SIZE else await off_loop(make, size=size)

    def next_prompt(
        self,
        messages: Sequence[Message],
        tools: tuple[dict[str, object], ...],
        *,
        renderer: Renderer,
        sampling: Sampling,
    ) -> Prompt:
        keep, delta, why = self._extend(messages, tools, renderer, _written(sampling))
        added = messages if why else messages[len(self.messages) :]
        # Without tokens, the messages themselves are the request.
        untokenized = [msgspec.msgpack.encode(added)] if isinstance(renderer, MessagesOnly) else []
        fingerprint = _hash(
            self._digest,
            keep.to_bytes(8, "little"),
            pack_ids(delta),
            packed(sampling),
            msgspec.msgpack.encode(tools),
            *untokenized,
        )
        return Prompt(self.base, keep, delta, why, fingerprint, added)

    def _extend(
        self,
        messages: Sequence[Message],
        tools: tuple[dict[str, object], ...],
        renderer: Renderer,
        written: tuple[str | None, str],
    ) -> "tuple[int, array[int], str]":
        if not self.base:
            return 0, ids_of(renderer.render(messages, tools)), ""
        why = self._why_not_bridged(messages, tools)
        # A template may write tools anywhere, and usually does so at the very beginning.
        if not why and written != self._written and not isinstance(renderer, MessagesOnly):
            why = f"the {_WRITTEN[written[0] == self._written[0]]} changed"
        if not why:
            sent = self.ids[: len(self.ids) - len(self._completion)]
            new = messages[len(self.messages) :]
            bridge = renderer.bridge(sent, self._completion, new, tools)
            if bridge is not None:
                return len(self.ids), ids_of(bridge), ""
            why = "the renderer has no bridge from this turn"
        anew = ids_of(renderer.render(messages, tools))
        keep = common_prefix(self.ids, anew)
        kept = keep == len(self.ids) and not isinstance(renderer, MessagesOnly)
        return keep, anew[keep:], "" if kept else why

    def _why_not_bridged(
        self, messages: Sequence[Message], tools: tuple[dict[str, object], ...]
    ) -> str:
        known = len(self.messages)
        if list(messages[:known]) != self.messages:
            return "earlier messages were changed"
        return "" if tools == self._tools else "the tools were changed"

    def advance(
        self,
        step: Generated,
        messages: Sequence[Message],
        tools: tuple[dict[str, object], ...],
    ) -> None:
        """Adds a recorded turn to the stream. The next prompt continues from this turn."""
        self._ids = self.ids if step.keep else array("i")
        self._turn = step.keep, step.delta, step.ids
        self._completion = unpack_ids(step.ids)
        self.base = step.path
        self._digest = _hash(step.fingerprint, step.ids, *_text_without_tokens(step))
        self.messages = [*messages, step.message]
        self._tools = tools
        self._written = _written(step.sampling)


_WRITTEN = ("reasoning effort was", "arguments of the chat template were")


def _written(sampling: Sampling) -> tuple[str | None, str]:
    return sampling.reasoning_effort, sampling.chat_template_kwargs


def _check_text_only(messages: Sequence[Message]) -> None:
    # Only the engine knows how it represents an image in tokens, so Holdfast does not guess.
    if any(message.images for message in messages):
        raise Unsupported(
            IMAGES,
            "a message holds an image, and this policy's engine is sent tokens, in which there is "
            "none; use a policy that is sent messages (the dialect chat) and whose engine takes "
            "images, or leave them out",
        )


def _text_without_tokens(step: Generated) -> tuple[bytes, ...]:
    return () if step.ids else (msgspec.msgpack.encode(step.message),)


def _hash(*parts: bytes) -> bytes:
    # Each part follows its length. One update for all parts, because an update for each would cost
    # more than the hashing.
    whole = b"".join([piece for part in parts for piece in (len(part).to_bytes(4, "little"), part)])
    return hashlib.blake2b(whole, digest_size=8).digest()


fingerprint = _hash
