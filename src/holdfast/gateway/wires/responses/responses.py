"""OpenAI's responses, `/v1/responses`.

An answer is told as one JSON object or as a stream of named events that ends with the same object;
there is no `[DONE]`. Both are functions of the ask and the answer alone: told again, they have the
same bytes. The ids that are told are those of the record: whoever refers to a response, or to an
item of one, is taken to have sent what was recorded.
"""

import msgspec

from holdfast.gateway.protocol.messages import (
    Answer,
    GenerationRequest,
    RequestLookup,
)
from holdfast.gateway.wires.openai.stream import OpenAIWire
from holdfast.gateway.wires.responses.events import ResponseStream
from holdfast.gateway.wires.responses.output import closing, items_of, opening
from holdfast.gateway.wires.responses.request import ask_of


class OpenAIResponses(OpenAIWire):
    """The wire."""

    def parse(self, body: bytes, known: RequestLookup | None = None) -> GenerationRequest:
        return ask_of(body, known)

    def format_answer(self, ask: GenerationRequest, answer: Answer) -> bytes:
        return msgspec.json.encode(closing(opening(ask, answer), answer, items_of(answer)))

    def stream(self, ask: GenerationRequest) -> ResponseStream:
        return ResponseStream(ask)
