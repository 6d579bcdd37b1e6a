"""Anthropic's answer: a message, as one object or as the events of a stream.

A stream's message begins, its blocks begin, grow and end one after another, and it ends with why it
stopped and what it used. One that is told whole has at most one block of thoughts and one of text,
in this order; a live one has as many as the reply turned from one to the other.
"""

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.gateway.protocol.messages import (
    Answer,
    AnswerChoice,
    AnswerDelta,
    Opening,
    RequestRejected,
)
from holdfast.gateway.wires import sse
from holdfast.gateway.wires.anthropic import errors
from holdfast.gateway.wires.anthropic.blocks import Block, input_of, signature_of
from holdfast.records.message import ToolCall

# JSON may hold them; clients that split text into lines take them for the end of one.
_LINE_ENDS = (
    (b"\xc2\x85", b"\\u0085"),
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
)
_BEGUN: dict[bool, Block] = {
    True: {"type": "thinking", "thinking": "", "signature": ""},
    False: {"type": "text", "text": ""},
}
_encode = msgspec.json.Encoder().encode


class MessageStream:
    """It has one choice."""

    def __init__(self) -> None:
        self._spoken = sse.SentText()
        self._blocks = 0
        self._open: bool | None = None
        """Whether the block that is open is one of thoughts; None: none is open."""
        self._thought: list[str] = []
        """What it holds, if it is."""

    def more(self, opening: Opening, deltas: Sequence[AnswerDelta]) -> list[bytes]:
        found = [*self._begin(opening)]
        for delta in deltas:
            self._spoken.take(delta)
            found += self._grow(delta.text, is_reasoning=delta.is_reasoning)
        return found

    def end(self, answer: Answer) -> list[bytes]:
        choice = answer.choices[0]
        reasoning, text = self._spoken.rest(choice.message)
        found = [*self._begin(answer.opening)]
        for told, is_reasoning in ((reasoning, True), (text, False)):
            for piece in sse.pieces(told):
                found += self._grow(piece, is_reasoning=is_reasoning)
        found += self._close()
        for call in choice.message.tool_calls:
            found += self._call(call)
        used = usage(answer.opening, answer.completion_tokens)
        used.pop("service_tier")
        found.append(_event({"type": "message_delta", "delta": stopped(choice), "usage": used}))
        found.append(_event({"type": "message_stop"}))
        return found

    def error(self, refused: RequestRejected) -> bytes:
        return sse.event("error", errors.refusal(refused))

    def _begin(self, opening: Opening) -> Iterator[bytes]:
        if self._spoken.is_begun:
            return
        self._spoken.is_begun = True
        nothing = {"stop_reason": None, "stop_sequence": None}
        begun = {**message_of(opening, []), **nothing, "usage": usage(opening, 0)}
        yield _event({"type": "message_start", "message": begun})

    def _grow(self, text: str, *, is_reasoning: bool) -> Iterator[bytes]:
        if self._open is not is_reasoning:
            yield from self._close()
            yield self._started(_BEGUN[is_reasoning])
            self._open = is_reasoning
        if is_reasoning:
            self._thought.append(text)
            yield self._grown({"type": "thinking_delta", "thinking": text})
        else:
            yield self._grown({"type": "text_delta", "text": text})

    def _close(self) -> Iterator[bytes]:
        if self._open is None:
            return
        if self._open:
            signature = signature_of("".join(self._thought))
            yield self._grown({"type": "signature_delta", "signature": signature})
        yield self._ended()
        self._open, self._thought = None, []

    def _call(self, call: ToolCall) -> Iterator[bytes]:
        yield self._started({"type": "tool_use", "id": call.id, "name": call.name, "input": {}})
        for piece in sse.pieces(_encode(input_of(call.arguments)).decode()):
            yield self._grown({"type": "input_json_delta", "partial_json": piece})
        yield self._ended()

    def _started(self, block: Block) -> bytes:
        begun = {"type": "content_block_start", "index": self._blocks, "content_block": block}
        return _event(begun)

    def _grown(self, delta: Block) -> bytes:
        return _event({"type": "content_block_delta", "index": self._blocks, "delta": delta})

    def _ended(self) -> bytes:
        self._blocks += 1
        return _event({"type": "content_block_stop", "index": self._blocks - 1})


def message_of(answer: Answer | Opening, content: list[Block]) -> dict[str, object]:
    return {
        "id": f"msg_{answer.id}",
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": content,
    }


def stopped(choice: AnswerChoice) -> dict[str, object]:
    stop = choice.stop_string if choice.finish_reason == "stop" else None
    reasons = {
        "stop": "end_turn" if stop is None else "stop_sequence",
        "length": "max_tokens",
        "tool_calls": "tool_use",
    }
    return {"stop_reason": reasons[choice.finish_reason], "stop_sequence": stop}


def usage(opening: Opening, completion_tokens: int) -> dict[str, object]:
    """Anthropic counts what was read from a cache apart from the rest of the input."""
    return {
        "input_tokens": opening.prompt_tokens - opening.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": opening.cached_tokens,
        "output_tokens": completion_tokens,
        "service_tier": "standard",
    }


def _event(data: dict[str, object]) -> bytes:
    return sse.event(str(data["type"]), _on_one_line(_encode(data)))


def _on_one_line(data: bytes) -> bytes:
    for end, escaped in _LINE_ENDS:
        data = data.replace(end, escaped)
    return data
