"""A response as the events of its stream.

The answer is known as a whole before its first event, so its deltas are always the same. What the
events add up to is the response that is told without a stream.
"""

from collections.abc import Iterator

from holdfast.gateway.exchange import Answer, Ask
from holdfast.gateway.wires import sse
from holdfast.gateway.wires.responses_output import Json, closing, opening

Event = tuple[str, Json]
"""Its type and what it holds besides that and its number."""


def events_of(ask: Ask, answer: Answer) -> list[Json]:
    """In order, numbered from 0."""
    return [
        {"type": kind, "sequence_number": number, **held}
        for number, (kind, held) in enumerate(_events(ask, answer))
    ]


def _events(ask: Ask, answer: Answer) -> Iterator[Event]:
    opened = opening(ask, answer)
    yield "response.created", {"response": opened}
    yield "response.in_progress", {"response": opened}
    whole = closing(opened, answer)
    items = whole["output"]
    assert isinstance(items, list), "a response has its items"
    for index, item in enumerate(items):
        yield from _item(item, index)
    yield f"response.{whole['status']}", {"response": whole}


def _item(item: Json, index: int) -> Iterator[Event]:
    empty = "arguments" if item["type"] == "function_call" else "content"
    bare = {**item, "status": "in_progress", empty: "" if empty == "arguments" else []}
    yield "response.output_item.added", {"output_index": index, "item": bare}
    where = {"item_id": item["id"], "output_index": index}
    yield from _arguments(item, where) if empty == "arguments" else _parts(item, where)
    yield "response.output_item.done", {"output_index": index, "item": item}


def _arguments(item: Json, where: Json) -> Iterator[Event]:
    arguments = item["arguments"]
    assert isinstance(arguments, str), "a call has its arguments"
    for piece in sse.pieces(arguments):
        yield "response.function_call_arguments.delta", {**where, "delta": piece}
    whole = {**where, "name": item["name"], "arguments": arguments}
    yield "response.function_call_arguments.done", whole


def _parts(item: Json, where: Json) -> Iterator[Event]:
    parts = item["content"]
    assert isinstance(parts, list), "words and reasoning have parts"
    for index, part in enumerate(parts):
        here = {**where, "content_index": index}
        told = _words(part, here) if part["type"] == "output_text" else _thought(part, here)
        bare = {**part, "text": "", **({"logprobs": []} if "logprobs" in part else {})}
        yield "response.content_part.added", {**here, "part": bare}
        yield from told
        yield "response.content_part.done", {**here, "part": part}


def _words(part: Json, where: Json) -> Iterator[Event]:
    text, logprobs = part["text"], part["logprobs"]
    assert isinstance(text, str), "words are text"
    assert isinstance(logprobs, list), "words have logprobs, if only none"
    for piece, places in _cut(text, [one["token"] for one in logprobs]):
        told = [logprobs[place] for place in places]
        yield "response.output_text.delta", {**where, "delta": piece, "logprobs": told}
    yield "response.output_text.done", {**where, "text": text, "logprobs": logprobs}


def _cut(text: str, tokens: list[str]) -> list[tuple[str, range]]:
    """The pieces of a text with the places of their tokens, which all come with the first piece
    where the tokens cannot be told apart by piece."""
    found = sse.spelled(tokens, text)
    if found is not None:
        return found
    first, none = range(len(tokens)), range(0)
    return [(piece, none if place else first) for place, piece in enumerate(sse.pieces(text))]


def _thought(part: Json, where: Json) -> Iterator[Event]:
    text = part["text"]
    assert isinstance(text, str), "reasoning is text"
    for piece in sse.pieces(text):
        yield "response.reasoning_text.delta", {**where, "delta": piece}
    yield "response.reasoning_text.done", {**where, "text": text}
