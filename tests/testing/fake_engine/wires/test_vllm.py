"""Whatever was recorded of a real engine, the fake one says in the same shape, key by key."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.testing import FakeEngine, Fault, FaultKind
from support.paths import WIRE
from support.testing.http_client import Answer, ask, body, send

TOOL_CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "x"}}</tool_call>'


@pytest.fixture(scope="module")
def tiny() -> Iterator[FakeEngine]:
    with FakeEngine(model="tiny", dialect="vllm-scale-out", replies=["@0 ab", TOOL_CALL]) as engine:
        yield engine


@pytest.fixture
def engine(tiny: FakeEngine) -> FakeEngine:
    tiny.set_faults()
    return tiny


def recorded(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((WIRE / f"{name}.json").read_text())
    return data


def exchange(engine: FakeEngine, request: dict[str, Any]) -> tuple[int, Any]:
    query = request["body"]
    data = None if query is None else json.dumps(query).encode()
    call = urllib.request.Request(engine.url + request["path"], data, method=request["method"])
    try:
        with urllib.request.urlopen(call) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def shape(value: object) -> object:
    """The keys in their order and the types; of lists, that of the first element."""
    if isinstance(value, dict):
        if value and all(isinstance(inner, float) for inner in value.values()):
            return "logprobs by token"
        return [(key, shape(inner)) for key, inner in value.items()]
    if isinstance(value, list):
        return [shape(inner) for inner in value[:1]]
    return type(value)


def streamed(response: str) -> Answer:
    return Answer(200, response.encode())


def test_streamed_completions_have_the_recorded_chunks(engine: FakeEngine) -> None:
    of_vllm = recorded("completions_stream")
    request = of_vllm["request"]["body"] | {"prompt": list(b"ours"), "max_tokens": 2}
    answer = asyncio.run(send(engine, "/v1/completions", request))
    expected = streamed(of_vllm["response"])
    assert (answer.done, expected.done) == (True, True)
    first, second, *_, last, usage = expected.events
    assert shape(second) == shape(first | {"choices": second["choices"]})
    assert [shape(event) for event in answer.events] == [shape(first), shape(last), shape(usage)]


@pytest.mark.parametrize("name", ["chat_stream", "chat_logprobs_token_ids"])
def test_chat_has_the_recorded_shape(engine: FakeEngine, name: str) -> None:
    of_vllm = recorded(name)
    request = {**of_vllm["request"]["body"], "max_completion_tokens": 2}
    answer = asyncio.run(send(engine, "/v1/chat/completions", request))
    if name == "chat_stream":
        expected, ours = streamed(of_vllm["response"]).events, answer.events
        telling = (0, 1, -2, -1)
        assert [shape(ours[n]) for n in telling] == [shape(expected[n]) for n in telling]
        return
    expected_one = of_vllm["response"]
    for item in expected_one["choices"][0]["logprobs"]["content"]:
        item["top_logprobs"] = []  # We list none.
    assert shape(answer.json) == shape(expected_one)


def test_a_tool_call_has_the_recorded_shape(engine: FakeEngine) -> None:
    of_vllm = recorded("chat_tools_named")
    query = of_vllm["request"]["body"]
    turn = [{"role": "assistant", "content": "so"}, {"role": "user", "content": "and?"}]
    request = {**query, "messages": query["messages"] + turn, "max_completion_tokens": 200}
    request["seed"] = 1
    result = asyncio.run(send(engine, "/v1/chat/completions", request)).json
    expected = of_vllm["response"]
    assert result["choices"][0]["message"].pop("content") is None
    assert expected["choices"][0]["message"].pop("content") == ""
    assert shape(result) == shape(expected)
    assert result["choices"][0]["finish_reason"] == "tool_calls"


def test_streamed_tool_calls_have_the_recorded_deltas() -> None:
    text = (WIRE / "chat_tools_stream.txt").read_text()
    expected = [event["choices"][0] for event in streamed(text).events if event["choices"]]
    tool = {"type": "function", "function": {"name": "get_weather"}}
    with FakeEngine(replies=[TOOL_CALL]) as engine:
        answer = ask(engine, "chat", stream=True, logprobs=False, tools=[tool], max_tokens=200)
    ours = [event["choices"][0] for event in answer.events if event["choices"]]

    def kinds(choices: list[Any]) -> list[object]:
        shapes = [shape(choice) for choice in choices]
        return [item for n, item in enumerate(shapes) if item not in shapes[:n]]

    # The role; nothing but ids; the name; arguments; the end.
    assert len(kinds(expected)) == 5
    assert kinds(ours) == kinds(expected)


def test_generate_has_the_recorded_shape(engine: FakeEngine) -> None:
    of_vllm = recorded("generate")
    request = {**of_vllm["request"]["body"], "token_ids": list(b"ours")}
    answer = asyncio.run(send(engine, "/inference/v1/generate", request))
    assert (answer.status, shape(answer.json)) == (200, shape(of_vllm["response"]))


def test_generate_is_refused_in_the_recorded_words_without_its_flag() -> None:
    of_vllm = recorded("generate_disabled")
    with FakeEngine(model="tiny") as engine:
        reply = exchange(engine, of_vllm["request"])
    assert reply == (of_vllm["status"], of_vllm["response"]) == (403, of_vllm["response"])


def test_an_aborted_generate_has_the_recorded_shape(engine: FakeEngine) -> None:
    engine.set_faults(Fault(FaultKind.ABORT))
    result, expected = ask(engine, "generate").json, recorded("abort_generate")
    assert result["choices"][0].pop("logprobs")
    assert expected["choices"][0].pop("logprobs") == "...", "left out where it was recorded"
    assert result.pop("prompt_token_ids")
    del expected["prompt_token_ids"]
    assert shape(result) == shape(expected)
    assert result["choices"][0]["finish_reason"] == expected["choices"][0]["finish_reason"]


def test_an_aborted_chat_stream_ends_as_recorded(engine: FakeEngine) -> None:
    engine.set_faults(Fault(FaultKind.ABORT, after=1))
    _, aborted, done = json.loads((WIRE / "chat_stream_abort_tail.json").read_text())
    request = body(engine, "chat", stream=True, stream_options=None)
    answer = asyncio.run(send(engine, "/v1/chat/completions", request))
    expected = streamed(aborted).events[0]
    ours = answer.events[-1]
    assert (answer.done, done) == (True, "data: [DONE]\n")
    # A real engine may tell of a last token and of its end at once.
    for item in (ours, expected):
        item["choices"][0]["logprobs"] = item["choices"][0]["token_ids"] = None
    assert shape(ours) == shape(expected)
    assert ours["choices"][0]["finish_reason"] == "abort"


@pytest.mark.parametrize(
    "name", ["version", "is_paused", "load", "weight_info", "pause_keep", "pause_abort", "resume"]
)
def test_the_other_endpoints_answer_as_recorded(engine: FakeEngine, name: str) -> None:
    of_vllm = recorded(name)
    before = urllib.request.Request(f"{engine.url}/resume", method="POST")
    urllib.request.urlopen(before).close()
    assert exchange(engine, of_vllm["request"]) == (of_vllm["status"], of_vllm["response"])
    urllib.request.urlopen(before).close()


def test_the_listing_of_an_engine_that_describes_nothing_is_the_recorded_one() -> None:
    of_vllm = recorded("models")
    with FakeEngine(model="tiny", describes=False) as engine:
        status, reply = exchange(engine, of_vllm["request"])
    assert (status, shape(reply)) == (200, shape(of_vllm["response"]))


def test_a_new_weight_version_is_acknowledged_as_recorded() -> None:
    of_vllm = recorded("update_weight_version")
    with FakeEngine(model="tiny") as engine:
        assert exchange(engine, of_vllm["request"]) == (200, of_vllm["response"])
        message = exchange(engine, recorded("weight_info")["request"])[1]
    assert message == {"weight_version": of_vllm["response"]["new_version"]}


def test_a_chat_keeps_to_structured_outputs() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    with FakeEngine() as engine:
        result = ask(engine, "chat", structured_outputs={"json": schema}, max_tokens=100).json
    assert json.loads(result["choices"][0]["message"]["content"]).keys() == {"city"}


@pytest.mark.parametrize("top_p", [0, 1.5])
def test_a_top_p_that_means_nothing_is_rejected(engine: FakeEngine, top_p: float) -> None:
    for wire in ("completions", "chat"):
        answer = ask(engine, wire, top_p=top_p)
        assert (answer.status, answer.json["error"]["param"]) == (400, "top_p")
