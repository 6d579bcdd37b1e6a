"""A response as a stream of events, numbered from 0.

Items start, grow and end one after another. The events add up to the response that the last of them
holds. A stream of a finished answer has at most one item of reasoning and one of text, in this
order, like the response without a stream; a live one has a new item each time the reply changes
between the two.
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
from holdfast.gateway.wires.responses.output import (
    Json,
    call_item,
    finished_response,
    logprobs_of,
    reasoning_item,
    started_response,
    text_item,
    was_cut,
)
from holdfast.records.message import Message, ToolCall

Event = tuple[str, Json]
"""Its type, and its fields without type and number."""
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
        """The finished ones."""
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
        """The rest of the text, with logprobs if nothing of it was sent before."""
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
        found = []
        for kind, held in events:
            event = {"type": kind, "sequence_number": self._numbers, **held}
            self._numbers += 1
            found.append(sse.event(kind, _encode(event)))
        return found


def _has_text(message: Message) -> bool:
    """A reply without calls always has a text, if only ""."""
    return bool(message.text) or not message.tool_calls


def _pieces(text: str, tokens: list[str]) -> list[tuple[str, range]]:
    """The pieces of a text with the positions of their tokens; the first piece has all of them if
    the text cannot be cut between tokens."""
    found = sse.cut_at_tokens(tokens, text)
    if found is not None:
        return found
    first, none = range(len(tokens)), range(0)
    return [(piece, none if index else first) for index, piece in enumerate(sse.pieces(text))]
