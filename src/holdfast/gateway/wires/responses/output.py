"""Formats an answer as a `/v1/responses` object, or as a stream of events that are numbered from 0.

The result depends only on the request and the answer, so an answer that is sent again has the same
bytes. The ids of items contain the answer's id and the item's place, so that `items` can join the
items of one answer again. Settings that a `GenerationRequest` does not keep have their defaults. If
the first message is a system message, it is sent as the instructions.

In a stream, items start, grow and end one after another, and the last event contains the whole
response. A stream of a finished answer has the same items as the response without a stream. A live
stream has a new item each time the reply changes between reasoning and text.
"""

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.gateway.protocol.messages import (
    Answer,
    AnswerChoice,
    AnswerDelta,
    GenerationRequest,
    Opening,
    RequestRejected,
)
from holdfast.gateway.wires import sse
from holdfast.gateway.wires.openai.chat import bound_logprob
from holdfast.records.message import Message, Role, ToolCall
from holdfast.records.sampling import NAMED

Json = dict[str, object]

_CUTS = {"length": "max_output_tokens", "content_filter": "content_filter"}


def finished_response(opened: Json, answer: Answer, output: list[Json]) -> Json:
    """Returns the response of an answer that is complete or was cut."""
    is_cut = was_cut(answer)
    return {
        **opened,
        "status": "incomplete" if is_cut else "completed",
        "incomplete_details": {"reason": _CUTS[answer.choices[0].finish_reason]}
        if is_cut
        else None,
        "output": output,
        "usage": _usage(answer),
    }


def was_cut(answer: Answer) -> bool:
    """Returns whether the last item of the answer is incomplete."""
    return answer.choices[0].finish_reason in _CUTS


def started_response(request: GenerationRequest, answer: Answer | Opening) -> Json:
    """Returns the response before its first item."""
    return {
        "id": f"resp_{answer.id}",
        "object": "response",
        "created_at": answer.created,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": _instructions(request),
        "max_output_tokens": request.max_tokens,
        "max_tool_calls": None,
        "metadata": {},
        "model": answer.model,
        "output": [],
        "parallel_tool_calls": request.parallel_tool_calls,
        "previous_response_id": request.previous,
        "reasoning": {"effort": request.reasoning_effort, "summary": None},
        "service_tier": "default",
        "store": False,
        "temperature": request.temperature,
        "text": {"format": _format(request)},
        "tool_choice": _tool_choice(request),
        "tools": msgspec.Raw(msgspec.json.encode([_tool(tool) for tool in request.tools])),
        "top_logprobs": 0,
        "top_p": request.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": None,
    }


def _tool_choice(request: GenerationRequest) -> object:
    if not request.tool_choice.startswith(NAMED):
        return request.tool_choice or "auto"
    return {"type": "function", "name": request.tool_choice.removeprefix(NAMED)}


def _format(request: GenerationRequest) -> Json:
    if isinstance(request.json, bool):
        return {"type": "json_object" if request.json else "text"}
    schema = msgspec.Raw(request.json.encode())
    return {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}


def items_of(answer: Answer) -> list[Json]:
    """Returns the items of an answer: reasoning, then text, then calls. A reply without calls
    always has a text, even if it is ""."""
    choice, items = answer.choices[0], list[Json]()
    message = choice.message
    if message.reasoning:
        items.append(reasoning_item(answer, 0, message.reasoning))
    if message.text or not message.tool_calls:
        items.append(text_item(answer, len(items), message.text, logprobs_of(choice)))
    for call in message.tool_calls:
        items.append(call_item(answer, len(items), call))
    if was_cut(answer):
        items[-1]["status"] = "incomplete"
    return items


def _id(kind: str, answer: Answer | Opening, index: int) -> str:
    return f"{kind}_{answer.id}_{index}"


def reasoning_item(answer: Answer | Opening, index: int, text: str) -> Json:
    return {
        "id": _id("rs", answer, index),
        "type": "reasoning",
        "status": "completed",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": text}],
        "encrypted_content": None,
    }


def text_item(answer: Answer | Opening, index: int, text: str, logprobs: list[Json]) -> Json:
    return {
        "id": _id("msg", answer, index),
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": [
            {
                "type": "output_text",
                "text": text,
                "annotations": [],
                "logprobs": logprobs,
            }
        ],
    }


def call_item(answer: Answer | Opening, index: int, call: ToolCall) -> Json:
    return {
        "id": _id("fc", answer, index),
        "type": "function_call",
        "status": "completed",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
    }


def logprobs_of(choice: AnswerChoice) -> list[Json]:
    """Returns the logprobs of the text's tokens, or of all tokens if they do not spell the text."""
    text, sampled = choice.message.text, "".join(choice.tokens)
    start = sampled.rfind(text)
    end = start + len(text) if start >= 0 else len(sampled)
    entries, at = list[Json](), 0
    for token, logprob in zip(choice.tokens, choice.logprobs, strict=True):
        if at < end and at + len(token) > start:
            entries.append(_logprob(token, logprob))
        at += len(token)
    return entries


def _logprob(token: str, logprob: float) -> Json:
    # The text of a token that is half a character is a replacement character, so its bytes are
    # unknown.
    token_bytes = [] if "\ufffd" in token else list(token.encode())
    return {
        "token": token,
        "bytes": token_bytes,
        "logprob": bound_logprob(logprob),
        "top_logprobs": [],
    }


def _tool(tool: Json) -> Json:
    function = tool["function"]
    assert isinstance(function, dict), "tools are as `responses_request` makes them"
    # Arguments are passed on as the model wrote them, so no function is strict.
    absent = {"description": None, "parameters": None, "strict": False}
    return {"type": "function", **absent, **function}


def _instructions(request: GenerationRequest) -> str | None:
    first = request.messages[0] if request.messages else None
    return first.text if first is not None and first.role is Role.SYSTEM else None


def _usage(answer: Answer) -> Json:
    """Returns the usage. If the engine does not count reasoning tokens separately, their number is
    0, because OpenAI's client requires a number."""
    return {
        "input_tokens": answer.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": answer.all_cached_tokens,
            "cache_write_tokens": 0,
        },
        "output_tokens": answer.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": answer.reasoning_tokens},
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
    }


Event = tuple[str, Json]
"""The type of an event, and its fields without type and number."""
_encode = msgspec.json.Encoder().encode


class _Open:
    """An item of reasoning or text that still grows."""

    def __init__(self, response: Opening, index: int, *, is_reasoning: bool):
        self.is_reasoning = is_reasoning
        self._response, self._index = response, index
        self._text: list[str] = []
        item = self.item([])
        (part,) = self._parts(item)
        self.added: Json = {**item, "status": "in_progress", "content": []}
        self.part: Json = {**part, "text": "", **({} if is_reasoning else {"logprobs": []})}
        self.at: Json = {"item_id": item["id"], "output_index": index, "content_index": 0}

    def item(self, logprobs: list[Json]) -> Json:
        text = "".join(self._text)
        if self.is_reasoning:
            return reasoning_item(self._response, self._index, text)
        return text_item(self._response, self._index, text, logprobs)

    def grow(self, text: str, logprobs: list[Json]) -> Event:
        self._text.append(text)
        if self.is_reasoning:
            return "response.reasoning_text.delta", {**self.at, "delta": text}
        return "response.output_text.delta", {**self.at, "delta": text, "logprobs": logprobs}

    def finish(self, item: Json) -> Iterator[Event]:
        (part,) = self._parts(item)
        kind = "reasoning_text" if self.is_reasoning else "output_text"
        fields: Json = {name: part[name] for name in ("text", "logprobs") if name in part}
        yield f"response.{kind}.done", {**self.at, **fields}
        yield "response.content_part.done", {**self.at, "part": part}

    def _parts(self, item: Json) -> list[Json]:
        parts = item["content"]
        assert isinstance(parts, list), "text and reasoning have parts"
        return parts


class ResponseStream:
    """The events of one answer, which has one choice."""

    def __init__(self, request: GenerationRequest):
        self._request = request
        self._sent = sse.SentText()
        self._numbers = 0
        self._items: list[Json] = []
        """The finished items."""
        self._open: _Open | None = None

    def more(self, response: Opening, deltas: Sequence[AnswerDelta]) -> list[bytes]:
        events = [*self._begin(response)]
        for delta in deltas:
            self._sent.take(delta)
            events += self._grow(response, delta.text, is_reasoning=delta.is_reasoning)
        return self._numbered(events)

    def end(self, answer: Answer) -> list[bytes]:
        choice, response = answer.choices[0], answer.opening
        reasoning, text = self._sent.rest(choice.message)
        events = [*self._begin(response)]
        for piece in sse.pieces(reasoning):
            events += self._grow(response, piece, is_reasoning=True)
        logprobs = logprobs_of(choice)
        events += self._text_events(response, choice, text, logprobs)
        calls = choice.message.tool_calls
        events += self._close(logprobs, is_cut=was_cut(answer) and not calls)
        for call in calls:
            events += self._call(response, call, is_cut=was_cut(answer) and call is calls[-1])
        whole = finished_response(started_response(self._request, response), answer, self._items)
        events.append((f"response.{whole['status']}", {"response": whole}))
        return self._numbered(events)

    def error(self, rejection: RequestRejected) -> bytes:
        event = {
            "type": "error",
            "code": rejection.code or None,
            "message": rejection.message,
            "param": rejection.param,
            "sequence_number": self._numbers,
        }
        return sse.event("error", _encode(event))

    def _begin(self, response: Opening) -> Iterator[Event]:
        if not self._sent.is_open:
            self._sent.is_open = True
            opened: Json = {"response": started_response(self._request, response)}
            yield "response.created", opened
            yield "response.in_progress", opened

    def _text_events(
        self, response: Opening, choice: AnswerChoice, text: str, logprobs: list[Json]
    ) -> Iterator[Event]:
        """Yields the events of the rest of the text. They have logprobs if no text was sent
        before."""
        if not _has_text(choice.message):
            return
        tokens = [] if self._sent.has_text else [str(logprob["token"]) for logprob in logprobs]
        for piece, positions in _pieces(text, tokens):
            own = [logprobs[index] for index in positions]
            yield from self._grow(response, piece, is_reasoning=False, logprobs=own)
        if not self._sent.has_text and not text:
            yield from self._switch(response, is_reasoning=False)

    def _grow(
        self, response: Opening, text: str, *, is_reasoning: bool, logprobs: Sequence[Json] = ()
    ) -> Iterator[Event]:
        yield from self._switch(response, is_reasoning=is_reasoning)
        assert self._open is not None, "it was just opened"
        yield self._open.grow(text, list(logprobs))

    def _switch(self, response: Opening, *, is_reasoning: bool) -> Iterator[Event]:
        if self._open is not None and self._open.is_reasoning is is_reasoning:
            return
        yield from self._close([])
        index = len(self._items)
        self._open = _Open(response, index, is_reasoning=is_reasoning)
        yield "response.output_item.added", {"output_index": index, "item": self._open.added}
        yield "response.content_part.added", {**self._open.at, "part": self._open.part}

    def _close(self, logprobs: list[Json], *, is_cut: bool = False) -> Iterator[Event]:
        if self._open is None:
            return
        item = self._open.item(logprobs)
        yield from self._open.finish(item)
        yield self._done(item, is_cut=is_cut)
        self._open = None

    def _call(self, response: Opening, call: ToolCall, *, is_cut: bool) -> Iterator[Event]:
        index = len(self._items)
        item = call_item(response, index, call)
        added = {**item, "status": "in_progress", "arguments": ""}
        yield "response.output_item.added", {"output_index": index, "item": added}
        at = {"item_id": item["id"], "output_index": index}
        for piece in sse.pieces(call.arguments):
            yield "response.function_call_arguments.delta", {**at, "delta": piece}
        whole = {**at, "name": call.name, "arguments": call.arguments}
        yield "response.function_call_arguments.done", whole
        yield self._done(item, is_cut=is_cut)

    def _done(self, item: Json, *, is_cut: bool) -> Event:
        if is_cut:
            item["status"] = "incomplete"
        self._items.append(item)
        return "response.output_item.done", {"output_index": len(self._items) - 1, "item": item}

    def _numbered(self, events: Sequence[Event]) -> list[bytes]:
        numbered = []
        for kind, held in events:
            event = {"type": kind, "sequence_number": self._numbers, **held}
            self._numbers += 1
            numbered.append(sse.event(kind, _encode(event)))
        return numbered


def _has_text(message: Message) -> bool:
    """Returns whether a reply has a text. A reply without calls always has one, even if it is
    ""."""
    return bool(message.text) or not message.tool_calls


def _pieces(text: str, tokens: list[str]) -> list[tuple[str, range]]:
    """Returns the pieces of a text with the positions of their tokens. If the text cannot be cut
    between tokens, the first piece has all positions."""
    cuts = sse.cut_at_tokens(tokens, text)
    if cuts is not None:
        return cuts
    first, none = range(len(tokens)), range(0)
    return [(piece, none if index else first) for index, piece in enumerate(sse.pieces(text))]
