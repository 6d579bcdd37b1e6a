"""From tokens to text, one token at a time, and the stop strings in it.

The text of a completion is the concatenation of these pieces, streamed or not. Each push costs the
same however long the completion is: only a few tokens back are decoded again, since a token's text
depends on its neighbours, never on those far away.
"""

from collections.abc import Sequence
from typing import Protocol

_BROKEN = "\ufffd"
"""What a decoder writes for bytes that are not yet, or never, a character."""
_LONGEST_CHARACTER = 8
"""Tokens that may have to be seen before a character is whole; more are broken for good."""


class Decoder(Protocol):
    """Ids to text, without cleaning anything up."""

    def __call__(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str: ...


class GenerationText:
    """The growing text of one completion.

    `stop` strings are looked for as text arrives; the text ends before the first of them. What
    might be the beginning of one is held back until that is known.
    """

    def __init__(
        self,
        decode: Decoder,
        *,
        stop: Sequence[str] = (),
        skip_special_tokens: bool = True,
        include_stop: bool = False,
    ):
        self._decode = decode
        self._stop = tuple(stop)
        self._skip = skip_special_tokens
        self._include_stop = include_stop
        self._hold = max(map(len, stop), default=1) - 1
        self._ids: list[int] = []
        self._prefix = 0
        self._read = 0
        self._released: list[str] = []
        self._held = ""
        self.stopped_by: str | None = None

    @property
    def whole(self) -> str:
        return "".join(self._released) + self._held

    def push(self, token: int, *, last: object | None = None) -> str:
        """The text that is final now. `last` is why the generation ends with this token; a
        token that ends it by being an end token has no text."""
        if last != "stop" or self._include_stop:
            self._append(token)
        if last is None and self.stopped_by is None:
            return self._release(max(len(self._held) - self._hold, 0))
        return self.flush()

    def flush(self) -> str:
        """All that is left, broken characters included: nothing follows."""
        if self.stopped_by is None:
            self._extend(self._window()[len(self._read_window()) :])
            self._prefix = self._read = len(self._ids)
        return self._release(len(self._held))

    def _append(self, token: int) -> None:
        self._ids.append(token)
        window = self._window()
        waiting = len(self._ids) - self._read
        if window.endswith(_BROKEN) and waiting < _LONGEST_CHARACTER:
            return
        before = self._read_window()
        self._prefix, self._read = self._read, len(self._ids)
        self._extend(window[len(before) :])

    def _window(self) -> str:
        return self._decode(self._ids[self._prefix :], skip_special_tokens=self._skip)

    def _read_window(self) -> str:
        return self._decode(self._ids[self._prefix : self._read], skip_special_tokens=self._skip)

    def _extend(self, piece: str) -> None:
        """A stop string begins in what is held back, or it would have been seen before."""
        self._held += piece
        stops = [(at, stop) for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if stops:
            at, self.stopped_by = min(stops)
            self._held = self._held[: at + len(self.stopped_by) * self._include_stop]

    def _release(self, end: int) -> str:
        piece, self._held = self._held[:end], self._held[end:]
        self._released.append(piece)
        return piece
