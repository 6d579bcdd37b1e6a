"""Server-sent events as bytes, and texts cut into the pieces of a stream.

Knows nothing of any provider. The same text is always cut in the same places, so that a stream that
is told again has the same bytes.
"""

from collections.abc import Iterable, Sequence

from holdfast.gateway.protocol.messages import AnswerDelta, StreamMismatch
from holdfast.records.message import Message

KEEP_ALIVE = b": keep-alive\n\n"
"""A comment: every reader of event streams passes over it."""
DONE = b"data: [DONE]\n\n"
"""How the streams of OpenAI's completions end."""

_MOST_PIECES = 8
_LEAST_PIECE = 40


def data(encoded: bytes) -> bytes:
    """An event without a name. JSON has no raw line breaks, so one line holds it."""
    return b"data: %b\n\n" % encoded


def event(name: str, encoded: bytes) -> bytes:
    """A named event."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encoded)


def pieces(text: str) -> list[str]:
    """The text in a few pieces that together are it; none for an empty one."""
    size = _size(len(text))
    return [text[start : start + size] for start in range(0, len(text), size)]


def spelled(tokens: Sequence[str], text: str) -> list[tuple[str, range]] | None:
    """The text in a few pieces cut between tokens, each with the places of its tokens.

    Tokens after the text (the end of a turn) belong to its last piece. None where the tokens do
    not begin with the text, so that no cut between them is one of the text.
    """
    if not text or not "".join(tokens).startswith(text):
        return None
    size, ends, length = _size(len(text)), [0], 0
    cuts = [0]
    for place, token in enumerate(tokens, 1):
        length += len(token)
        if length >= len(text):
            break
        if length - cuts[-1] >= size:
            cuts.append(length)
            ends.append(place)
    return [
        (text[cut:until], range(start, end))
        for (cut, until), (start, end) in zip(
            _spans(cuts, len(text)), _spans(ends, len(tokens)), strict=True
        )
    ]


def _size(length: int) -> int:
    return max(_LEAST_PIECE, -(-length // _MOST_PIECES))


def _spans(starts: Sequence[int], end: int) -> Iterable[tuple[int, int]]:
    return zip(starts, (*starts[1:], end), strict=True)


class SentText:
    def __init__(self) -> None:
        self.is_begun = False
        """Whether the choice was opened."""
        self._reasoning: list[str] = []
        self._text: list[str] = []

    @property
    def has_text(self) -> bool:
        return bool(self._text)

    def take(self, delta: AnswerDelta) -> None:
        (self._reasoning if delta.is_reasoning else self._text).append(delta.text)

    def rest(self, message: Message) -> tuple[str, str]:
        """What was not sent of the reasoning, and of the text."""
        return (
            _after("".join(self._reasoning), message.reasoning or ""),
            _after("".join(self._text), message.text),
        )


def _after(told: str, whole: str) -> str:
    if not whole.startswith(told):
        raise StreamMismatch(f"{len(told)} characters were sent, and the answer begins otherwise")
    return whole[len(told) :]
