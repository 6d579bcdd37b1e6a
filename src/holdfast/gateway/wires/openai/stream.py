"""The stream of OpenAI's chat and legacy completions: chunks, then `[DONE]`.

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
_Positions = range | None
_Piece = tuple[str, _Positions]
_encode = msgspec.json.Encoder().encode


def usage(answer: Answer) -> Json:
    """The usage, in the format of OpenAI's completions. Where there is reasoning, and the engine
    does not count its tokens apart, their number is null and not 0."""
    reasons = any(choice.message.reasoning for choice in answer.choices)
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.all_cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": answer.reasoning_tokens or (None if reasons else 0),
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


class OpenAIWire(ABC):
    """The methods that OpenAI's wires share."""

    @abstractmethod
    def stream(self, request: GenerationRequest) -> EventStream: ...

    def events(self, request: GenerationRequest, answer: Answer) -> list[bytes]:
        return self.stream(request).end(answer)

    def keep_alive(self) -> bytes:
        return sse.KEEP_ALIVE

    def format_error(self, rejection: RequestRejected) -> bytes:
        return errors.format_error(rejection)


class CompletionStream(ABC):
    """The common part of both streams."""

    def __init__(self, request: GenerationRequest):
        self._request = request
        self._sent: defaultdict[int, sse.SentText] = defaultdict(sse.SentText)

    @abstractmethod
    def _head(self, opening: Opening) -> Json:
        """The first fields of every chunk."""

    @abstractmethod
    def _delta(self, delta: AnswerDelta, sent: sse.SentText) -> Iterator[Json]:
        """More of a choice. `sent` is the text that was sent of it before."""

    @abstractmethod
    def _rest(self, index: int, choice: AnswerChoice, sent: sse.SentText) -> Iterator[Json]:
        """The rest of a choice, its end included."""

    def more(self, opening: Opening, deltas: Sequence[AnswerDelta]) -> list[bytes]:
        chunks = [chunk for delta in deltas for chunk in self._chunks(delta)]
        return self._events(opening, chunks)

    def end(self, answer: Answer) -> list[bytes]:
        chunks = [
            chunk
            for index, choice in enumerate(answer.choices)
            for chunk in self._rest(index, choice, self._sent[index])
        ]
        events = self._events(answer.opening, chunks)
        if self._request.include_usage:
            head = self._head(answer.opening)
            chunk = {**head, "choices": [], "usage": usage(answer)}
            events.append(sse.data(_encode(chunk)))
        return [*events, sse.DONE]

    def error(self, rejection: RequestRejected) -> bytes:
        return sse.data(errors.format_error(rejection))

    def _pieces(
        self, choice: AnswerChoice, text: str, sent: sse.SentText
    ) -> tuple[list[_Piece], _Positions]:
        """The rest of the text, each piece with the positions of its tokens (for logprobs); and the
        positions of the tokens that come with the choice's end instead."""
        positions: _Positions = range(len(choice.tokens)) if self._request.logprobs else None
        if positions is not None and not sent.has_text:
            by_token = sse.cut_at_tokens(choice.tokens, text)
            if by_token:
                return list(by_token), None
        return [(piece, None) for piece in sse.pieces(text)], positions

    def _chunks(self, delta: AnswerDelta) -> list[Json]:
        sent = self._sent[delta.index]
        chunks = list(self._delta(delta, sent))
        sent.take(delta)
        sent.is_open = True
        return chunks

    def _events(self, opening: Opening, chunks: list[Json]) -> list[bytes]:
        head = self._head(opening)
        # A request for the usage gets null for it in all chunks but the last.
        rest = {"usage": None} if self._request.include_usage else {}
        return [sse.data(_encode({**head, "choices": [chunk], **rest})) for chunk in chunks]
