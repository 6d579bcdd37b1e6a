"""`/v1/chat/completions` of any OpenAI-compatible server: messages in, a message out.

There are no token ids in it, so nothing of it can be trained: it is for evaluation.
"""

import msgspec
from msgspec import Struct

from holdfast.policy.dialects.dialect import Kind, Piece, Reader, SampleRequest, Unusable
from holdfast.policy.dialects.reading import decoded, ended, only
from holdfast.records.message import FunctionCall, Message, Role, ToolCall
from holdfast.records.sampling import Sampling, response_format_of

_REASONS = {"tool_calls": "stop", "function_call": "stop", "content_filter": "stop"}


class _Function(Struct):
    name: str
    arguments: str = "{}"


class _Call(Struct):
    function: _Function
    id: str | None = None


class _Said(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(Struct):
    message: _Said
    finish_reason: str | None = None
    index: int = 0


class _Answer(Struct):
    choices: list[_Choice]


_decoder = msgspec.json.Decoder(_Answer)


class Chat:
    kind = Kind.CHAT
    path = "/v1/chat/completions"
    has_tokens = False

    def body(self, ask: SampleRequest) -> dict[str, object]:
        request = ask.request
        sampling = request.sampling
        body: dict[str, object] = {
            "model": ask.model,
            "messages": [_message(one) for one in request.messages],
            "max_tokens": ask.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        if request.tools:
            body["tools"] = list(request.tools)
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if ask.seed is not None:
            body["seed"] = ask.seed
        if sampling.json is not False:
            body["response_format"] = response_format_of(sampling)
        if sampling.reasoning_effort is not None:
            body["reasoning_effort"] = sampling.reasoning_effort
        if sampling.top_k:
            body["top_k"] = sampling.top_k
        if sampling.tool_choice:
            body["tool_choice"] = _tool_choice(sampling)
        if not sampling.parallel_tool_calls:
            body["parallel_tool_calls"] = False
        if sampling.thinking_token_budget is not None:
            body["thinking_token_budget"] = sampling.thinking_token_budget
        return body

    def whole(self, body: bytes) -> Piece:
        # Nobody checks the model's name here: hosted ones answer with that of a snapshot.
        choice = only(decoded(_decoder, body).choices)
        reason = choice.finish_reason
        return ended(
            Piece(
                finish_reason=None if reason is None else _REASONS.get(reason, reason),
                message=_said(choice.message),
            )
        )

    def reader(self) -> Reader:
        raise Unusable("chat has no tokens that could be kept, so it is never streamed")


def _tool_choice(sampling: Sampling) -> object:
    name = sampling.forced_tool
    return {"type": "function", "function": {"name": name}} if name else sampling.tool_choice


def _message(message: Message) -> dict[str, object]:
    said: dict[str, object] = msgspec.to_builtins(message)
    said.setdefault("content", "")
    if message.tool_calls:
        said["content"] = said["content"] or None
        # A record leaves out what never varies; the wire wants it.
        said["tool_calls"] = [
            {"id": call.id, "type": call.type, "function": msgspec.to_builtins(call.function)}
            for call in message.tool_calls
        ]
    said.pop("reasoning", None)
    return {key: value for key, value in said.items() if value is not None or key == "content"}


def _said(said: _Said) -> Message:
    calls = tuple(
        ToolCall(call.id or "", FunctionCall(call.function.name, call.function.arguments))
        for call in said.tool_calls or ()
    )
    reasoning = said.reasoning_content or said.reasoning
    return Message(Role.ASSISTANT, said.content or "", tool_calls=calls, reasoning=reasoning)
