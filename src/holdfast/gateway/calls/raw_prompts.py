"""Raw prompts are the requests of `/v1/completions`. They send text or tokens, not a conversation.

A text that continues the text of an earlier prompt and its completion also continues their tokens:
sampled tokens are kept unchanged, and only the new text is encoded. The same holds for tokens that
begin with an earlier prompt and its completion. Any other prompt is a root of its own.

In the record, the text of a prompt is a message of the user, and the text of a completion is the
reply. Prompts of tokens have no message. A reply is recorded whole, and sent up to its stop string.

Invariant: sampled tokens are never encoded again.
"""

import hashlib
from array import array
from bisect import insort
from collections.abc import Sequence
from functools import partial

from msgspec import Struct

from holdfast.gateway.calls.answer import sent_message
from holdfast.gateway.protocol.messages import GenerationRequest
from holdfast.off_loop import off_loop
from holdfast.policy.rendering.messages_only import MessagesOnly
from holdfast.policy.rendering.renderer import Renderer
from holdfast.records.encoding.tokens import unpack_ids
from holdfast.records.errors import Unsupported
from holdfast.records.history import History, stream_of
from holdfast.records.message import Message, user
from holdfast.records.sampling import Sampling, packed
from holdfast.records.step import Called, Generated
from holdfast.rollout.replay.prompt import Prompt, fingerprint

WIRE = "/v1/completions"
WITHIN = "the text goes on before the end of the completion"
RawInput = str | tuple[int, ...]


class RawPrompt(Struct):
    """A raw prompt that is ready to be sampled from."""

    prompt: Prompt
    ids: "array[int]"
    added: tuple[Message, ...]


class _Prefixes:
    """Finds known beginnings of prompts by their digests. A search reads its data only once."""

    def __init__(self) -> None:
        self._paths: dict[bytes, str] = {}
        self._lengths: list[int] = []

    def add(self, digest: bytes, length: int, path: str) -> None:
        if digest not in self._paths:
            insort(self._lengths, length)
        # The first of several equal prompts is kept, so the order of the later ones does not
        # matter.
        self._paths.setdefault(digest, path)

    def longest(self, data: bytes) -> str:
        """Returns the path of the generation whose conversation is the longest known beginning of
        `data`, or "" if there is none."""
        prefix, at, hashed = "", 0, hashlib.blake2b(digest_size=16)
        for length in self._lengths:
            if length > len(data):
                break
            hashed.update(memoryview(data)[at:length])
            at = length
            prefix = self._paths.get(hashed.copy().digest(), prefix)
        return prefix


class _Node(Struct):
    """One generation from a raw prompt."""

    kind: type
    prompt: "hashlib.blake2b"
    """The hash of the prompt, to which more data can be added."""
    prompt_bytes: int
    end: "hashlib.blake2b"
    """The hash of the prompt and the whole completion."""
    end_bytes: int


class RawPrompts:
    """The raw prompts of one trajectory. The record is read when the first raw prompt arrives."""

    def __init__(self, history: History):
        self._history = history
        self._prefixes: dict[type, _Prefixes] = {str: _Prefixes(), tuple: _Prefixes()}
        self._nodes: dict[str, _Node] = {}
        for called in history.calls.values():
            if called.wire == WIRE:
                self.add(called)

    def add(self, called: Called) -> None:
        """Adds a call whose generations are recorded."""
        for path in called.choices:
            step = self._history.steps[path]
            assert isinstance(step, Generated), "a call is answered by generations"
            node = self._nodes[path] = self._node(step)
            self._learn(step, node)

    async def prepare(self, raw: RawInput, *, renderer: Renderer, sampling: Sampling) -> RawPrompt:
        """Returns the prompt with its base and its tokens. Raises `Unsupported`."""
        if isinstance(renderer, MessagesOnly):
            raise Unsupported("prompt", "its engine takes messages; use /v1/chat/completions")
        path = self._prefixes[type(raw)].longest(_data(raw))
        base = self._history.steps[path] if path else None
        added: tuple[Message, ...] = ()
        ids: array[int] = stream_of(self._history, path) if path else array("i")
        if isinstance(raw, str):
            keep, rest = await off_loop(
                partial(self._kept, raw, base, ids, renderer), size=len(raw)
            )
            encode = partial(_encode, renderer, rest, whole=not keep)
            delta = await off_loop(encode, size=len(rest))
            fresh = raw if keep < len(ids) or not ids else rest
            added = (user(fresh),) if fresh else ()
        else:
            keep = len(ids)
            delta = array("i", raw[keep:])
        why = WITHIN if keep < len(ids) else ""
        digest = fingerprint(
            *((base.fingerprint, base.ids) if isinstance(base, Generated) else (b"", b"")),
            keep.to_bytes(8, "little"),
            delta.tobytes(),
            packed(sampling),
        )
        return RawPrompt(Prompt(path, keep, delta, why, digest), ids[:keep] + delta, added)

    def _kept(
        self, text: str, base: object, ids: "array[int]", renderer: Renderer
    ) -> tuple[int, str]:
        """Returns how many tokens of the base are kept, and the text after them."""
        if not isinstance(base, Generated):
            return 0, text
        completion = unpack_ids(base.ids)
        before = len(ids) - len(completion)
        after = _data(text)[self._nodes[base.path].prompt_bytes :].decode("utf-8", "surrogatepass")
        # Searched from the end, because usually everything but the final token is there.
        for kept in range(len(completion), -1, -1):
            if kept and completion[kept - 1] in renderer.stop_token_ids:
                continue
            decoded = renderer.decode(completion[:kept], special=False)
            if after.startswith(decoded):
                return before + kept, after[len(decoded) :]
        return before, after

    def _node(self, step: Generated) -> _Node:
        base = self._nodes.get(step.base) if not step.prefix_break else None
        messages = [message for message in step.added if isinstance(message, Message)]
        kind = base.kind if base else str if messages else tuple
        prompt = base.end.copy() if base else hashlib.blake2b(digest_size=16)
        length = base.end_bytes if base else 0
        new = b"".join(_data(message.text) for message in messages) if kind is str else step.delta
        prompt.update(new)
        end, reply = prompt.copy(), _data(step.message.text) if kind is str else step.ids
        end.update(reply)
        length += len(new)
        return _Node(kind, prompt, length, end, length + len(reply))

    def _learn(self, step: Generated, node: _Node) -> None:
        prefixes = self._prefixes[node.kind]
        prefixes.add(node.end.digest(), node.end_bytes, step.path)
        if node.kind is str and (sent := _data(sent_message(step).text)):
            digest = node.prompt.copy()
            digest.update(sent)
            prefixes.add(digest.digest(), node.prompt_bytes + len(sent), step.path)


def prompts_of(request: GenerationRequest) -> Sequence[RawInput]:
    """Returns the raw prompts of a request. A conversation has none."""
    if request.prompts:
        return request.prompts
    if request.text is not None:
        return (request.text,)
    return () if request.prompt_ids is None else (request.prompt_ids,)


def _encode(renderer: Renderer, text: str, *, whole: bool) -> "array[int]":
    encode = getattr(renderer, "encode", None)
    if encode is None:
        raise Unsupported(
            "prompt", f"the renderer {renderer.name!r} encodes conversations only; send messages"
        )
    return array("i", encode(text, whole=whole))


def _data(raw: RawInput) -> bytes:
    if isinstance(raw, str):
        return raw.encode("utf-8", "surrogatepass")
    return array("i", raw).tobytes()
