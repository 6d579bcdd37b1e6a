"""Server-sent events as bytes, texts in pieces, and the text that a stream has sent.

This module does not depend on a provider. The same text is always cut at the same positions, so
that a stream that is sent again has the same bytes.
"""

from collections.abc import Iterable, Sequence

from holdfast.gateway.protocol.messages import AnswerDelta, StreamMismatch
from holdfast.records.message import Message

KEEP_ALIVE = b": keep-alive\n\n"
"""A comment, which every reader of event streams ignores."""
DONE = b"data: [DONE]\n\n"
"""The end of a stream of OpenAI's completions."""

_MAX_PIECES = 8
_MIN_PIECE_CHARS = 40


def data(encoded: bytes) -> bytes:
    """Returns an event without a name. One line is enough, because JSON has no raw line breaks."""
    return b"data: %b\n\n" % encoded


def event(name: str, encoded: bytes) -> bytes:
    """Returns an event with a name."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encoded)


def pieces(text: str) -> list[str]:
    """Returns the text in a few pieces. An empty text has no pieces."""
    size = _size(len(text))
    return [text[start : start + size] for start in range(0, len(text), size)]


def cut_at_tokens(tokens: Sequence[str], text: str) -> list[tuple[str, range]] | None:
    """Returns the text in a few pieces cut between tokens, each with the positions of its tokens.

    Tokens after the text (the end of a turn) belong to its last piece. Returns None if the text of
    the tokens does not begin with `text`.
    """
    if not text or not "".join(tokens).startswith(text):
        return None
    size, ends, length = _size(len(text)), [0], 0
    cuts = [0]
    for index, token in enumerate(tokens, 1):
        length += len(token)
        if length >= len(text):
            break
        if length - cuts[-1] >= size:
            cuts.append(length)
            ends.append(index)
    return [
        (text[cut:until], range(start, end))
        for (cut, until), (start, end) in zip(
            _spans(cuts, len(text)), _spans(ends, len(tokens)), strict=True
        )
    ]


def _size(length: int) -> int:
    return max(_MIN_PIECE_CHARS, -(-length // _MAX_PIECES))


def _spans(starts: Sequence[int], end: int) -> Iterable[tuple[int, int]]:
    return zip(starts, (*starts[1:], end), strict=True)


class SentText:
    """The text of one choice that a stream has sent."""

    def __init__(self) -> None:
        self.is_open = False
        """Whether the stream has begun the choice."""
        self._reasoning: list[str] = []
        self._text: list[str] = []

    @property
    def has_text(self) -> bool:
        return bool(self._text)

    def take(self, delta: AnswerDelta) -> None:
        (self._reasoning if delta.is_reasoning else self._text).append(delta.text)

    def rest(self, message: Message) -> tuple[str, str]:
        """Returns the parts of the reasoning and of the text that were not sent yet. Raises
        `StreamMismatch` if the message does not begin with what was sent."""
        return (
            _after("".join(self._reasoning), message.reasoning or ""),
            _after("".join(self._text), message.text),
        )


def _after(sent: str, whole: str) -> str:
    if not whole.startswith(sent):
        raise StreamMismatch(f"{len(sent)} characters were sent, and the answer begins otherwise")
    return whole[len(sent) :]
