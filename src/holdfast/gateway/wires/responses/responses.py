"""OpenAI's responses, `/v1/responses`.

An answer is told as one JSON object or as a stream of named events that ends with the same object;
there is no `[DONE]`. Both are functions of the ask and the answer alone: told again, they have the
same bytes. The ids that are told are those of the record: whoever refers to a response, or to an
item of one, is taken to have sent what was recorded.
"""

import msgspec

from holdfast.gateway.protocol.messages import Answer, Ask, Known, RequestRejected
from holdfast.gateway.wires import sse
from holdfast.gateway.wires.openai import errors
from holdfast.gateway.wires.responses.events import ResponseStream
from holdfast.gateway.wires.responses.output import closing, items_of, opening
from holdfast.gateway.wires.responses.request import ask_of


class OpenAIResponses:
    """The wire."""

    def ask(self, body: bytes, known: Known | None = None) -> Ask:
        return ask_of(body, known)

    def answer(self, ask: Ask, answer: Answer) -> bytes:
        return msgspec.json.encode(closing(opening(ask, answer), answer, items_of(answer)))

    def stream(self, ask: Ask) -> ResponseStream:
        return ResponseStream(ask)

    def events(self, ask: Ask, answer: Answer) -> list[bytes]:
        return self.stream(ask).end(answer)

    def keep_alive(self) -> bytes:
        return sse.KEEP_ALIVE

    def refusal(self, refused: RequestRejected) -> bytes:
        return errors.encoded(refused)
