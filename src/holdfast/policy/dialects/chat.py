"""`/v1/chat/completions` of any OpenAI-compatible server, which takes messages and returns one.

It has no token ids, so it is for evaluation and not for training. If a server's messages have a
field for reasoning, even an empty one, the server itself separates the reasoning. Otherwise a
content that begins with `<think>…</think>` is split, as LiteLLM does.
"""

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from holdfast.policy.dialects.dialect import (
    NULL,
    Dialect,
    InvalidAnswer,
    Kind,
    Piece,
    Reader,
    UnknownEngine,
    chat_usage,
    check_ended,
    decode,
    drop_none,
    only_choice,
    openai_fields,
)
from holdfast.policy.policy import Request
from holdfast.records.message import FunctionCall, Message, Role, ToolCall, set_reasoning_apart
from holdfast.records.sampling import Sampling
from holdfast.records.step import TOOL_CALLS

_NO_TAGS: tuple[str, ...] = ()
_REASONS = {"function_call": TOOL_CALLS}
"""Older names of finish reasons."""


class _Function(Struct):
    name: str
    arguments: str = "{}"


class _Call(Struct):
    function: _Function
    id: str | None = None


class _MessageBody(Struct):
    content: str | None = None
    refusal: str | None = None
    """The model's text if it refuses to answer."""
    reasoning_content: str | UnsetType | None = UNSET
    reasoning: str | UnsetType | None = UNSET
    tool_calls: list[_Call] | None = None


class _Choice(Struct):
    message: _MessageBody
    finish_reason: str | None = None
    index: int = 0


class _Answer(Struct):
    choices: list[_Choice]
    usage: Raw = NULL


_decoder = msgspec.json.Decoder(_Answer)


class Chat(Dialect):
    kind = Kind.CHAT
    path = "/v1/chat/completions"
    has_tokens = False
    lacks = ("routed_experts",)

    async def may_be_spoken_by(self, engine: UnknownEngine) -> bool:
        """Returns True for every engine, because chat is the last dialect that is tried."""
        return True

    def body(self, request: Request) -> dict[str, object]:
        sampling = request.sampling
        return drop_none(
            {
                **openai_fields(request),
                "messages": [_message(message) for message in request.messages],
                "tools": list(request.tools) or None,
                "reasoning_effort": sampling.reasoning_effort,
                "tool_choice": _tool_choice(sampling) or None,
                "parallel_tool_calls": None if sampling.parallel_tool_calls else False,
                "stop_token_ids": list(request.stop_token_ids) or None,
                "chat_template_kwargs": sampling.template_kwargs or None,
            }
        )

    def whole(self, body: bytes) -> Piece:
        # The model's name is not checked, because hosted models answer with the name of a snapshot.
        answer = decode(_decoder, body)
        choice = only_choice(answer.choices)
        reason, message = choice.finish_reason, choice.message
        read, tags = _to_message(message), _NO_TAGS
        if message.reasoning is UNSET and message.reasoning_content is UNSET:
            read, tags = set_reasoning_apart(read)
        return check_ended(
            Piece(
                finish_reason=None if reason is None else _REASONS.get(reason, reason),
                message=read,
                reasoning_tags=tags,
                usage=chat_usage(answer.usage),
            )
        )

    def reader(self) -> Reader:
        raise InvalidAnswer("chat has no tokens that could be kept, so it is never streamed")


def _tool_choice(sampling: Sampling) -> object:
    name = sampling.forced_tool
    return {"type": "function", "function": {"name": name}} if name else sampling.tool_choice


def _message(message: Message) -> dict[str, object]:
    fields = message.to_dict()
    fields.pop("reasoning_content", None)
    content = fields.setdefault("content", None)
    return {**fields, "content": content or None} if message.tool_calls else fields


def _to_message(fields: _MessageBody) -> Message:
    calls = tuple(
        ToolCall(call.id or "", FunctionCall(call.function.name, call.function.arguments))
        for call in fields.tool_calls or ()
    )
    reasoning = fields.reasoning_content or fields.reasoning
    text = fields.content or fields.refusal or ""
    return Message(Role.ASSISTANT, text, tool_calls=calls, reasoning=reasoning or None)
