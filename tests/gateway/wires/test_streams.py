"""A stream that was told bit by bit adds up to the answer, on every wire, wherever it was cut."""

import json
import random

import pytest

from holdfast.gateway.protocol.messages import (
    Answer,
    AnswerDelta,
    EventStream,
    GenerationRequest,
    RequestRejected,
    StreamMismatch,
)
from holdfast.gateway.wires.all import WIRES
from holdfast.records.message import user
from support.gateway.openai_answers import CALL, TEXT, answered, choice

CHAT, LEGACY, RESPONSES, MESSAGES = WIRES
ASK = GenerationRequest("m", (user("hello"),), stream=True)
REASONING = "Let me think.\n\nOnce more: \u2028 naïve 🌧 " * 4
ANSWERS = {
    "text": answered(choice(TEXT)),
    "reasoning and text": answered(choice(TEXT, reasoning=REASONING)),
    "text and a call": answered(choice(TEXT, calls=(CALL,))),
    "reasoning and a call": answered(choice("", reasoning=REASONING, calls=(CALL,))),
    "only reasoning": answered(choice("", reasoning=REASONING)),
    "all of it": answered(choice(TEXT, reasoning=REASONING, calls=(CALL, CALL))),
}


def parsed(events: list[bytes]) -> list[dict]:
    lines = [line for event in events for line in event.split(b"\n") if line.startswith(b"data: {")]
    return [json.loads(line[6:]) for line in lines]


def chat_sum(events: list[bytes], index: int = 0) -> tuple[str, str, list[str]]:
    """Reasoning, text and the arguments of calls."""
    reasoning = text = ""
    calls: dict[int, str] = {}
    for chunk in parsed(events):
        for item in chunk["choices"]:
            if item["index"] == index:
                delta = item["delta"]
                reasoning += delta.get("reasoning_content") or ""
                text += delta.get("content") or ""
                for part in delta.get("tool_calls", ()):
                    arguments = part["function"].get("arguments", "")
                    calls[part["index"]] = calls.get(part["index"], "") + arguments
    return reasoning, text, list(calls.values())


def messages_sum(events: list[bytes]) -> tuple[str, str, list[str]]:
    fields: dict[int, dict] = {}
    for event in parsed(events):
        if event["type"] == "content_block_start":
            assert event["index"] == len(fields), "blocks follow each other"
            fields[event["index"]] = {"kind": event["content_block"]["type"], "said": "", "open": 1}
        if event["type"] == "content_block_delta":
            delta = event["delta"]
            message = next(
                (delta[k] for k in ("text", "thinking", "partial_json") if k in delta), ""
            )
            assert fields[event["index"]]["open"]
            fields[event["index"]]["said"] += message
        if event["type"] == "content_block_stop":
            fields[event["index"]]["open"] = 0
    assert not any(field["open"] for field in fields.values())
    kinds = {kind: [field["said"] for field in fields.values() if field["kind"] == kind]
             for kind in ("thinking", "text", "tool_use")}  # fmt: skip
    return "".join(kinds["thinking"]), "".join(kinds["text"]), kinds["tool_use"]


def responses_sum(events: list[bytes]) -> tuple[str, str, list[str]]:
    fields: dict[str, str] = {}
    items, messages = [], parsed(events)
    for number, event in enumerate(messages):
        assert event["sequence_number"] == number
        if event["type"].endswith(".delta"):
            fields[event["item_id"]] = fields.get(event["item_id"], "") + event["delta"]
        if event["type"] == "response.output_item.added":
            assert event["output_index"] == len(items), "items follow each other"
        if event["type"] == "response.output_item.done":
            items.append(event["item"])
    assert messages[-1]["response"]["output"] == items
    for item in items:
        whole = item.get("arguments") or "".join(part["text"] for part in item.get("content", ()))
        assert fields.get(item["id"], "") == whole
    kinds = {kind: [fields.get(item["id"], "") for item in items if item["type"] == kind]
             for kind in ("reasoning", "message", "function_call")}  # fmt: skip
    return "".join(kinds["reasoning"]), "".join(kinds["message"]), kinds["function_call"]


SUMS = {CHAT: chat_sum, MESSAGES: messages_sum, RESPONSES: responses_sum}


def cut(text: str, chance: random.Random) -> list[str]:
    """A beginning of the text, in pieces."""
    end, texts, at = chance.randrange(len(text) + 1), [], 0
    while at < end:
        size = chance.randrange(1, 40)
        texts.append(text[at : min(end, at + size)])
        at += size
    return texts


def stream_answer(stream: EventStream, answer: Answer, chance: random.Random) -> list[bytes]:
    """Some of it live, in the order in which a reply is sampled, and the rest at the end."""
    message, events = answer.choices[0].message, []
    thoughts = cut(message.reasoning or "", chance)
    arguments = cut(message.text, chance) if "".join(thoughts) == (message.reasoning or "") else []
    deltas = [AnswerDelta(0, thought, True) for thought in thoughts] + [
        AnswerDelta(0, argument) for argument in arguments
    ]
    while deltas:
        size = chance.randrange(1, 4)
        events += stream.more(answer.opening, deltas[:size])
        deltas = deltas[size:]
    return events + stream.end(answer)


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("path", SUMS)
def test_a_stream_adds_up_to_its_answer_wherever_it_was_cut(path, name):
    answer, chance = ANSWERS[name], random.Random(11)
    whole = SUMS[path](WIRES[path].stream(ASK).end(answer))
    message = answer.choices[0].message
    assert whole[:2] == (message.reasoning or "", message.text)
    for _ in range(40):
        assert SUMS[path](stream_answer(WIRES[path].stream(ASK), answer, chance)) == whole


@pytest.mark.parametrize("path", SUMS)
def test_reasoning_that_goes_on_after_text_is_told_after_it(path):
    answer, stream = ANSWERS["reasoning and text"], WIRES[path].stream(ASK)
    message = [
        AnswerDelta(0, REASONING[:20], True),
        AnswerDelta(0, TEXT[:20]),
        AnswerDelta(0, REASONING[20:50], True),
    ]
    events = stream.more(answer.opening, message) + stream.end(answer)
    assert SUMS[path](events) == (REASONING, TEXT, [])


@pytest.mark.parametrize("path", WIRES)
def test_what_was_told_wrongly_has_no_end(path):
    stream = WIRES[path].stream(ASK)
    stream.more(ANSWERS["text"].opening, [AnswerDelta(0, "Something else")])
    with pytest.raises(StreamMismatch):
        stream.end(ANSWERS["text"])


def test_choices_are_told_apart_however_they_are_mixed():
    answer = answered(choice(TEXT), choice(TEXT[::-1]))
    for path in (CHAT, LEGACY):
        stream = WIRES[path].stream(ASK)
        deltas = [
            AnswerDelta(1, TEXT[::-1][:9]),
            AnswerDelta(0, TEXT[:5]),
            AnswerDelta(1, TEXT[::-1][9:30]),
        ]
        events = stream.more(answer.opening, deltas) + stream.end(answer)
        for index, text in enumerate((TEXT, TEXT[::-1])):
            if path == CHAT:
                assert chat_sum(events, index)[1] == text
            else:
                chunks = [item for event in parsed(events) for item in event["choices"]]
                assert "".join(chunk["text"] for chunk in chunks if chunk["index"] == index) == text


def test_a_chat_opens_each_choice_once_and_says_whether_there_is_text():
    for name, content in (("only reasoning", ""), ("reasoning and a call", None)):
        answer, stream = ANSWERS[name], WIRES[CHAT].stream(ASK)
        events = stream.more(answer.opening, [AnswerDelta(0, REASONING[:9], True)]) + stream.end(
            answer
        )
        deltas = [item["delta"] for event in parsed(events) for item in event["choices"]]
        assert [delta.get("role") for delta in deltas].count("assistant") == 1
        contents = [delta["content"] for delta in deltas if "content" in delta]
        assert (
            "".join(content or "" for content in contents)
            if any(x is not None for x in contents)
            else None
        ) == content


@pytest.mark.parametrize("path", WIRES)
def test_an_error_after_a_beginning_has_the_wires_shape(path):
    stream = WIRES[path].stream(ASK)
    before = stream.more(ANSWERS["text"].opening, [AnswerDelta(0, TEXT[:9])])
    (message,) = parsed([stream.error(RequestRejected(503, "gone", code="engine"))])
    if path == RESPONSES:
        assert (message["type"], message["sequence_number"]) == ("error", len(before))
    else:
        assert message["error"]["message"] == "gone"
