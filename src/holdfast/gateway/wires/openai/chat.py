"""OpenAI's chat completions, `/v1/chat/completions`.

A response is one JSON object, or a stream of chunks that ends with `[DONE]`. Both depend only on
the answer, so an answer that is sent again has the same bytes. Each chunk belongs to one choice.
Chunks of several choices can follow each other in any order.
"""

import contextlib
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta, Raw

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
from holdfast.gateway.wires.openai import errors
from holdfast.gateway.wires.openai.errors import invalid, unsupported_value
from holdfast.gateway.wires.openai.messages import (
    RequestMessage,
    parse_messages,
    parse_tool_choice,
    parse_tools,
)
from holdfast.gateway.wires.openai.parameters import (
    Budget,
    Count,
    Effort,
    SamplingParameters,
    neutral,
    reject_unless_neutral,
)
from holdfast.records.message import Message, ToolCall

Json = dict[str, object]
_Positions = range | None
_Piece = tuple[str, _Positions]
_encode = msgspec.json.Encoder().encode


def usage(answer: Answer) -> Json:
    """Returns the usage, in the format of OpenAI's completions. If there is reasoning and the
    engine does not count its tokens separately, their number is null and not 0."""
    reasons = any(choice.message.reasoning for choice in answer.choices)
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.all_cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": answer.reasoning_tokens or (None if reasons else 0),
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


class OpenAIWire:
    """The methods that OpenAI's wires share."""

    def keep_alive(self) -> bytes:
        return sse.KEEP_ALIVE

    def format_error(self, rejection: RequestRejected) -> bytes:
        return errors.format_error(rejection)


class CompletionStream(ABC):
    """The common part of the streams of chat and text completions."""

    def __init__(self, request: GenerationRequest):
        self._request = request
        self._sent: defaultdict[int, sse.SentText] = defaultdict(sse.SentText)

    @abstractmethod
    def _head(self, opening: Opening) -> Json:
        """Returns the first fields of every chunk."""

    @abstractmethod
    def _delta(self, delta: AnswerDelta, sent: sse.SentText) -> Iterator[Json]:
        """Yields the chunks of a delta. `sent` is the text of the choice that was sent before."""

    @abstractmethod
    def _rest(self, index: int, choice: AnswerChoice, sent: sse.SentText) -> Iterator[Json]:
        """Yields the chunks of the rest of a choice, including its end."""

    def more(self, opening: Opening, deltas: Sequence[AnswerDelta]) -> list[bytes]:
        chunks = [chunk for delta in deltas for chunk in self._chunks(delta)]
        return self._events(opening, chunks)

    def end(self, answer: Answer) -> list[bytes]:
        chunks = [
            chunk
            for index, choice in enumerate(answer.choices)
            for chunk in self._rest(index, choice, self._sent[index])
        ]
        events = self._events(answer.opening, chunks)
        if self._request.include_usage:
            head = self._head(answer.opening)
            chunk = {**head, "choices": [], "usage": usage(answer)}
            events.append(sse.data(_encode(chunk)))
        return [*events, sse.DONE]

    def error(self, rejection: RequestRejected) -> bytes:
        return sse.data(errors.format_error(rejection))

    def _pieces(
        self, choice: AnswerChoice, text: str, sent: sse.SentText
    ) -> tuple[list[_Piece], _Positions]:
        """Returns the rest of the text in pieces, and the positions of the tokens whose logprobs
        come with the end of the choice.

        If the text can be cut between tokens, and none of it was sent before, each piece has the
        positions of its own tokens. Otherwise, the pieces have no positions, and the logprobs of
        all tokens come with the end.
        """
        positions: _Positions = range(len(choice.tokens)) if self._request.logprobs else None
        if positions is not None and not sent.has_text:
            by_token = sse.cut_at_tokens(choice.tokens, text)
            if by_token:
                return list(by_token), None
        return [(piece, None) for piece in sse.pieces(text)], positions

    def _chunks(self, delta: AnswerDelta) -> list[Json]:
        sent = self._sent[delta.index]
        chunks = list(self._delta(delta, sent))
        sent.take(delta)
        sent.is_open = True
        return chunks

    def _events(self, opening: Opening, chunks: list[Json]) -> list[bytes]:
        head = self._head(opening)
        # If usage is requested, all chunks but the last have a null usage.
        rest = {"usage": None} if self._request.include_usage else {}
        return [sse.data(_encode({**head, "choices": [chunk], **rest})) for chunk in chunks]


_MIN_LOGPROB = -9999.0
"""OpenAI's value for a token that could hardly be sampled; JSON has no infinity."""


_Messages = TypeVar("_Messages")


class _Body(
    SamplingParameters, Generic[_Messages], kw_only=True, frozen=True, forbid_unknown_fields=True
):
    messages: _Messages
    tools: list[dict[str, object]] | None = None
    tool_choice: str | dict[str, object] | None = None
    parallel_tool_calls: bool | None = None
    max_completion_tokens: Count | None = None
    reasoning_effort: Effort | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0)] | None = None
    thinking_budget: Budget | None = None
    """Another name of `thinking_token_budget`."""

    # A guess of the answer, which only makes the engine faster.
    prediction: object = None

    # Accepted only with values that change nothing.
    functions: object = neutral(why="it is deprecated; use 'tools'.")
    function_call: object = neutral(why="it is deprecated; use 'tools' and 'tool_choice'.")
    modalities: object = neutral(["text"])
    audio: object = neutral()
    moderation: object = neutral()
    web_search_options: object = neutral()
    verbosity: object = neutral("medium")
    chat_template: object = neutral()
    add_generation_prompt: object = neutral(True)
    continue_final_message: object = neutral(False)
    include_reasoning: object = neutral(True)


_DECODER = msgspec.json.Decoder(_Body[Annotated[list[RequestMessage], Meta(min_length=1)]])
_UNREAD = msgspec.json.Decoder(_Body[Raw])
_MESSAGES = msgspec.json.Decoder(list[RequestMessage])


class OpenAIChat(OpenAIWire):
    """The wire of `/v1/chat/completions`."""

    def parse(self, body: bytes, known: RequestLookup | None = None) -> GenerationRequest:
        request, conversation = _read(body, known)
        reject_unless_neutral(request)
        if request.top_logprobs:
            raise unsupported_value(
                "top_logprobs", request.top_logprobs, "only sampled tokens have logprobs; send 0."
            )
        schemas = parse_tools(request.tools) if request.tools else ()
        choice = parse_tool_choice(request.tool_choice, schemas)
        return GenerationRequest(
            model=request.model,
            messages=conversation or parse_messages(request.messages),
            tools=() if choice is None else schemas,
            max_tokens=_either(request, "max_tokens", "max_completion_tokens"),
            **request.shared_fields,
            reasoning_effort=request.reasoning_effort,
            thinking_token_budget=_either(request, "thinking_token_budget", "thinking_budget"),
            chat_template_kwargs=request.template_kwargs,
            tool_choice=choice or "",
            parallel_tool_calls=request.parallel_tool_calls is not False,
            logprobs=bool(request.logprobs),
        )

    def format_answer(self, request: GenerationRequest, answer: Answer) -> bytes:
        return msgspec.json.encode(
            {
                **_head(answer, "chat.completion"),
                "choices": [
                    _choice(i, choice, request=request) for i, choice in enumerate(answer.choices)
                ],
                "usage": usage(answer),
                "system_fingerprint": None,
                **({"prompt_token_ids": answer.choices[0].prompt_ids} if request.token_ids else {}),
            }
        )

    def stream(self, request: GenerationRequest) -> "ChatStream":
        return ChatStream(request)


def _read(body: bytes, known: RequestLookup | None) -> tuple[_Body[Any], tuple[Message, ...]]:
    """Returns the body, and its messages if `known` could parse them."""
    if known is not None:
        # Only decoding the whole body shows the error and its message.
        with contextlib.suppress(RequestRejected, ValueError, RecursionError):
            unread = _UNREAD.decode(body)
            if conversation := known.messages(
                unread.messages, lambda sent: parse_messages(_MESSAGES.decode(sent))
            ):
                return unread, conversation
    return errors.decode(_DECODER, body), ()


def _either(request: _Body[Any], name: str, other: str) -> int | None:
    """Returns the value of a parameter that has two names. Raises `RequestRejected` if the two
    values differ."""
    sent: set[int] = {getattr(request, name), getattr(request, other)} - {None}
    if len(sent) > 1:
        raise invalid(f"'{name}' and '{other}' differ; send one of them.", param=name)
    return sent.pop() if sent else None


def _head(answer: Answer | Opening, kind: str) -> dict[str, object]:
    return {
        "id": f"chatcmpl-{answer.id}",
        "object": kind,
        "created": answer.created,
        "model": answer.model,
    }


def token_ids(request: GenerationRequest, choice: AnswerChoice) -> dict[str, object]:
    """Returns the token ids of a choice, as vLLM sends them on request."""
    fields = {"token_ids": choice.ids, "prompt_token_ids": choice.prompt_ids}
    return dict(fields) if request.token_ids else {}


def _choice(index: int, choice: AnswerChoice, *, request: GenerationRequest) -> dict[str, object]:
    reply = choice.message
    message: dict[str, object] = {"role": "assistant", "content": _content(choice), "refusal": None}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["tool_calls"] = [_call(call) for call in reply.tool_calls]
    return {
        "index": index,
        "message": message,
        "logprobs": _logprobs(choice, range(len(choice.tokens))) if request.logprobs else None,
        "finish_reason": choice.finish_reason,
        **token_ids(request, choice),
    }


def _content(choice: AnswerChoice) -> str | None:
    """Returns the text of a choice. It is None only for a message with tool calls and no text."""
    return None if choice.message.tool_calls and not choice.message.text else choice.message.text


def _call(call: ToolCall) -> dict[str, object]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _logprobs(choice: AnswerChoice, positions: range | None) -> dict[str, object] | None:
    if positions is None:
        return None
    content = [_logprob(choice.tokens[i], choice.logprobs[i]) for i in positions]
    return {"content": content, "refusal": None}


def bound_logprob(logprob: float) -> float:
    """Returns the logprob, or OpenAI's lowest value if the logprob is lower."""
    return max(logprob, _MIN_LOGPROB)


def _logprob(token: str, logprob: float) -> dict[str, object]:
    # The text of a token that is half a character is a replacement character, so its bytes are
    # unknown.
    known = "\ufffd" not in token
    return {
        "token": token,
        "logprob": bound_logprob(logprob),
        "bytes": list(token.encode()) if known else None,
        "top_logprobs": [],
    }


class ChatStream(CompletionStream):
    """The events of chat completions. Each choice has its role, reasoning, text, calls and end."""

    def _head(self, opening: Opening) -> dict[str, object]:
        return {**_head(opening, "chat.completion.chunk"), "system_fingerprint": None}

    def _delta(self, delta: AnswerDelta, sent: sse.SentText) -> Iterator[dict[str, object]]:
        if not sent.is_open:
            yield _first_chunk(delta.index, None if delta.is_reasoning else "")
        name = "reasoning_content" if delta.is_reasoning else "content"
        yield _chunk(delta.index, {name: delta.text})

    def _rest(
        self, index: int, choice: AnswerChoice, sent: sse.SentText
    ) -> Iterator[dict[str, object]]:
        reasoning, text = sent.rest(choice.message)
        # The first chunk of a choice never has logprobs, because OpenAI's library would count them
        # twice.
        pieces, apart = self._pieces(choice, text, sent)
        content = _content(choice)
        if not sent.is_open:
            yield _first_chunk(index, None if content is None else "")
        for piece in sse.pieces(reasoning):
            yield _chunk(index, {"reasoning_content": piece})
        for piece, positions in pieces:
            yield _chunk(index, {"content": piece}, logprobs=_logprobs(choice, positions))
        if sent.is_open and content == "":
            # The first chunk did not say whether there is a text.
            yield _chunk(index, {"content": ""})
        for delta in _call_deltas(choice.message.tool_calls):
            yield _chunk(index, {"tool_calls": [delta]})
        logprobs = _logprobs(choice, apart)
        ended = _chunk(index, {}, logprobs=logprobs, finish_reason=choice.finish_reason)
        yield {**ended, **token_ids(self._request, choice)}


def _first_chunk(index: int, content: str | None) -> dict[str, object]:
    return _chunk(index, {"role": "assistant", "content": content, "refusal": None})


def _call_deltas(calls: Sequence[ToolCall]) -> Iterator[dict[str, object]]:
    for index, call in enumerate(calls):
        function = {"name": call.name, "arguments": ""}
        yield {"index": index, "id": call.id, "type": "function", "function": function}
        for piece in sse.pieces(call.arguments):
            yield {"index": index, "function": {"arguments": piece}}


def _chunk(
    index: int,
    delta: Mapping[str, object],
    *,
    logprobs: dict[str, object] | None = None,
    finish_reason: str | None = None,
) -> dict[str, object]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
