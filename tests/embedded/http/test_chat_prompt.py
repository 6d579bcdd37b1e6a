"""`/v1/chat/completions` over a real socket."""

import itertools
from typing import Any

import msgspec
import pytest

from holdfast.embedded.http.parse_request import ParsedRequest
from holdfast.embedded.http.response import EngineResponse
from holdfast.embedded.scheduler.detokenizer import GenerationText
from holdfast.embedded.scheduler.engine import DecodeEngine
from holdfast.embedded.scheduler.generation import (
    Drawn,
    Finish,
    Generation,
    TokenDelta,
    TokenSampling,
)
from holdfast.engine_api.responses import ChatShape
from support.embedded.client import NAME, Client
from support.embedded.requests import keys, through
from support.paths import WIRE

HELLO = [{"role": "user", "content": "The sum"}]
TOOLS = [{"type": "function", "function": {"name": "calculator", "parameters": {}}}]
PATH = "/v1/chat/completions"


def chat_request(**changes: Any) -> dict[str, Any]:
    return {"messages": HELLO, "max_tokens": 6, "seed": 7, "return_token_ids": True, **changes}


def test_the_shape_is_that_of_vllm(engine: DecodeEngine) -> None:
    theirs = msgspec.json.decode((WIRE / "chat_logprobs_token_ids.json").read_bytes())["response"]
    answer = through(engine, lambda c: c.chat(**chat_request(logprobs=True, top_logprobs=1)))
    spans = answer["choices"][0].pop("weight_versions")
    assert spans == [{"version": "v1", "start": 0, "end": 6}]
    assert keys(answer) == keys(theirs)


def test_the_shape_of_a_stream_is_that_of_vllm(engine: DecodeEngine) -> None:
    text = msgspec.json.decode((WIRE / "chat_stream.json").read_bytes())["response"]
    lines = [line.removeprefix("data: ") for line in text.strip().split("\n\n")]
    theirs = [keys(msgspec.json.decode(line)) for line in lines[:-1]]
    body = chat_request(
        model=NAME, max_tokens=4, logprobs=True, stream_options={"include_usage": True}
    )

    async def ask(client: Client) -> Any:
        for seed in range(1000):  # Until no token is only a part of a character.
            events = await client.stream(PATH, {**body, "seed": seed})
            if all("content" in event["choices"][0]["delta"] for event in events[:-2]):
                break
        return events

    ours = through(engine, ask)
    assert ours[-1] == "[DONE]"
    ours[-3]["choices"][0].pop("weight_versions")
    assert [keys(item) for item in ours[:-1]] == theirs


def test_a_stream_without_ids_and_usage_has_the_keys_of_vllm(engine: DecodeEngine) -> None:
    body = {"model": NAME, **chat_request(max_tokens=2, return_token_ids=False)}
    first, second, last, done = through(engine, lambda client: client.stream(PATH, body))
    assert (first["prompt_token_ids"], second["choices"][0]["token_ids"]) == (None, None)
    assert "system_fingerprint" not in second
    assert last["system_fingerprint"].startswith("holdfast-")
    assert done == "[DONE]"


def test_messages_are_rendered_by_the_template(engine: DecodeEngine) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "The "},
                                          {"type": "text", "text": "sum"}]}]  # fmt: skip

    async def ask(client: Client) -> Any:
        return [
            await client.chat(**chat_request()),
            await client.chat(**chat_request(messages=parts, tool_choice="none", tools=TOOLS)),
            await client.chat(**chat_request(tools=TOOLS)),
        ]

    plain, same, tools = through(engine, ask)
    text = "<|im_start|>user\nThe sum<|im_end|>\n<|im_start|>assistant\n"
    expected = engine.model.tokenizer(text)["input_ids"]
    assert plain["prompt_token_ids"] == same["prompt_token_ids"] == expected
    assert "calculator" in engine.model.decode(tools["prompt_token_ids"], skip_special_tokens=True)


def test_a_tool_calls_arguments_reach_the_template_as_an_object(engine: DecodeEngine) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": "2+2"}'}}
    messages = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}]
    answer = through(engine, lambda client: client.chat(**chat_request(messages=messages)))
    prompt = engine.model.decode(answer["prompt_token_ids"], skip_special_tokens=False)
    assert "<tool_call>2+2</tool_call>" in prompt


def test_chat_samples_what_completions_samples_from_the_same_ids(engine: DecodeEngine) -> None:
    async def ask(client: Client) -> Any:
        chat = await client.chat(**chat_request(logprobs=True))
        return chat, await client.complete(prompt=chat["prompt_token_ids"], max_tokens=6)

    chat, plain = through(engine, ask)
    assert chat["choices"][0]["token_ids"] == plain["choices"][0]["token_ids"]
    assert chat["choices"][0]["message"]["content"] == plain["choices"][0]["text"]
    logprobs = [item["logprob"] for item in chat["choices"][0]["logprobs"]["content"]]
    assert logprobs == plain["choices"][0]["logprobs"]["token_logprobs"]


def test_max_tokens_defaults_to_what_fits(engine: DecodeEngine) -> None:
    async def ask(client: Client) -> Any:
        messages = [{"role": "user", "content": "x" * (engine.model.max_length - 40)}]
        body = {**chat_request(ignore_eos=True, messages=messages), "max_tokens": None}
        return await client.chat(**body)

    answer = through(engine, ask)
    assert answer["usage"]["total_tokens"] == engine.model.max_length
    assert answer["choices"][0]["finish_reason"] == "length"


def test_a_stream_says_what_the_whole_answer_says(engine: DecodeEngine) -> None:
    body = chat_request(model=NAME, max_tokens=20, n=2, tools=TOOLS)

    async def ask(client: Client) -> Any:
        return await client.ok(PATH, body), await client.stream(PATH, body)

    whole, events = through(engine, ask)
    chunks = [event["choices"][0] for event in events[:-1]]
    assert [chunk["delta"].get("role") for chunk in chunks[:3]] == ["assistant", "assistant", None]
    for choice in whole["choices"]:
        parts = [chunk for chunk in chunks if chunk["index"] == choice["index"]]
        ids = itertools.chain(*(part.get("token_ids", []) for part in parts))
        assert list(ids) == choice["token_ids"]
        message = "".join(part["delta"].get("content", "") for part in parts)
        assert message == choice["message"]["content"]
        assert parts[-1]["finish_reason"] == choice["finish_reason"]


CALL = '<tool_call>{"name": "calculator", "arguments": {"x": "1 + 2"}}</tool_call>'


def response_of(
    engine: DecodeEngine, text: str, *, stream: bool = False
) -> tuple[EngineResponse, list[TokenDelta]]:
    """The response to a request whose generation has this text."""
    ids = [*engine.model.tokenizer(text)["input_ids"], 2]
    sampling = TokenSampling(max_tokens=len(ids))
    request = ParsedRequest(
        prompts=[[5]], n=1, sampling=sampling, max_tokens=len(ids), stop=(), stream=stream,
        usage_chunk=False, token_ids=True, prompt_ids=True, skip_special_tokens=False,
        include_stop=False, tools=True,
    )  # fmt: skip
    response = EngineResponse(request, engine.model, served=NAME, request_id="1", shape=ChatShape)
    text_of = GenerationText(engine.model.decode, skip_special_tokens=False)
    generation = Generation([5], sampling, sink=lambda *_: None, text=text_of, stream=stream)
    response.generations = [generation]
    eos = frozenset([2])
    return response, [generation.add(Drawn(token, -1.0, 1), version="v1", eos=eos) for token in ids]


def test_tool_calls_are_parsed_and_end_the_turn(engine: DecodeEngine) -> None:
    text = f"I ask.\n{CALL}\n{CALL}"
    choice = response_of(engine, text)[0].whole()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "I ask.\n"
    functions = [call["function"] for call in choice["message"]["tool_calls"]]
    assert functions == [{"name": "calculator", "arguments": '{"x": "1 + 2"}'}] * 2
    response, deltas = response_of(engine, text, stream=True)
    chunks = [response.chunk(0, delta)["choices"][0] for delta in deltas]
    calls = [call for chunk in chunks for call in chunk["delta"].get("tool_calls", [])]
    assert [call["index"] for call in calls] == [0, 1]
    assert [call["function"] for call in calls] == functions
    assert "".join(chunk["delta"].get("content") or "" for chunk in chunks) == "I ask.\n"
    ids = [token for chunk in chunks for token in chunk["token_ids"]]
    assert ids == response.generations[0].tokens
    assert chunks[-1]["finish_reason"] == "tool_calls"


def test_a_call_that_is_no_call_stays_text(engine: DecodeEngine) -> None:
    response, _ = response_of(engine, "<tool_call>calculator(1)</tool_call>")
    choice = response.whole()["choices"][0]
    assert choice["message"]["content"] == "<tool_call>calculator(1)</tool_call>"
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == Finish.STOP


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"messages": "x"}, "body.messages"),
        ({"messages": [{"content": "x"}]}, "body.messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
         "body.messages.content"),
        ({"tools": "x"}, "body.tools"),
        ({"tools": TOOLS, "tool_choice": "required"}, 'tool_choice="required"'),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"logprobs": 3}, "body.logprobs"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ],
)  # fmt: skip
def test_a_bad_chat_request_is_refused_by_name(
    engine: DecodeEngine, changes: dict[str, Any], param: str
) -> None:
    body = {"model": NAME, **chat_request(**changes)}
    status, answer = through(engine, lambda client: client.post(PATH, body))
    assert (status, answer["error"]["param"]) == (400, param)
