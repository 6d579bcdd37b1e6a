"""Anthropic's messages: `/v1/messages`, `/v1/messages/count_tokens` and Anthropic's `/v1/models`.

The functions are pure: the same answer gives the same bytes. In a stream, the message starts, its
blocks start, grow and end one after another, and the message ends with its stop reason and usage. A
stream of a finished answer has at most one block of thinking and one of text, in this order. A live
stream has a new block each time the reply changes between the two.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import msgspec

from holdfast.gateway.protocol.messages import (
    Answer,
    AnswerChoice,
    AnswerDelta,
    GenerationRequest,
    Opening,
    RequestLookup,
    RequestRejected,
)
from holdfast.gateway.wires import sse
from holdfast.gateway.wires.anthropic import errors, request
from holdfast.gateway.wires.anthropic.blocks import (
    Block,
    format_blocks,
    image_param,
    input_of,
    parse_messages,
    signature_of,
)
from holdfast.gateway.wires.anthropic.request import forced_tool, is_parallel, tool_schemas
from holdfast.records.message import ToolCall

# JSON may contain these characters, but clients that split text into lines take them for line ends.
_LINE_ENDS = (
    (b"\xc2\x85", b"\\u0085"),
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
)
_EMPTY_BLOCKS: dict[bool, Block] = {
    True: {"type": "thinking", "thinking": "", "signature": ""},
    False: {"type": "text", "text": ""},
}
_encode = msgspec.json.Encoder().encode


class MessageStream:
    """The events of one answer, which has one choice."""

    def __init__(self) -> None:
        self._sent = sse.SentText()
        self._blocks = 0
        self._open: bool | None = None
        """True if the open block is thinking, False if it is text, and None if no block is open."""
        self._thought: list[str] = []
        """The text of an open block of thinking."""

    def more(self, opening: Opening, deltas: Sequence[AnswerDelta]) -> list[bytes]:
        events = [*self._begin(opening)]
        for delta in deltas:
            self._sent.take(delta)
            events += self._add(delta.text, is_reasoning=delta.is_reasoning)
        return events

    def end(self, answer: Answer) -> list[bytes]:
        choice = answer.choices[0]
        reasoning, text = self._sent.rest(choice.message)
        events = [*self._begin(answer.opening)]
        for rest, is_reasoning in ((reasoning, True), (text, False)):
            for piece in sse.pieces(rest):
                events += self._add(piece, is_reasoning=is_reasoning)
        events += self._close()
        for call in choice.message.tool_calls:
            events += self._call(call)
        used = usage(answer.opening, answer.completion_tokens)
        used.pop("service_tier")
        events.append(
            _event({"type": "message_delta", "delta": stop_fields(choice), "usage": used})
        )
        events.append(_event({"type": "message_stop"}))
        return events

    def error(self, rejection: RequestRejected) -> bytes:
        return sse.event("error", errors.format_error(rejection))

    def _begin(self, opening: Opening) -> Iterator[bytes]:
        if self._sent.is_open:
            return
        self._sent.is_open = True
        nothing = {"stop_reason": None, "stop_sequence": None}
        message = {**message_fields(opening, []), **nothing, "usage": usage(opening, 0)}
        yield _event({"type": "message_start", "message": message})

    def _add(self, text: str, *, is_reasoning: bool) -> Iterator[bytes]:
        if self._open is not is_reasoning:
            yield from self._close()
            yield self._block_start(_EMPTY_BLOCKS[is_reasoning])
            self._open = is_reasoning
        if is_reasoning:
            self._thought.append(text)
            yield self._block_delta({"type": "thinking_delta", "thinking": text})
        else:
            yield self._block_delta({"type": "text_delta", "text": text})

    def _close(self) -> Iterator[bytes]:
        if self._open is None:
            return
        if self._open:
            signature = signature_of("".join(self._thought))
            yield self._block_delta({"type": "signature_delta", "signature": signature})
        yield self._block_stop()
        self._open, self._thought = None, []

    def _call(self, call: ToolCall) -> Iterator[bytes]:
        yield self._block_start({"type": "tool_use", "id": call.id, "name": call.name, "input": {}})
        for piece in sse.pieces(_encode(input_of(call.arguments)).decode()):
            yield self._block_delta({"type": "input_json_delta", "partial_json": piece})
        yield self._block_stop()

    def _block_start(self, block: Block) -> bytes:
        return _event(
            {"type": "content_block_start", "index": self._blocks, "content_block": block}
        )

    def _block_delta(self, delta: Block) -> bytes:
        return _event({"type": "content_block_delta", "index": self._blocks, "delta": delta})

    def _block_stop(self) -> bytes:
        self._blocks += 1
        return _event({"type": "content_block_stop", "index": self._blocks - 1})


def message_fields(answer: Answer | Opening, content: list[Block]) -> dict[str, object]:
    return {
        "id": f"msg_{answer.id}",
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": content,
    }


def stop_fields(choice: AnswerChoice) -> dict[str, object]:
    stop = choice.stop_string if choice.finish_reason == "stop" else None
    reasons = {
        "stop": "end_turn" if stop is None else "stop_sequence",
        "length": "max_tokens",
        "tool_calls": "tool_use",
        "content_filter": "refusal",
    }
    return {"stop_reason": reasons[choice.finish_reason], "stop_sequence": stop}


def usage(opening: Opening, completion_tokens: int) -> dict[str, object]:
    """Returns the usage. Anthropic counts cached tokens separately from the rest of the input."""
    return {
        "input_tokens": opening.prompt_tokens - opening.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": opening.cached_tokens,
        "output_tokens": completion_tokens,
        "service_tier": "standard",
    }


def _event(data: dict[str, object]) -> bytes:
    return sse.event(str(data["type"]), _escape_line_ends(_encode(data)))


def _escape_line_ends(data: bytes) -> bytes:
    for end, escaped in _LINE_ENDS:
        data = data.replace(end, escaped)
    return data


_PING = sse.event("ping", b'{"type":"ping"}')


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

    def keep_alive(self) -> bytes:
        return _PING

    def format_error(self, rejection: RequestRejected) -> bytes:
        return errors.format_error(rejection)


def parse_count_request(body: bytes) -> GenerationRequest:
    """Returns the request of a body of `/v1/messages/count_tokens`. Nothing is sampled for it."""
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
    """Returns all models on one page."""
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
