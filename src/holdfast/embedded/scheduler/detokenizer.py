"""Turns tokens into text, one token at a time, and finds the stop strings in it.

The text of a completion is the concatenation of these pieces, streamed or not. Each push costs the
same however long the completion is, because only the last few tokens are decoded again. A token's
text depends on its neighbours, but never on distant tokens.
"""

from collections.abc import Sequence
from typing import Protocol

_BROKEN = "\ufffd"
"""The character that a decoder writes for bytes that do not form a character, or not yet."""
_LONGEST_CHARACTER = 8
"""The most tokens that may be needed to complete a character. After more tokens, the character is
broken for good.
"""


class Decoder(Protocol):
    """Turns ids into text, without any cleaning."""

    def __call__(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str: ...


class GenerationText:
    """The growing text of one completion.

    It looks for `stop` strings as text arrives, and the text ends before the first one. A possible
    beginning of a stop string is held back until the text after it decides.
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
        """Adds a token and returns the text that is final now. `last` is the reason if the
        generation ends with this token. An end token has no text."""
        if last != "stop" or self._include_stop:
            self._append(token)
        if last is None and self.stopped_by is None:
            return self._release(max(len(self._held) - self._hold, 0))
        return self.flush()

    def flush(self) -> str:
        """Returns all the remaining text, including broken characters, because no tokens follow."""
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
        """Adds text and looks for stop strings. A stop string begins in the text that is held back,
        because otherwise it would have been found before."""
        self._held += piece
        stops = [(at, stop) for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if stops:
            at, self.stopped_by = min(stops)
            self._held = self._held[: at + len(self.stopped_by) * self._include_stop]

    def _release(self, end: int) -> str:
        piece, self._held = self._held[:end], self._held[end:]
        self._released.append(piece)
        return piece
