"""A stream says what the plain answer says, in every wire; and stops when nobody listens."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.records.message import user
from holdfast.testing import FakeEngine
from holdfast.testing.fake_engine.options import Dialect
from support.testing.http_client import MESSAGES, PATHS, PROMPT, Sampled, ask, body, sampled, send

WIRES: dict[str, Dialect] = {
    "completions": "vllm",
    "chat": "vllm",
    "generate": "vllm-scale-out",
    "sglang": "sglang",
    "fireworks": "fireworks",
}
CALL = '<tool_call>{"name": "add", "arguments": {"a": {n}, "b": [1, {"c": 2}]}}</tool_call>'
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module", params=WIRES)
def wire_and_engine(request: pytest.FixtureRequest) -> Iterator[tuple[str, FakeEngine]]:
    with FakeEngine(dialect=WIRES[request.param], mean_length=40, tokens_per_chunk=3) as engine:
        yield request.param, engine


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


@pytest.mark.parametrize("stop", [None, ["e"], ["r o", "zq"]])
def test_a_stream_says_what_the_plain_answer_says(
    wire_and_engine: tuple[str, FakeEngine], stop: list[str] | None
) -> None:
    wire, engine = wire_and_engine
    stops = {} if stop is None else {"stop": stop}
    for seed in range(8):
        plain = ask(engine, wire, seed=seed, **stops)
        streamed = ask(engine, wire, seed=seed, stream=True, **stops)
        assert (plain.status, streamed.status, streamed.done) == (200, 200, True)
        once = sampled(wire, [plain.json])
        assert sampled(wire, streamed.events) == once
        assert once.prompt == PROMPT
        assert len(once.logprobs) == len(once.ids) > 0
        assert once.finish in ("stop", "length")


def test_every_wire_samples_the_same(wire_and_engine: tuple[str, FakeEngine]) -> None:
    wire, engine = wire_and_engine
    completion = sampled(wire, [ask(engine, wire).json])
    assert bytes(completion.ids[:12]) == b"  yk agp oep"
    assert completion.logprobs[:2] == [-3.7578125, -1.74609375]
    if wire != "generate":  # It knows no text.
        assert completion.text.encode() == bytes(token for token in completion.ids if token < 256)


def test_chunks_have_as_many_tokens_as_they_are_told(
    wire_and_engine: tuple[str, FakeEngine],
) -> None:
    wire, engine = wire_and_engine
    events = ask(engine, wire, stream=True, max_tokens=8).events
    so_far = [len(sampled(wire, events[: n + 1]).ids) for n in range(len(events))]
    sizes = [now - before for before, now in zip([0, *so_far], so_far, strict=False)]
    assert [size for size in sizes if size] == [3, 3, 2]


def test_a_client_that_leaves_stops_its_stream() -> None:
    with FakeEngine(mean_length=0, token_delay=0.005) as engine:
        request = body(engine, "completions", max_tokens=100_000, stream=True)
        path = PATHS["completions"]
        asyncio.run(send(engine, path, request, until=lambda read: read.count(b"data:") > 3))
        until(lambda: engine.stats().in_flight == 0)
        stats = engine.stats()
        assert 3 < stats.tokens < 1000
        assert (stats.streams, stats.streams_cut, stats.completions) == (1, 1, 0)
        assert engine.calls()[0].stream


def test_tokens_are_counted_as_they_are_sampled() -> None:
    async def leave(engine: FakeEngine) -> None:
        request = body(engine, "completions", max_tokens=100_000)
        sending = asyncio.create_task(send(engine, "/v1/completions", request))
        await asyncio.to_thread(until, lambda: engine.stats().tokens > 0)
        sending.cancel()
        await asyncio.wait({sending})
        assert sending.cancelled()

    with FakeEngine(mean_length=0, token_delay=0.01) as engine:
        asyncio.run(leave(engine))
        until(lambda: engine.stats().in_flight == 0)
        assert 0 < engine.stats().tokens < 100_000, "a plain answer that nobody waited for"
        assert engine.stats().completions == 0


def test_streams_run_beside_each_other() -> None:
    async def both(engine: FakeEngine) -> list[Sampled]:
        requests = [body(engine, "completions", seed=n, stream=True) for n in range(20)]
        answers = await asyncio.gather(
            *(send(engine, "/v1/completions", request) for request in requests)
        )
        return [sampled("completions", answer.events) for answer in answers]

    with FakeEngine(token_delay=0.001) as engine:
        result = asyncio.run(both(engine))
        alone = [
            sampled("completions", [ask(engine, "completions", seed=n).json]) for n in range(20)
        ]
    assert result == alone


# --- what is special of each


def test_the_usage_comes_only_when_asked_for() -> None:
    with FakeEngine() as engine:
        with_usage = ask(engine, "completions", stream=True).events
        without = ask(engine, "completions", stream=True, stream_options=None).events
    assert with_usage[-1]["usage"]["completion_tokens"] == len(with_usage) - 1
    assert all(event["choices"] for event in without)
    assert "system_fingerprint" in without[-1]


def test_sglang_repeats_what_came_before_unless_it_streams_incrementally() -> None:
    with FakeEngine(dialect="sglang") as engine:
        repeating = ask(engine, "sglang", stream=True).events
    with FakeEngine(dialect="sglang", incremental_stream=True) as engine:
        incremental = ask(engine, "sglang", stream=True).events
    assert [len(event["output_ids"]) for event in repeating] == list(range(1, len(repeating) + 1))
    assert [len(event["output_ids"]) for event in incremental] == [1] * len(repeating)
    for key in ("output_ids", "text"):
        together = incremental[0][key]
        for event in incremental[1:]:
            together += event[key]
        assert together == repeating[-1][key]
    counts = [event["meta_info"]["completion_tokens"] for event in incremental]
    assert counts == list(range(1, len(repeating) + 1)), "counted from the beginning all the same"
    assert [len(event["meta_info"]["output_token_logprobs"]) for event in incremental] == [1] * len(
        counts
    )


def test_the_spans_of_generate_are_in_the_last_chunk_alone() -> None:
    with FakeEngine(dialect="vllm-scale-out") as engine:
        *before, last = ask(engine, "generate", stream=True, stream_options=None).events
    assert before
    assert all(event["choices"][0]["weight_versions"] is None for event in before)
    spans = last["choices"][0]["weight_versions"]
    assert spans == [{"version": "default", "start": 0, "end": len(before) + 1}]


# --- chat


def chat(engine: FakeEngine, **fields: Any) -> Any:
    return ask(engine, "chat", max_tokens=300, tools=[TOOL], **fields)


def replayed(events: list[Any]) -> tuple[str, list[dict[str, str]], str]:
    """As a client of OpenAI's puts chunks together."""
    content, calls, finish = "", [], None
    for event in events:
        for choice in event["choices"]:
            finish = choice["finish_reason"] or finish
            content += choice["delta"].get("content") or ""
            for call in choice["delta"].get("tool_calls", ()):
                if call["index"] == len(calls):
                    calls.append({"id": call["id"], "name": call["function"]["name"], "text": ""})
                calls[call["index"]]["text"] += call["function"].get("arguments", "")
    assert finish is not None
    return content, calls, finish


@pytest.mark.parametrize("per_chunk", [1, 5])
def test_tool_calls_of_a_stream_are_those_of_the_plain_answer(per_chunk: int) -> None:
    replies = [f"first {CALL} then {CALL}", CALL, CALL + CALL, "no < call <tool", "<tool_call>{"]
    seen = set()
    with FakeEngine(replies=replies, tokens_per_chunk=per_chunk) as engine:
        for seed in range(20):
            choice = chat(engine, seed=seed).json["choices"][0]
            seen.add(same_calls(choice, chat(engine, seed=seed, stream=True).events))
    assert seen == {0, 1, 2}, "some seeds chose each kind of reply"


def same_calls(choice: Any, events: list[Any]) -> int:
    """How many calls there are, after comparing them."""
    content, calls, finish = replayed(events)
    expected = choice["message"].get("tool_calls", [])
    assert [(call["id"], call["name"]) for call in calls] == [
        (call["id"], call["function"]["name"]) for call in expected
    ]
    assert [json.loads(call["text"]) for call in calls] == [
        json.loads(call["function"]["arguments"]) for call in expected
    ]
    assert finish == choice["finish_reason"] == ("tool_calls" if calls else "stop")
    # A plain answer trims what is around its calls.
    assert content.strip() == (choice["message"]["content"] or "")
    return len(calls)


def test_chunks_without_a_delta_still_carry_their_token_ids() -> None:
    with FakeEngine(replies=[CALL]) as engine:
        plain, streamed = chat(engine).json, chat(engine, stream=True, logprobs=False).events
        quiet = chat(engine, stream=True, logprobs=False, return_token_ids=False).events
    choices = [event["choices"][0] for event in streamed if event["choices"]]
    empty = [choice for choice in choices[1:] if not choice["delta"]]
    assert len(empty) > 20
    assert all(len(choice["token_ids"]) == 1 for choice in empty)
    ids = [token for choice in choices[1:] for token in choice["token_ids"]]
    assert ids == plain["choices"][0]["token_ids"]
    # Who wants no ids is spared the chunks that would hold nothing else.
    assert len(quiet) < len(streamed) - 20


def test_without_tools_a_call_is_only_text() -> None:
    with FakeEngine(replies=[CALL]) as engine:
        for more in ({"tools": None}, {"tools": [TOOL], "tool_choice": "none"}):
            choice = ask(engine, "chat", max_tokens=300, **more).json["choices"][0]
            assert choice["message"]["content"].startswith("<tool_call>")
            assert choice["finish_reason"] == "stop"


def test_chat_is_rendered_by_the_byte_renderer() -> None:
    with FakeEngine() as engine:
        result = ask(engine, "chat").json
        history = [
            *MESSAGES,
            {"role": "assistant", "content": "x"},
            {"role": "user", "content": "y"},
        ]
        longer = ask(engine, "chat", messages=history).json
    assert result["prompt_token_ids"] == list(ByteRenderer().render([user("hello")], [])) == PROMPT
    assert longer["prompt_token_ids"][: len(PROMPT)] == PROMPT
