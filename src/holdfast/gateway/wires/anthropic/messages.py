"""Anthropic's messages: `/v1/messages`, `/v1/messages/count_tokens` and its `/v1/models`.

Pure, and the same bytes for the same answer. `request` has the fields of a request, `blocks` the
conversation.
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
from holdfast.gateway.wires.anthropic.blocks import format_blocks, image_param, parse_messages
from holdfast.gateway.wires.anthropic.stream import (
    MessageStream,
    message_fields,
    stop_fields,
    usage,
)
from holdfast.gateway.wires.anthropic.tools import forced_tool, is_parallel, tool_schemas

_PING = sse.event("ping", b'{"type":"ping"}')
_encode = msgspec.json.Encoder().encode


class AnthropicMessages:
    """The wire of `/v1/messages`. A request has one choice."""

    def parse(self, body: bytes, known: RequestLookup | None = None) -> GenerationRequest:
        parsed = request.parse_request(body)
        return GenerationRequest(
            parsed.model,
            parse_messages(parsed),
            tool_schemas(parsed),
            max_tokens=parsed.max_tokens,
            temperature=parsed.temperature,
            top_p=parsed.top_p,
            stop=tuple(parsed.stop_sequences or ()),
            json=parsed.json,
            reasoning_effort=parsed.effort,
            top_k=parsed.top_k or None,
            tool_choice=forced_tool(parsed),
            parallel_tool_calls=is_parallel(parsed),
            thinking_token_budget=parsed.thinking_token_budget,
            altering=parsed.altering,
            chat_template_kwargs=parsed.template_kwargs,
            image_param=image_param(parsed),
            stream=bool(parsed.stream),
        )

    def format_answer(self, request: GenerationRequest, answer: Answer) -> bytes:
        choice = answer.choices[0]
        fields = message_fields(answer, format_blocks(choice.message))
        used = usage(answer.opening, answer.completion_tokens)
        return _encode({**fields, **stop_fields(choice), "usage": used})

    def stream(self, request: GenerationRequest) -> MessageStream:
        return MessageStream()

    def events(self, request: GenerationRequest, answer: Answer) -> list[bytes]:
        return self.stream(request).end(answer)

    def keep_alive(self) -> bytes:
        return _PING

    def format_error(self, rejection: RequestRejected) -> bytes:
        return errors.format_error(rejection)


def parse_count_request(body: bytes) -> GenerationRequest:
    """A request of `/v1/messages/count_tokens`; nothing is sampled for it."""
    parsed = request.parse_count_request(body)
    return GenerationRequest(
        parsed.model,
        parse_messages(parsed),
        tool_schemas(parsed),
        reasoning_effort=parsed.effort,
        chat_template_kwargs=parsed.template_kwargs,
        image_param=image_param(parsed),
    )


def format_count(tokens: int) -> bytes:
    return _encode({"input_tokens": tokens})


def format_models(models: Sequence[str], *, created: int = 0) -> bytes:
    """All models on one page."""
    return _encode(
        {
            "data": [_model(name, created) for name in models],
            "has_more": False,
            "first_id": models[0] if models else None,
            "last_id": models[-1] if models else None,
        }
    )


def format_model(model: str, *, created: int = 0) -> bytes:
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
