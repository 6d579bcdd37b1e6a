"""The stream of OpenAI's completions, those of chats and the legacy ones: chunks, then `[DONE]`.

A chunk belongs to one choice; those of several choices may follow each other in any order.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Sequence

import msgspec

from holdfast.gateway.protocol.messages import (
    Answer,
    AnswerChoice,
    AnswerDelta,
    EventStream,
    GenerationRequest,
    Opening,
    RequestRejected,
)
from holdfast.gateway.wires import sse
from holdfast.gateway.wires.openai import errors

Json = dict[str, object]
_Places = range | None
_Piece = tuple[str, _Places]
_encode = msgspec.json.Encoder().encode


class OpenAIWire(ABC):
    """The methods that OpenAI's wires share."""

    @abstractmethod
    def stream(self, ask: GenerationRequest) -> EventStream: ...

    def events(self, ask: GenerationRequest, answer: Answer) -> list[bytes]:
        return self.stream(ask).end(answer)

    def keep_alive(self) -> bytes:
        return sse.KEEP_ALIVE

    def format_error(self, rejection: RequestRejected) -> bytes:
        return errors.encoded(rejection)


class CompletionStream(ABC):
    """What both kinds have in common."""

    def __init__(self, ask: GenerationRequest):
        self._ask = ask
        self._spoken: defaultdict[int, sse.SentText] = defaultdict(sse.SentText)

    @abstractmethod
    def _head(self, opening: Opening) -> Json:
        """What every chunk begins with."""

    @abstractmethod
    def _delta(self, delta: AnswerDelta, spoken: sse.SentText) -> Iterator[Json]:
        """More of a choice. `spoken` is what was sent of it before."""

    @abstractmethod
    def _rest(self, index: int, choice: AnswerChoice, spoken: sse.SentText) -> Iterator[Json]:
        """What is left of a choice, its end included."""

    @abstractmethod
    def _usage(self, answer: Answer) -> Json: ...

    def more(self, opening: Opening, deltas: Sequence[AnswerDelta]) -> list[bytes]:
        chunks = [chunk for delta in deltas for chunk in self._told(delta)]
        return self._events(opening, chunks)

    def end(self, answer: Answer) -> list[bytes]:
        chunks = [
            chunk
            for index, choice in enumerate(answer.choices)
            for chunk in self._rest(index, choice, self._spoken[index])
        ]
        events = self._events(answer.opening, chunks)
        if self._ask.include_usage:
            head = self._head(answer.opening)
            told = {**head, "choices": [], "usage": self._usage(answer)}
            events.append(sse.data(_encode(told)))
        return [*events, sse.DONE]

    def error(self, refused: RequestRejected) -> bytes:
        return sse.data(errors.encoded(refused))

    def _pieces(
        self, choice: AnswerChoice, text: str, spoken: sse.SentText
    ) -> tuple[list[_Piece], _Places]:
        """The text that is left, each piece with the positions of the tokens of its logprobs; and
        the positions of those of the choice's end, where they are not the text's alone."""
        places: _Places = range(len(choice.tokens)) if self._ask.logprobs else None
        if places is not None and not spoken.has_text:
            spelled = sse.spelled(choice.tokens, text)
            if spelled:
                return list(spelled), None
        return [(piece, None) for piece in sse.pieces(text)], places

    def _told(self, delta: AnswerDelta) -> list[Json]:
        spoken = self._spoken[delta.index]
        chunks = list(self._delta(delta, spoken))
        spoken.take(delta)
        spoken.is_begun = True
        return chunks

    def _events(self, opening: Opening, chunks: list[Json]) -> list[bytes]:
        head = self._head(opening)
        # A request for the usage gets null for it in all chunks but the last.
        rest = {"usage": None} if self._ask.include_usage else {}
        return [sse.data(_encode({**head, "choices": [chunk], **rest})) for chunk in chunks]
