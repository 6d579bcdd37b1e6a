"""The responses wire by itself: what becomes of each parameter, and what is told."""

import json

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from holdfast.gateway.protocol.messages import (
    Answer,
    AnswerChoice,
    GenerationRequest,
    RequestRejected,
)
from holdfast.gateway.wires.responses.responses import OpenAIResponses
from holdfast.records.message import FunctionCall, Message, Role, ToolCall, system, user

WIRE = OpenAIResponses()
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "name": "weather", "parameters": WEATHER, "strict": True}
EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
CALLS = (
    ToolCall("call_1", FunctionCall("weather", '{"city":  "Oslo"}')),
    ToolCall("call_2", FunctionCall("weather", "{not json")),
)
FULL = Message(Role.ASSISTANT, "Let me see. " * 40, CALLS, reasoning="Two cities.")


def parsed(**parameters: object) -> GenerationRequest:
    return WIRE.parse(json.dumps({"model": "m", "input": "hi", **parameters}).encode())


def refused(**parameters: object) -> RequestRejected:
    with pytest.raises(RequestRejected) as caught:
        parsed(**parameters)
    return caught.value


def answer_of(message: Message, reason: str = "stop", **fields: object) -> Answer:
    choice = AnswerChoice(message, reason, **fields)
    return Answer("a1B2", 1_700_000_000, "m", (choice,), 12, 34, cached_tokens=5)


def formatted(ask: GenerationRequest, answer: Answer) -> dict:
    body = WIRE.format_answer(ask, answer)
    Response.model_validate_json(body)
    return json.loads(body)


def events(ask: GenerationRequest, answer: Answer) -> list[dict]:
    results = []
    for event in WIRE.stream(ask).end(answer):
        name, data, *end = event.decode().split("\n")
        assert end == ["", ""]
        results.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {results[-1]['type']}"
        EVENT.validate_python(results[-1])
    return results


# --- requests


def test_a_string_is_what_the_user_says_after_the_instructions() -> None:
    ask = parsed(instructions="Be brief.", temperature=0.5, top_p=0.9, max_output_tokens=7)
    assert ask == GenerationRequest(
        "m",
        (system("Be brief."), user("hi")),
        max_tokens=7,
        temperature=0.5,
        top_p=0.9,
        instructed=True,
    )
    assert parsed(stream=True).stream


def test_null_is_the_same_as_nothing() -> None:
    names = ["instructions", "max_output_tokens", "temperature", "top_p", "stream", "tools"]
    names += ["tool_choice", "include", "text", "reasoning", "previous_response_id", "conversation"]
    names += ["prompt", "background", "truncation", "parallel_tool_calls", "metadata", "user"]
    assert parsed(**dict.fromkeys(names)) == parsed()


def test_tools_are_those_of_chat_completions_in_one_order_and_without_strict() -> None:
    function = {"name": "weather", "description": "d", "parameters": WEATHER}
    expected = ({"type": "function", "function": function},)
    shuffled = {"strict": True, "parameters": WEATHER, "description": "d", "name": "weather"}
    ask = parsed(tools=[{**shuffled, "type": "function"}], tool_choice="auto")
    assert ask.tools == expected
    assert json.dumps(ask.tools) == json.dumps(expected)


def test_a_model_that_may_call_nothing_is_told_of_no_tools() -> None:
    assert parsed(tools=[TOOL], tool_choice="none").tools == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("metadata", {"a": "b"}),
        ("user", "u"),
        ("store", True),
        ("store", False),
        ("service_tier", "auto"),
        ("truncation", "disabled"),
        ("prompt_cache_key", "k"),
        ("safety_identifier", "s"),
        ("parallel_tool_calls", True),
        ("background", False),
        ("text", {"format": {"type": "text"}}),
        ("text", {"verbosity": "medium"}),
        ("reasoning", {"summary": "auto", "effort": None}),
        ("include", ["reasoning.encrypted_content", "file_search_call.results"]),
        ("top_logprobs", 0),
        ("max_tool_calls", 3),
        ("stream_options", {"include_obfuscation": False}),
        ("client_metadata", {"session": "1"}),
        ("prompt_cache_options", {"mode": "implicit"}),
    ],
)
def test_what_changes_no_sample_is_accepted(name: str, value: object) -> None:
    assert parsed(**{name: value}) == parsed()


@pytest.mark.parametrize(
    ("name", "value", "param"),
    [
        ("previous_response_id", "resp_1", "previous_response_id"),
        ("conversation", "conv_1", "conversation"),
        ("conversation", {"id": "conv_1"}, "conversation"),
        ("prompt", {"id": "p"}, "prompt"),
        ("background", True, "background"),
        ("background", 0, "background"),
        ("truncation", "auto", "truncation"),
        ("tool_choice", "required", "tool_choice"),
        ("tool_choice", {"type": "function", "name": "weather"}, "tool_choice"),
        ("text", {"format": {"type": "xml"}}, "text.format.type"),
        ("text", {"format": {"type": "json_schema", "name": "x"}}, "text.format.schema"),
        ("text", {"verbosity": "low"}, "text.verbosity"),
        ("reasoning", {"effort": "colossal"}, "reasoning.effort"),
        ("reasoning", {"colour": "red"}, "reasoning.colour"),
        ("include", ["everything"], "include[0]"),
        ("top_logprobs", 3, "top_logprobs"),
        ("context_management", [{"type": "compaction"}], "context_management"),
        ("prompt_cache_options", {"prewarm": True}, "prompt_cache_options.prewarm"),
        ("temperature", 3, "temperature"),
        ("temperature", "hot", "temperature"),
        ("max_output_tokens", 0, "max_output_tokens"),
        ("max_output_tokens", True, "max_output_tokens"),
        ("stream", "yes", "stream"),
        ("model", "", "model"),
        ("input", [], "input"),
        ("input", 3, "input"),
        ("input", ["hi"], "input[0]"),
        ("input", [{"type": "item_reference", "id": "msg_1"}], "input[0]"),
        ("input", [{"id": "msg_1"}], "input[0]"),
        ("input", [{"type": "web_search_call", "id": "ws_1"}], "input[0].type"),
        ("input", [{"role": "tool", "content": "x"}], "input[0].role"),
        ("input", [{"role": "user"}], "input[0].content"),
        ("input", [{"role": "user", "content": "x", "mood": "!"}], "input[0].mood"),
        (
            "input",
            [{"role": "user", "content": [{"type": "input_image", "image_url": "u"}]}],
            "input[0].content[0].image_url",
        ),
        (
            "input",
            [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}],
            "input[0].content[0].file_id",
        ),
        (
            "input",
            [
                {
                    "role": "assistant",
                    "content": [{"type": "input_image", "image_url": "data:image/"}],
                }
            ],
            "input[0].content",
        ),
        (
            "input",
            [{"type": "function_call", "name": "f", "arguments": "{}"}],
            "input[0].call_id",
        ),
        ("tools", [{"type": "function", "name": ""}], "tools[0].name"),
        ("tools", [{**TOOL, "colour": 1}], "tools[0].colour"),
        ("seed", 1, "seed"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(name: str, value: object, param: str) -> None:
    refusal = refused(**{name: value})
    assert (refusal.status, refusal.param) == (400, param)
    error = json.loads(WIRE.format_error(refusal))["error"]
    assert error["type"] == "invalid_request_error"
    assert error["code"]
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "kind", ["web_search", "file_search", "computer", "mcp", "code_interpreter", "custom", "shell"]
)
def test_built_in_tools_are_refused_by_their_type(kind: str) -> None:
    refusal = refused(tools=[TOOL, {"type": kind, "name": "x"}])
    assert refusal.param == "tools[1].type"
    assert kind in refusal.message


def test_state_on_the_server_is_refused_with_what_to_do_instead() -> None:
    for name in ("previous_response_id", "conversation"):
        assert "whole conversation as 'input'" in refused(**{name: "resp_1"}).message


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"null", b"{", b'{"model": "m"}', b'{"input": "x"}', b'{"model": 1e999}']
)
def test_a_malformed_body_is_a_400(body: bytes) -> None:
    with pytest.raises(RequestRejected) as caught:
        WIRE.parse(body)
    assert caught.value.status == 400


def test_schemas_that_nobody_could_record_are_refused() -> None:
    deep: dict[str, object] = {}
    for _ in range(150):
        deep = {"properties": deep}
    assert refused(tools=[{**TOOL, "parameters": deep}]).param == "tools"
    assert refused(tools=[{**TOOL, "parameters": {"maximum": 2**70}}]).param == "tools"


# --- answers


def test_an_answer_is_reasoning_then_words_then_calls() -> None:
    ask = parsed(instructions="Be brief.", tools=[TOOL], temperature=0.5)
    reply = formatted(ask, answer_of(FULL, "tool_calls"))
    assert (reply["id"], reply["object"], reply["status"]) == ("resp_a1B2", "response", "completed")
    assert [item["type"] for item in reply["output"]] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
    ]
    assert [item["id"] for item in reply["output"]] == [
        "rs_a1B2_0",
        "msg_a1B2_1",
        "fc_a1B2_2",
        "fc_a1B2_3",
    ]
    assert {item["status"] for item in reply["output"]} == {"completed"}
    assert [item["arguments"] for item in reply["output"][2:]] == ['{"city":  "Oslo"}', "{not json"]
    assert reply["usage"] == {
        "input_tokens": 12,
        "input_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 0},
        "output_tokens": 34,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 46,
    }
    assert (reply["instructions"], reply["temperature"]) == ("Be brief.", 0.5)
    assert reply["tools"][0]["name"] == "weather"
    assert reply["tools"][0]["parameters"] == WEATHER


def test_an_answer_that_was_cut_is_incomplete_and_so_is_its_last_item() -> None:
    reply = formatted(parsed(), answer_of(FULL, "length"))
    assert reply["status"] == "incomplete"
    assert reply["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in reply["output"]] == ["completed"] * 3 + ["incomplete"]
    assert events(parsed(), answer_of(FULL, "length"))[-1]["type"] == "response.incomplete"


def test_an_empty_answer_is_an_empty_message() -> None:
    (item,) = formatted(parsed(), answer_of(Message(Role.ASSISTANT, None)))["output"]
    assert item["content"][0]["text"] == ""
    assert "response.output_text.delta" not in {
        chunk["type"] for chunk in events(parsed(), answer_of(Message(Role.ASSISTANT, "")))
    }


def test_logprobs_are_those_of_the_text() -> None:
    ask = parsed(include=["message.output_text.logprobs"])
    assert ask.logprobs
    tokens = ("<think>", "hm", "</think>", "Hel", "lo", " \ufffd", "\ufffd!", "<|end|>")
    message = Message(Role.ASSISTANT, "Hello \ufffd\ufffd!", reasoning="hm")
    logprobs = (-0.5, -1.0, -2.0, -3.0, float("-inf"), -4.0, -5.0, -6.0)
    answer = answer_of(message, tokens=tokens, logprobs=logprobs)
    results = formatted(ask, answer)["output"][1]["content"][0]["logprobs"]
    assert [(result["token"], result["logprob"]) for result in results] == [
        ("Hel", -3.0),
        ("lo", -9999.0),
        (" \ufffd", -4.0),
        ("\ufffd!", -5.0),
    ]
    deltas = [
        chunk for chunk in events(ask, answer) if chunk["type"] == "response.output_text.delta"
    ]
    assert [logprob for delta in deltas for logprob in delta["logprobs"]] == results


def test_the_events_add_up_to_the_answer() -> None:
    ask = parsed(tools=[TOOL])
    for reason in ("tool_calls", "length"):
        answer = answer_of(FULL, reason)
        chunks = events(ask, answer)
        assert [chunk["sequence_number"] for chunk in chunks] == list(range(len(chunks)))
        assert [chunk["type"] for chunk in chunks[:2]] == [
            "response.created",
            "response.in_progress",
        ]
        assert chunks[-1]["response"] == formatted(ask, answer)
        done = [chunk["item"] for chunk in chunks if chunk["type"] == "response.output_item.done"]
        assert done == chunks[-1]["response"]["output"]
        for index, item in enumerate(done):
            _check_deltas(chunks, index, item)


def _check_deltas(results: list[dict], index: int, item: dict) -> None:
    mine = [result for result in results if result.get("output_index") == index]
    whole = item["arguments"] if "arguments" in item else item["content"][0]["text"]
    assert "".join(item["delta"] for item in mine if item["type"].endswith(".delta")) == whole
    assert mine[0]["type"] == "response.output_item.added"
    assert mine[-1]["type"] == "response.output_item.done"
    assert {item["item_id"] for item in mine[1:-1]} == {item["id"]}


def test_the_same_answer_is_told_in_the_same_bytes() -> None:
    body = json.dumps({"model": "m", "input": "hi", "tools": [TOOL]}).encode()
    answer = answer_of(FULL, "tool_calls")
    again = OpenAIResponses()
    assert WIRE.format_answer(WIRE.parse(body), answer) == again.format_answer(
        again.parse(body), answer
    )
    assert WIRE.stream(WIRE.parse(body)).end(answer) == again.stream(again.parse(body)).end(answer)
