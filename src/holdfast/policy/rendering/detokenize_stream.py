"""Detokenization of a stream, at a cost that does not grow with its length.

Tokens do not end where characters do, and the text of a token may depend on the one before it. So
new text is what a few more tokens add to the text of those before; tokens at the end that are only
a part of a character wait for the rest of it. All new texts together are the text of all tokens.
"""

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"
"""The decoded text of a partial or invalid character."""
MAX_PARTIAL_TOKENS = 3
"""Tokens: one for each of its bytes but the last."""
MAX_HELD_TOKENS = 256
"""Tokens that may come without one of them ending a character."""


class StreamDetokenizer:
    """The text of one run of tokens."""

    def __init__(self, decode: Callable[[Sequence[int]], str]):
        self._decode = decode
        self._context: list[int] = []
        """The tokens of the last new text."""
        self._before = ""
        """Their text."""
        self._held: list[int] = []

    def take(self, ids: Sequence[int]) -> str:
        """The new text after `ids`, as far as it is certain."""
        self._held += ids
        for waiting in range(min(MAX_PARTIAL_TOKENS + 1, len(self._held))):
            text = self._text(waiting)
            if not text.endswith(REPLACEMENT):
                return self._advance(text, waiting)
        return self._advance(self._text(0), 0) if len(self._held) >= MAX_HELD_TOKENS else ""

    def _text(self, waiting: int) -> str:
        return self._decode(self._context + self._held[: len(self._held) - waiting])

    def _advance(self, text: str, waiting: int) -> str:
        new, end = text[len(self._before) :], len(self._held) - waiting
        self._context, self._held = self._held[:end], self._held[end:]
        self._before = self._decode(self._context)
        return new
