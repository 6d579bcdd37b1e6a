"""Anthropic's messages: `/v1/messages`, `/v1/messages/count_tokens` and its `/v1/models`.

Pure, and the same bytes for the same answer. What a request may hold is said in
`anthropic_request`, how a conversation is read and told in `anthropic_blocks`.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

import msgspec

from holdfast.gateway.exchange import Answer, Ask, Choice, Refused
from holdfast.gateway.wires import anthropic_errors, anthropic_request, sse
from holdfast.gateway.wires.anthropic_blocks import Block, blocks, messages
from holdfast.gateway.wires.anthropic_tools import schemas

_PING = sse.event("ping", b'{"type":"ping"}')
# JSON may hold them; clients that split text into lines take them for the end of one.
_LINE_ENDS = (
    (b"\xc2\x85", b"\\u0085"),
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
)
_encode = msgspec.json.Encoder().encode


class AnthropicMessages:
    """The wire of `/v1/messages`. It never asks for more than one choice."""

    def ask(self, body: bytes) -> Ask:
        asked = anthropic_request.request(body)
        return Ask(
            asked.model,
            messages(asked),
            schemas(asked),
            max_tokens=asked.max_tokens,
            temperature=asked.temperature,
            top_p=asked.top_p,
            stop=tuple(asked.stop_sequences or ()),
            stream=bool(asked.stream),
        )

    def answer(self, ask: Ask, answer: Answer) -> bytes:
        choice = answer.choices[0]
        told = _message(answer, blocks(choice.message))
        return _encode({**told, **_stopped(choice), "usage": _usage(answer)})

    def events(self, ask: Ask, answer: Answer) -> list[bytes]:
        choice = answer.choices[0]
        nothing = {"stop_reason": None, "stop_sequence": None}
        begun = {**_message(answer, []), **nothing, "usage": _usage(answer) | {"output_tokens": 0}}
        found = [_event({"type": "message_start", "message": begun})]
        for index, block in enumerate(blocks(choice.message)):
            found += _block_events(index, block)
        usage = _usage(answer)
        usage.pop("service_tier")
        found.append(_event({"type": "message_delta", "delta": _stopped(choice), "usage": usage}))
        found.append(_event({"type": "message_stop"}))
        return found

    def keep_alive(self) -> bytes:
        return _PING

    def refusal(self, refused: Refused) -> bytes:
        return anthropic_errors.refusal(refused)


def count_ask(body: bytes) -> Ask:
    """A request of `/v1/messages/count_tokens`; nothing is sampled for it."""
    asked = anthropic_request.counted(body)
    return Ask(asked.model, messages(asked), schemas(asked))


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


def _message(answer: Answer, content: list[Block]) -> dict[str, object]:
    return {
        "id": f"msg_{answer.id}",
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": content,
    }


def _stopped(choice: Choice) -> dict[str, object]:
    stop = choice.stop_string if choice.finish_reason == "stop" else None
    reasons = {
        "stop": "end_turn" if stop is None else "stop_sequence",
        "length": "max_tokens",
        "tool_calls": "tool_use",
    }
    return {"stop_reason": reasons[choice.finish_reason], "stop_sequence": stop}


def _usage(answer: Answer) -> dict[str, object]:
    """Anthropic counts what was read from a cache apart from the rest of the input."""
    return {
        "input_tokens": answer.prompt_tokens - answer.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": answer.cached_tokens,
        "output_tokens": answer.completion_tokens,
        "service_tier": "standard",
    }


def _block_events(index: int, block: Block) -> Iterator[bytes]:
    begun, deltas = _deltas(block)
    yield _event({"type": "content_block_start", "index": index, "content_block": begun})
    for delta in deltas:
        yield _event({"type": "content_block_delta", "index": index, "delta": delta})
    yield _event({"type": "content_block_stop", "index": index})


def _deltas(block: Block) -> tuple[Block, list[Block]]:
    """A block as it begins, and what it grows by."""
    if block["type"] == "text":
        return {"type": "text", "text": ""}, list(_grown("text_delta", "text", block["text"]))
    if block["type"] == "tool_use":
        written = _encode(block["input"]).decode()
        return {**block, "input": {}}, list(_grown("input_json_delta", "partial_json", written))
    thought = _grown("thinking_delta", "thinking", block["thinking"])
    signed: Block = {"type": "signature_delta", "signature": block["signature"]}
    return {"type": "thinking", "thinking": "", "signature": ""}, [*thought, signed]


def _grown(kind: str, field: str, text: object) -> Iterable[Block]:
    assert isinstance(text, str), "what grows in a stream is text"
    return ({"type": kind, field: piece} for piece in sse.pieces(text))


def _event(data: dict[str, object]) -> bytes:
    return sse.event(str(data["type"]), _on_one_line(_encode(data)))


def _on_one_line(data: bytes) -> bytes:
    for end, escaped in _LINE_ENDS:
        data = data.replace(end, escaped)
    return data
