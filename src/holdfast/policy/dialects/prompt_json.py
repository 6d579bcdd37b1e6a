"""Encodes prompts in JSON, as engines get them.

An agent's next prompt consists of its last prompt, the completion, and a little more. Encoding all
numbers again would be a large part of a call's cost, and would grow with each turn. So the cache
keeps the last long prompt of each home in JSON, and only the rest of a prompt is encoded.

Invariant: the cache only saves time. A prompt that does not begin with the cached one is encoded
whole.
"""

from array import array
from collections import OrderedDict
from functools import partial

import msgspec
from msgspec import Raw, Struct

from holdfast.off_loop import off_loop
from holdfast.records.encoding.tokens import TYPE_IDS

MIN_TOKENS = 1024
"""The length from which a prompt is kept. Encoding a shorter prompt takes no time."""
MAX_BYTES = 1 << 23
"""The limit for all homes together. Beyond it, the least recently used prompts are dropped."""
_SLICE_TOKENS = 1 << 16
_encode = msgspec.json.Encoder().encode


class _Kept(Struct, frozen=True, gc=False):
    packed: bytes
    """A copy of the ids, so that no caller can change the ids from which the text was made."""
    text: bytes

    def extend(self, prompt: "array[int]", packed: bytes) -> bytes:
        """Returns the JSON of `prompt`. If `prompt` begins with the kept prompt, encodes only the
        rest."""
        if not self.packed or not packed.startswith(self.packed):
            return encode_prompt(prompt)
        new = prompt[len(self.packed) // prompt.itemsize :]
        return self.text[:-1] + b"," + encode_prompt(new)[1:] if new else self.text


_NOTHING = _Kept(b"", b"")


class PromptCache:
    """Keeps the last prompt of each home. A home is a group of requests with a long common
    prefix."""

    def __init__(self, *, min_tokens: int = MIN_TOKENS, max_bytes: int = MAX_BYTES) -> None:
        self._min_tokens, self._max_bytes = min_tokens, max_bytes
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._bytes = 0

    async def encode(self, prompt: "array[int]", home: str) -> Raw:
        """Returns `prompt` in JSON."""
        if len(prompt) < self._min_tokens:
            return Raw(encode_prompt(prompt))
        # With another item size, the same bytes could be other numbers.
        if not home or prompt.typecode != TYPE_IDS:
            return Raw(await off_loop(partial(encode_prompt, prompt), size=len(prompt)))
        known, packed = self._forget(home) or _NOTHING, prompt.tobytes()
        text = await off_loop(partial(known.extend, prompt, packed), size=len(prompt))
        self._keep(home, _Kept(packed, text))
        return Raw(text)

    def _keep(self, home: str, kept: _Kept) -> None:
        self._forget(home)  # If two were encoded at once, the later one is kept.
        self._kept[home] = kept
        self._bytes += len(kept.packed) + len(kept.text)
        while self._bytes > self._max_bytes:
            self._forget(next(iter(self._kept)))

    def _forget(self, home: str) -> _Kept | None:
        known = self._kept.pop(home, None)
        if known is not None:
            self._bytes -= len(known.packed) + len(known.text)
        return known


def encode_prompt(prompt: "array[int]") -> bytes:
    if len(prompt) <= _SLICE_TOKENS:
        return _encode(prompt.tolist())
    # In slices, because one call for millions of ids would hold the interpreter for too long.
    starts = range(0, len(prompt), _SLICE_TOKENS)
    parts = (prompt[start : start + _SLICE_TOKENS] for start in starts)
    return b"[" + b",".join(_encode(part.tolist())[1:-1] for part in parts) + b"]"
