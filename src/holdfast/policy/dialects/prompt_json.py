"""Spelling: prompts as the JSON that engines are sent.

An agent's next prompt is its last one, what was sampled from it, and a little more. To write all of
its numbers again would take much of what a call costs, and more with each turn. So the last long
prompt of each home is kept as it was written, and only what follows it is written anew.

Invariant: what is kept only saves time. A prompt that does not begin with it is written from its
beginning.
"""

from array import array
from collections import OrderedDict
from functools import partial

import msgspec
from msgspec import Raw, Struct

from holdfast.policy.off_loop import off_loop
from holdfast.records.encoding.tokens import TYPE_IDS

LEAST = 1024
"""Tokens of a prompt that is worth keeping: a shorter one is written in no time."""
MOST = 1 << 23
"""Bytes that are kept of all homes together; beyond, those go that were not asked for longest."""
_SLICE = 1 << 16
_encode = msgspec.json.Encoder().encode


class _Kept(Struct, frozen=True, gc=False):
    packed: bytes
    """Its own copy: nobody can change what the text was written from."""
    text: bytes

    def gone_on(self, prompt: "array[int]", packed: bytes) -> bytes:
        if not self.packed or not packed.startswith(self.packed):
            return spelled(prompt)
        new = prompt[len(self.packed) // prompt.itemsize :]
        return self.text[:-1] + b"," + spelled(new)[1:] if new else self.text


_NOTHING = _Kept(b"", b"")


class Spellings:
    """The last prompt of each home."""

    def __init__(self, *, least: int = LEAST, most: int = MOST) -> None:
        self._least, self._most = least, most
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._bytes = 0

    async def of(self, prompt: "array[int]", home: str) -> Raw:
        """`prompt` in JSON."""
        # Bytes of numbers of another size could be those of other numbers.
        if not home or len(prompt) < self._least or prompt.typecode != TYPE_IDS:
            return Raw(await off_loop(partial(spelled, prompt), size=len(prompt)))
        known, packed = self._forget(home) or _NOTHING, prompt.tobytes()
        text = await off_loop(partial(known.gone_on, prompt, packed), size=len(prompt))
        self._keep(home, _Kept(packed, text))
        return Raw(text)

    def _keep(self, home: str, kept: _Kept) -> None:
        self._forget(home)  # Of two that were written at once, the last.
        self._kept[home] = kept
        self._bytes += len(kept.packed) + len(kept.text)
        while self._bytes > self._most:
            self._forget(next(iter(self._kept)))

    def _forget(self, home: str) -> _Kept | None:
        known = self._kept.pop(home, None)
        if known is not None:
            self._bytes -= len(known.packed) + len(known.text)
        return known


def spelled(prompt: "array[int]") -> bytes:
    if len(prompt) <= _SLICE:
        return _encode(prompt.tolist())
    # In slices: millions in one call would keep the interpreter from the other threads.
    parts = (prompt[at : at + _SLICE] for at in range(0, len(prompt), _SLICE))
    return b"[" + b",".join(_encode(part.tolist())[1:-1] for part in parts) + b"]"
