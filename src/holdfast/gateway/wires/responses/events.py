"""A response as the events of its stream, numbered from 0.

Its items are opened, grow and end one after another. What the events add up to is the response that
the last of them holds. One that is told whole has at most one item of reasoning and one of words,
in this order, and is the response that is told without a stream; a live one has as many as the
reply turned from one to the other.
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
    closing,
    logprobs_of,
    opening,
    reasoning_item,
    was_cut,
    words_item,
)
from holdfast.records.message import Message, ToolCall

Event = tuple[str, Json]
"""Its type and what it holds besides that and its number."""
_encode = msgspec.json.Encoder().encode


class _Open:
    """An item of reasoning or of words that still grows."""

    def __init__(self, response: Opening, place: int, *, is_reasoning: bool):
        self.is_reasoning = is_reasoning
        self._response, self._place = response, place
        self._text: list[str] = []
        item = self.item([])
        (part,) = self._parts(item)
        self.added: Json = {**item, "status": "in_progress", "content": []}
        self.part: Json = {**part, "text": "", **({} if is_reasoning else {"logprobs": []})}
        self.at: Json = {"item_id": item["id"], "output_index": place, "content_index": 0}

    def item(self, logprobs: list[Json]) -> Json:
        text = "".join(self._text)
        if self.is_reasoning:
            return reasoning_item(self._response, self._place, text)
        return words_item(self._response, self._place, text, logprobs)

    def grown(self, text: str, logprobs: list[Json]) -> Event:
        self._text.append(text)
        if self.is_reasoning:
            return "response.reasoning_text.delta", {**self.at, "delta": text}
        return "response.output_text.delta", {**self.at, "delta": text, "logprobs": logprobs}

    def ended(self, item: Json) -> Iterator[Event]:
        (part,) = self._parts(item)
        kind = "reasoning_text" if self.is_reasoning else "output_text"
        said: Json = {name: part[name] for name in ("text", "logprobs") if name in part}
        yield f"response.{kind}.done", {**self.at, **said}
        yield "response.content_part.done", {**self.at, "part": part}

    def _parts(self, item: Json) -> list[Json]:
        parts = item["content"]
        assert isinstance(parts, list), "words and reasoning have parts"
        return parts


class ResponseStream:
    """It has one choice."""

    def __init__(self, ask: GenerationRequest):
        self._ask = ask
        self._spoken = sse.SentText()
        self._numbers = 0
        self._items: list[Json] = []
        """Those that ended."""
        self._open: _Open | None = None

    def more(self, opening: Opening, deltas: Sequence[AnswerDelta]) -> list[bytes]:
        events = [*self._begin(opening)]
        for delta in deltas:
            self._spoken.take(delta)
            events += self._grow(opening, delta.text, is_reasoning=delta.is_reasoning)
        return self._numbered(events)

    def end(self, answer: Answer) -> list[bytes]:
        choice, response = answer.choices[0], answer.opening
        reasoning, text = self._spoken.rest(choice.message)
        events = [*self._begin(response)]
        for piece in sse.pieces(reasoning):
            events += self._grow(response, piece, is_reasoning=True)
        logprobs = logprobs_of(choice)
        events += self._words(response, choice, text, logprobs)
        calls = choice.message.tool_calls
        events += self._close(logprobs, is_cut=was_cut(answer) and not calls)
        for call in calls:
            events += self._call(response, call, is_cut=was_cut(answer) and call is calls[-1])
        whole = closing(opening(self._ask, response), answer, self._items)
        events.append((f"response.{whole['status']}", {"response": whole}))
        return self._numbered(events)

    def error(self, refused: RequestRejected) -> bytes:
        told = {
            "type": "error",
            "code": refused.code or None,
            "message": refused.message,
            "param": refused.param,
            "sequence_number": self._numbers,
        }
        return sse.event("error", _encode(told))

    def _begin(self, response: Opening) -> Iterator[Event]:
        if not self._spoken.is_begun:
            self._spoken.is_begun = True
            opened: Json = {"response": opening(self._ask, response)}
            yield "response.created", opened
            yield "response.in_progress", opened

    def _words(
        self, response: Opening, choice: AnswerChoice, text: str, logprobs: list[Json]
    ) -> Iterator[Event]:
        """What is left of the text; logprobs go with it where all of it is left."""
        if not _has_words(choice.message):
            return
        tokens = [] if self._spoken.has_text else [str(logprob["token"]) for logprob in logprobs]
        for piece, places in _cut(text, tokens):
            told = [logprobs[place] for place in places]
            yield from self._grow(response, piece, is_reasoning=False, logprobs=told)
        if not self._spoken.has_text and not text:
            yield from self._opened(response, is_reasoning=False)

    def _grow(
        self, response: Opening, text: str, *, is_reasoning: bool, logprobs: Sequence[Json] = ()
    ) -> Iterator[Event]:
        yield from self._opened(response, is_reasoning=is_reasoning)
        assert self._open is not None, "it was just opened"
        yield self._open.grown(text, list(logprobs))

    def _opened(self, response: Opening, *, is_reasoning: bool) -> Iterator[Event]:
        if self._open is not None and self._open.is_reasoning is is_reasoning:
            return
        yield from self._close([])
        place = len(self._items)
        self._open = _Open(response, place, is_reasoning=is_reasoning)
        yield "response.output_item.added", {"output_index": place, "item": self._open.added}
        yield "response.content_part.added", {**self._open.at, "part": self._open.part}

    def _close(self, logprobs: list[Json], *, is_cut: bool = False) -> Iterator[Event]:
        if self._open is None:
            return
        item = self._open.item(logprobs)
        yield from self._open.ended(item)
        yield self._done(item, is_cut=is_cut)
        self._open = None

    def _call(self, response: Opening, call: ToolCall, *, is_cut: bool) -> Iterator[Event]:
        place = len(self._items)
        item = call_item(response, place, call)
        added = {**item, "status": "in_progress", "arguments": ""}
        yield "response.output_item.added", {"output_index": place, "item": added}
        at = {"item_id": item["id"], "output_index": place}
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
            told = {"type": kind, "sequence_number": self._numbers, **held}
            self._numbers += 1
            found.append(sse.event(kind, _encode(told)))
        return found


def _has_words(message: Message) -> bool:
    """A reply without calls always has words, if only ""."""
    return bool(message.text) or not message.tool_calls


def _cut(text: str, tokens: list[str]) -> list[tuple[str, range]]:
    """The pieces of a text with the places of their tokens, which all come with the first piece
    where the tokens cannot be told apart by piece."""
    found = sse.spelled(tokens, text)
    if found is not None:
        return found
    first, none = range(len(tokens)), range(0)
    return [(piece, none if place else first) for place, piece in enumerate(sse.pieces(text))]
