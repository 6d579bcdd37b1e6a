"""Spoken: what a stream has sent of one choice, and what is left to send when it ends."""

from holdfast.gateway.protocol.messages import AnswerDelta, StreamMismatch
from holdfast.records.message import Message


class Spoken:
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
