"""OpenAI's responses, `/v1/responses`.

A response is one JSON object, or a stream of named events that ends with the same object; there is
no `[DONE]`. Both depend on the request and the answer alone: sent again, they have the same bytes.
Their ids are those of the record: a reference to a response, or to an item of one, means the
recorded one.
"""

import msgspec

from holdfast.gateway.protocol.messages import (
    Answer,
    GenerationRequest,
    RequestLookup,
)
from holdfast.gateway.wires.openai.stream import OpenAIWire
from holdfast.gateway.wires.responses.events import ResponseStream
from holdfast.gateway.wires.responses.output import finished_response, items_of, started_response
from holdfast.gateway.wires.responses.request import parse_request


class OpenAIResponses(OpenAIWire):
    """The wire."""

    def parse(self, body: bytes, known: RequestLookup | None = None) -> GenerationRequest:
        return parse_request(body, known)

    def format_answer(self, request: GenerationRequest, answer: Answer) -> bytes:
        return msgspec.json.encode(
            finished_response(started_response(request, answer), answer, items_of(answer))
        )

    def stream(self, request: GenerationRequest) -> ResponseStream:
        return ResponseStream(request)
