"""Anthropic's messages: `/v1/messages`, `/v1/messages/count_tokens` and its `/v1/models`.

Pure, and the same bytes for the same answer. What a request may hold is said in
`anthropic_request`, how a conversation is read and told in `anthropic_blocks`.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from holdfast.gateway.protocol.messages import (
    Answer,
    GenerationRequest,
    RequestLookup,
    RequestRejected,
)
from holdfast.gateway.wires import sse
from holdfast.gateway.wires.anthropic import errors, request
from holdfast.gateway.wires.anthropic.blocks import blocks, image_param, messages
from holdfast.gateway.wires.anthropic.stream import MessageStream, message_of, stopped, usage
from holdfast.gateway.wires.anthropic.tools import forced, is_parallel, schemas

_PING = sse.event("ping", b'{"type":"ping"}')
_encode = msgspec.json.Encoder().encode


class AnthropicMessages:
    """The wire of `/v1/messages`. It never asks for more than one choice."""

    def parse(self, body: bytes, known: RequestLookup | None = None) -> GenerationRequest:
        parsed = request.request(body)
        return GenerationRequest(
            parsed.model,
            messages(parsed),
            schemas(parsed),
            max_tokens=parsed.max_tokens,
            temperature=parsed.temperature,
            top_p=parsed.top_p,
            stop=tuple(parsed.stop_sequences or ()),
            json=parsed.json,
            reasoning_effort=parsed.effort,
            top_k=parsed.top_k or None,
            tool_choice=forced(parsed),
            parallel_tool_calls=is_parallel(parsed),
            thinking_token_budget=parsed.thinking_token_budget,
            image_param=image_param(parsed),
            stream=bool(parsed.stream),
        )

    def format_answer(self, ask: GenerationRequest, answer: Answer) -> bytes:
        choice = answer.choices[0]
        fields = message_of(answer, blocks(choice.message))
        used = usage(answer.opening, answer.completion_tokens)
        return _encode({**fields, **stopped(choice), "usage": used})

    def stream(self, ask: GenerationRequest) -> MessageStream:
        return MessageStream()

    def events(self, ask: GenerationRequest, answer: Answer) -> list[bytes]:
        return self.stream(ask).end(answer)

    def keep_alive(self) -> bytes:
        return _PING

    def format_error(self, refused: RequestRejected) -> bytes:
        return errors.refusal(refused)


def count_ask(body: bytes) -> GenerationRequest:
    """A request of `/v1/messages/count_tokens`; nothing is sampled for it."""
    parsed = request.counted(body)
    return GenerationRequest(
        parsed.model,
        messages(parsed),
        schemas(parsed),
        reasoning_effort=parsed.effort,
        image_param=image_param(parsed),
    )


def count_answer(tokens: int) -> bytes:
    return _encode({"input_tokens": tokens})


def models_answer(models: Sequence[str], *, created: int = 0) -> bytes:
    """All models on one page."""
    return _encode(
        {
            "data": [_model(name, created) for name in models],
            "has_more": False,
            "first_id": models[0] if models else None,
            "last_id": models[-1] if models else None,
        }
    )


def model_answer(model: str, *, created: int = 0) -> bytes:
    return _encode(_model(model, created))


def _model(name: str, created: int) -> dict[str, object]:
    when = datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": when,
        "lifecycle": "active",
    }
