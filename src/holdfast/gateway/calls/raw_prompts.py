"""Bare prompts: what `/v1/completions` asks, a text or tokens instead of a conversation.

A text that goes on with the text of an earlier call and of its completion goes on with their
tokens: what was sampled is kept as it was sampled, and only what is new is encoded. So do tokens
that begin with an earlier prompt and its completion. Anything else is a root of its own.

In the record, the text of a prompt is a user's message, and that of a completion the reply; tokens
have no message. A reply is recorded whole, and told up to its stop string.

Invariant: sampled tokens are never encoded again.
"""

import hashlib
from array import array
from bisect import insort
from collections.abc import Sequence
from functools import partial
from typing import Protocol, runtime_checkable

import msgspec
from msgspec import Struct

from holdfast.gateway.calls.answer import message_of
from holdfast.gateway.protocol.messages import Ask
from holdfast.policy.off_loop import off_loop
from holdfast.policy.rendering.messages_only import MessagesOnly
from holdfast.policy.rendering.renderer import Renderer
from holdfast.records.errors import Unsupported
from holdfast.records.history import History, stream_of
from holdfast.records.message import Message, user
from holdfast.records.sampling import Sampling
from holdfast.records.step import Called, Generated
from holdfast.records.tokens import unpack_ids
from holdfast.rollout.replay.prompt import Prompt, fingerprint

WIRE = "/v1/completions"
WITHIN = "the text goes on before the end of the completion"
Bare = str | tuple[int, ...]


@runtime_checkable
class Encodes(Protocol):
    """A renderer that can do without a conversation."""

    def encode(self, text: str, *, whole: bool) -> list[int]:
        """The ids of a text, special tokens in it included. `whole`: with what the tokenizer puts
        around a prompt, as engines have it, such as a token that begins it."""
        ...


class RawPrompt(Struct):
    """A bare prompt, ready to be sampled from."""

    prompt: Prompt
    ids: "array[int]"
    added: tuple[Message, ...]


class _Known:
    """Beginnings by their digests: the longest one of some data is found in one pass over it."""

    def __init__(self) -> None:
        self._paths: dict[bytes, str] = {}
        self._lengths: list[int] = []

    def add(self, digest: bytes, length: int, path: str) -> None:
        if digest not in self._paths:
            insort(self._lengths, length)
        # Of equal ones, the first: it does not matter then which of several came last.
        self._paths.setdefault(digest, path)

    def longest(self, data: bytes) -> str:
        """The path of what `data` begins with; "" for none."""
        found, at, hashed = "", 0, hashlib.blake2b(digest_size=16)
        for length in self._lengths:
            if length > len(data):
                break
            hashed.update(memoryview(data)[at:length])
            at = length
            found = self._paths.get(hashed.copy().digest(), found)
        return found


class _Node(Struct):
    """One generation from a bare prompt."""

    kind: type
    prompt: "hashlib.blake2b"
    """Of the prompt, to be gone on with."""
    prompt_bytes: int
    end: "hashlib.blake2b"
    """Of the prompt and the whole completion."""
    end_bytes: int


class BarePrompts:
    """Those of one trajectory. What is recorded is read when the first bare prompt is asked."""

    def __init__(self, history: History):
        self._history = history
        self._known: dict[type, _Known] = {str: _Known(), tuple: _Known()}
        self._nodes: dict[str, _Node] = {}
        for called in history.calls.values():
            if called.wire == WIRE:
                self.add(called)

    def add(self, called: Called) -> None:
        """Takes in a call whose generations are recorded."""
        for path in called.choices:
            step = self._history.steps[path]
            assert isinstance(step, Generated), "a call is answered by generations"
            node = self._nodes[path] = self._node(step)
            self._learn(step, node)

    async def ask(self, bare: Bare, *, renderer: Renderer, sampling: Sampling) -> RawPrompt:
        """Where a prompt belongs, and the tokens that it is."""
        if isinstance(renderer, MessagesOnly):
            raise Unsupported("prompt", "its engine takes messages; use /v1/chat/completions")
        path = self._known[type(bare)].longest(_data(bare))
        base = self._history.steps[path] if path else None
        added: tuple[Message, ...] = ()
        ids: array[int] = stream_of(self._history, path) if path else array("i")
        if isinstance(bare, str):
            keep, rest = await off_loop(
                partial(self._kept, bare, base, ids, renderer), size=len(bare)
            )
            encode = partial(_encoded, renderer, rest, whole=not keep)
            delta = await off_loop(encode, size=len(rest))
            anew = bare if keep < len(ids) or not ids else rest
            added = (user(anew),) if anew else ()
        else:
            keep = len(ids)
            delta = array("i", bare[keep:])
        why = WITHIN if keep < len(ids) else ""
        digest = fingerprint(
            *((base.fingerprint, base.ids) if isinstance(base, Generated) else (b"", b"")),
            keep.to_bytes(8, "little"),
            delta.tobytes(),
            msgspec.msgpack.encode(sampling),
        )
        return RawPrompt(Prompt(path, keep, delta, why, digest), ids[:keep] + delta, added)

    def _kept(
        self, text: str, base: object, ids: "array[int]", renderer: Renderer
    ) -> tuple[int, str]:
        """How many tokens of the base are kept, and the text after them."""
        if not isinstance(base, Generated):
            return 0, text
        completion = unpack_ids(base.ids)
        before = len(ids) - len(completion)
        after = _data(text)[self._nodes[base.path].prompt_bytes :].decode("utf-8", "surrogatepass")
        # From the end: nearly always, all of it is there, but for the token that ended it.
        for kept in range(len(completion), -1, -1):
            if kept and completion[kept - 1] in renderer.stop_token_ids:
                continue
            said = renderer.decode(completion[:kept], special=False)
            if after.startswith(said):
                return before + kept, after[len(said) :]
        return before, after

    def _node(self, step: Generated) -> _Node:
        base = self._nodes.get(step.base) if not step.prefix_break else None
        messages = [one for one in step.added if isinstance(one, Message)]
        kind = base.kind if base else str if messages else tuple
        prompt = base.end.copy() if base else hashlib.blake2b(digest_size=16)
        length = base.end_bytes if base else 0
        new = b"".join(_data(one.text) for one in messages) if kind is str else step.delta
        prompt.update(new)
        end, said = prompt.copy(), _data(step.message.text) if kind is str else step.ids
        end.update(said)
        length += len(new)
        return _Node(kind, prompt, length, end, length + len(said))

    def _learn(self, step: Generated, node: _Node) -> None:
        known = self._known[node.kind]
        known.add(node.end.digest(), node.end_bytes, step.path)
        if node.kind is str and (told := _data(message_of(step).text)):
            digest = node.prompt.copy()
            digest.update(told)
            known.add(digest.digest(), node.prompt_bytes + len(told), step.path)


def prompts_of(ask: Ask) -> Sequence[Bare]:
    """The bare prompts of a request; none where it is a conversation."""
    if ask.prompts:
        return ask.prompts
    if ask.text is not None:
        return (ask.text,)
    return () if ask.prompt_ids is None else (ask.prompt_ids,)


def _encoded(renderer: Renderer, text: str, *, whole: bool) -> "array[int]":
    if not isinstance(renderer, Encodes):
        raise Unsupported(
            "prompt", f"the renderer {renderer.name!r} encodes conversations only; send messages"
        )
    return array("i", renderer.encode(text, whole=whole))


def _data(bare: Bare) -> bytes:
    if isinstance(bare, str):
        return bare.encode("utf-8", "surrogatepass")
    return array("i", bare).tobytes()
