"""Chat completions: what is understood, what is refused and how, and what is answered."""

import json
from typing import Any

import pytest

from holdfast.gateway.protocol.messages import Answer, GenerationRequest, RequestRejected, Wire
from holdfast.gateway.wires.openai.chat import OpenAIChat
from holdfast.records.message import FunctionCall, Message, Role, ToolCall
from support.gateway.openai_answers import ANSWER, CALL, TOOL, answered, choice

WIRE: Wire = OpenAIChat()
HI = [{"role": "user", "content": "hi"}]
NEEDED = {"model": "m", "messages": HI}


def ask(**more: Any) -> GenerationRequest:
    return WIRE.parse(json.dumps({**NEEDED, **more}).encode())


def refused(**more: Any) -> RequestRejected:
    with pytest.raises(RequestRejected) as caught:
        ask(**more)
    assert caught.value.status == 400
    error = json.loads(WIRE.format_error(caught.value))["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"] == caught.value.message
    assert error["param"] == caught.value.param
    return caught.value


def messages_of(*messages: dict[str, Any]) -> tuple[Message, ...]:
    return ask(messages=list(messages)).messages


def test_parameters_are_read() -> None:
    assert ask(
        max_completion_tokens=7,
        temperature=0,
        top_p=0.5,
        stop=["a", "b", "c", "d", "e"],
        n=3,
        stream=True,
        stream_options={"include_usage": True},
        logprobs=True,
        top_logprobs=0,
        tools=[TOOL],
        tool_choice="auto",
    ) == GenerationRequest(
        "m",
        (Message(Role.USER, "hi"),),
        tools=(TOOL,),
        max_tokens=7,
        temperature=0.0,
        top_p=0.5,
        stop=("a", "b", "c", "d", "e"),
        n=3,
        stream=True,
        logprobs=True,
        include_usage=True,
    )


def test_what_is_absent_or_null_is_not_asked_for() -> None:
    names = ("max_tokens", "temperature", "top_p", "stop", "n", "stream", "tools", "seed", "user")
    plain = GenerationRequest("m", (Message(Role.USER, "hi"),))
    assert ask() == plain
    assert ask(**dict.fromkeys(names)) == plain


def test_one_stop_string_is_a_list_of_one() -> None:
    assert ask(stop="x").stop == ("x",)


def test_every_role_is_a_message() -> None:
    calls = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    assert messages_of(
        {"role": "system", "content": "s"},
        {"role": "developer", "content": "d", "name": "dev"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "content": [{"type": "text", "text": "r"}], "tool_call_id": "c1"},
        {"role": "assistant", "content": "done", "reasoning_content": "so"},
    ) == (
        Message(Role.SYSTEM, "s"),
        Message(Role.DEVELOPER, "d", name="dev"),
        Message(Role.USER, "ab"),
        Message(Role.ASSISTANT, "", tool_calls=(ToolCall("c1", FunctionCall("f", "{}")),)),
        Message(Role.TOOL, "r", tool_call_id="c1"),
        Message(Role.ASSISTANT, "done", reasoning="so"),
    )


@pytest.mark.parametrize(
    "echo",
    [
        {"content": "x", "refusal": None, "annotations": [], "audio": None, "tool_calls": None},
        {"content": [{"type": "text", "text": "x"}], "function_call": None, "tool_calls": []},
        {"content": "x", "reasoning": "", "reasoning_content": None},
    ],
)
def test_an_answer_told_back_is_the_same_message_however_a_library_says_it(
    echo: dict[str, Any],
) -> None:
    assert messages_of({"role": "assistant", **echo}) == (Message(Role.ASSISTANT, "x"),)


def test_an_own_answer_told_back_is_the_message_that_was_answered() -> None:
    data = json.loads(WIRE.format_answer(ask(), ANSWER))
    for item, choice_ in zip(data["choices"], ANSWER.choices, strict=True):
        assert messages_of(item["message"]) == (choice_.message,)


def test_reasoning_is_kept_under_either_name_and_refused_where_they_differ() -> None:
    base = {"role": "assistant", "content": "x"}
    assert messages_of({**base, "reasoning": "r"})[0].reasoning == "r"
    assert messages_of({**base, "reasoning": "r", "reasoning_content": "r"})[0].reasoning == "r"
    refusal = refused(messages=[{**base, "reasoning": "r", "reasoning_content": "other"}])
    assert refusal.param == "messages[0].reasoning"


@pytest.mark.parametrize("kind", ["input_audio", "file", "video_url", "refusal"])
def test_parts_that_no_engine_reads_are_refused_by_their_place(kind: str) -> None:
    parts = [{"type": "text", "text": "see"}, {"type": kind, kind: {"url": "data:,"}}]
    refusal = refused(messages=[*HI, {"role": "user", "content": parts}])
    assert (refusal.param, refusal.code) == ("messages[1].content[1].type", "unsupported_value")
    assert "image_url" in refusal.message


def test_tools_are_kept_as_sent_but_for_strict() -> None:
    sent: dict[str, Any] = {
        "type": "function",
        "function": {"strict": True, "parameters": {"b": 1, "a": {"strict": True}}, "name": "f"},
    }
    (kept,) = ask(tools=[sent]).tools
    assert json.dumps(kept) == json.dumps(
        {
            "type": "function",
            "function": {"parameters": sent["function"]["parameters"], "name": "f"},
        }
    )


def test_no_tools_are_shown_where_none_may_be_called() -> None:
    assert ask(tools=[TOOL], tool_choice="none").tools == ()


HARMLESS: list[dict[str, Any]] = [
    {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "flex"},
    {"safety_identifier": "s", "prompt_cache_key": "k", "prompt_cache_retention": "24h"},
    {"parallel_tool_calls": True, "response_format": {"type": "text"}, "modalities": ["text"]},
    {"length_penalty": 1, "bad_words": [], "top_k": -1, "min_p": None, "min_tokens": 0},
    {"chat_template_kwargs": None, "repetition_penalty": None, "stop": [], "tools": []},
    {"stream_options": {"include_usage": False, "include_obfuscation": False}},
]


@pytest.mark.parametrize("harmless", HARMLESS)
def test_what_changes_nothing_is_accepted(harmless: dict[str, Any]) -> None:
    assert ask(**harmless) == ask()


UNSUPPORTED: list[tuple[str, Any]] = [
    ("functions", []),
    ("function_call", "auto"),
    ("top_logprobs", 2),
    ("tool_choice", "sometimes"),
    ("tool_choice", {"type": "allowed_tools", "allowed_tools": {}}),
    ("structured_outputs", {"regex": "a+"}),
    ("length_penalty", 0.5),
    ("bad_words", ["x"]),
    ("allowed_token_ids", [5]),
    ("min_tokens", True),
    ("chat_template", "{{ messages }}"),
    ("modalities", ["text", "audio"]),
    ("web_search_options", {}),
]


@pytest.mark.parametrize(("name", "value"), UNSUPPORTED)
def test_what_would_change_the_sample_is_refused_by_name(name: str, value: Any) -> None:
    refusal = refused(**{name: value})
    assert refusal.param == name
    assert refusal.code in {"unsupported_parameter", "unsupported_value"}
    assert f"'{name}'" in refusal.message


INVALID: list[tuple[dict[str, Any], str, str]] = [
    ({"temprature": 1}, "temprature", "unknown_parameter"),
    ({"guided_json": {}}, "guided_json", "unknown_parameter"),
    ({"stream_options": {"x": 1}}, "stream_options.x", "unknown_parameter"),
    ({"messages": [{**HI[0], "x": 1}]}, "messages[0].x", "unknown_parameter"),
    ({"model": None}, "model", "invalid_type"),
    ({"model": ""}, "model", "invalid_value"),
    ({"messages": []}, "messages", "invalid_value"),
    ({"messages": "hi"}, "messages", "invalid_type"),
    ({"messages": [*HI, {"content": "x"}]}, "messages[1].role", "missing_required_parameter"),
    ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].role", "invalid_value"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "invalid_type"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content", "invalid_value"),
    (
        {"messages": [{"role": "tool", "content": "x"}]},
        "messages[0].tool_call_id",
        "missing_required_parameter",
    ),
    ({"max_tokens": 0}, "max_tokens", "invalid_value"),
    ({"max_tokens": 2**31}, "max_tokens", "invalid_value"),
    ({"max_tokens": 10**40}, "max_tokens", "invalid_value"),
    ({"max_tokens": 1.5}, "max_tokens", "invalid_type"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens", "invalid_value"),
    ({"temperature": 2.1}, "temperature", "invalid_value"),
    ({"temperature": -0.1}, "temperature", "invalid_value"),
    ({"temperature": "1"}, "temperature", "invalid_type"),
    ({"top_p": 0}, "top_p", "invalid_value"),
    ({"top_p": 1.01}, "top_p", "invalid_value"),
    ({"min_p": 1.5}, "min_p", "invalid_value"),
    ({"presence_penalty": False}, "presence_penalty", "invalid_type"),
    ({"frequency_penalty": 2.5}, "frequency_penalty", "invalid_value"),
    ({"repetition_penalty": 0}, "repetition_penalty", "invalid_value"),
    ({"logit_bias": {"5": 101}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"99999999999": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"9999999999": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"x": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"5": "1"}}, "logit_bias", "invalid_value"),
    ({"logit_bias": [5]}, "logit_bias", "invalid_type"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]", "invalid_value"),
    ({"ignore_eos": 1}, "ignore_eos", "invalid_type"),
    ({"chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs", "invalid_value"),
    ({"n": 0}, "n", "invalid_value"),
    ({"n": 129}, "n", "invalid_value"),
    ({"n": True}, "n", "invalid_type"),
    ({"stop": ""}, "stop", "invalid_value"),
    ({"stop": ["a", ""]}, "stop[1]", "invalid_value"),
    ({"stream": 1}, "stream", "invalid_type"),
    ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type", "invalid_value"),
    (
        {"tools": [{"type": "function", "function": {}}]},
        "tools[0].function.name",
        "missing_required_parameter",
    ),
]


@pytest.mark.parametrize(("more", "param", "code"), INVALID)
def test_what_is_wrong_is_refused_by_its_path(more: dict[str, Any], param: str, code: str) -> None:
    refusal = refused(**more)
    assert (refusal.param, refusal.code) == (param, code)


def test_both_names_of_the_limit_may_say_the_same() -> None:
    assert ask(max_tokens=5, max_completion_tokens=5).max_tokens == 5


def test_an_answer_has_openais_shape() -> None:
    data = json.loads(WIRE.format_answer(ask(), ANSWER))
    assert data["id"] == "chatcmpl-abc123"
    assert (data["object"], data["created"], data["model"]) == ("chat.completion", 1700000000, "m")
    text, calls = data["choices"]
    assert text == {
        "index": 0,
        "message": {
            "role": "assistant",
            "content": ANSWER.choices[0].message.text,
            "refusal": None,
            "reasoning_content": "Let me think.",
        },
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert calls["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [
            {
                "id": CALL.id,
                "type": "function",
                "function": {"name": CALL.name, "arguments": CALL.arguments},
            }
        ],
    }
    assert data["usage"]["total_tokens"] == 50
    assert data["usage"]["prompt_tokens_details"]["cached_tokens"] == 8


def events(answer: Answer, **more: Any) -> list[dict[str, Any]]:
    raw = WIRE.stream(ask(stream=True, **more)).end(answer)
    assert raw[-1] == b"data: [DONE]\n\n"
    assert all(item.startswith(b"data: {") and item.endswith(b"}\n\n") for item in raw[:-1])
    assert all(item.count(b"\n") == 2 for item in raw)
    return [json.loads(item.removeprefix(b"data: ")) for item in raw[:-1]]


def deltas(chunks: list[dict[str, Any]], index: int) -> list[dict[str, Any]]:
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    return [item["delta"] for item in choices if item["index"] == index]


def test_a_stream_tells_role_then_text_then_the_end() -> None:
    chunks = events(ANSWER)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert not any("usage" in chunk for chunk in chunks)
    first, *middle, last = deltas(chunks, 0)
    assert first == {"role": "assistant", "content": "", "refusal": None}
    assert last == {}
    joined = "".join(item.get("content", "") for item in middle)
    assert joined == ANSWER.choices[0].message.text
    assert 2 <= sum("content" in item for item in middle) <= 8
    assert "".join(item.get("reasoning_content", "") for item in middle) == "Let me think."
    ends = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert [end for end in ends if end] == ["stop", "tool_calls"]


def test_a_stream_names_a_call_before_its_arguments() -> None:
    first, named, *arguments, _ = deltas(events(ANSWER), 1)
    assert first["content"] is None
    function = {"name": CALL.name, "arguments": ""}
    begun = {"index": 0, "id": CALL.id, "type": "function", "function": function}
    assert named == {"tool_calls": [begun]}
    assert all(set(argument["tool_calls"][0]) == {"index", "function"} for argument in arguments)
    parts = [argument["tool_calls"][0]["function"]["arguments"] for argument in arguments]
    assert "".join(parts) == CALL.arguments


def test_several_calls_of_a_turn_keep_their_places() -> None:
    other = ToolCall("call_2", FunctionCall("now", ""))
    joined = deltas(events(answered(choice("Both.", calls=(CALL, other)))), 0)
    calls = [item["tool_calls"][0] for item in joined if "tool_calls" in item]
    assert [(call["index"], call["id"]) for call in calls if "id" in call] == [
        (0, "call_1"),
        (1, "call_2"),
    ]
    assert {call["index"] for call in calls if "id" not in call} == {0}
    assert joined[0]["content"] == ""


def test_tokens_of_reasoning_are_none_or_not_known() -> None:
    for reasoning, joined in ((None, 0), ("hm", None)):
        data = json.loads(WIRE.format_answer(ask(), answered(choice("x", reasoning=reasoning))))
        assert data["usage"]["completion_tokens_details"]["reasoning_tokens"] == joined


def test_usage_comes_last_without_choices_and_only_where_asked_for() -> None:
    *rest, last = events(ANSWER, stream_options={"include_usage": True})
    assert all(item["usage"] is None for item in rest)
    assert last["choices"] == []
    assert last["usage"] == json.loads(WIRE.format_answer(ask(), ANSWER))["usage"]


@pytest.mark.parametrize("tail", ["", "<|im_end|>", "not the text"])
def test_streamed_logprobs_are_those_of_the_answer(tail: str) -> None:
    tokens = tuple(f"word{i} " for i in range(60))
    text = "".join(tokens) if tail != "not the text" else "something else " * 20
    given_answer = choice(text, tokens=(*tokens, *([tail] if tail else [])))
    whole = json.loads(WIRE.format_answer(ask(logprobs=True), answered(given_answer)))
    chunks = events(answered(given_answer), logprobs=True)
    scores = [c["choices"][0]["logprobs"] for c in chunks]
    streamed = [item for each in scores if each for item in each["content"]]
    assert streamed == whole["choices"][0]["logprobs"]["content"]
    assert len(streamed) == len(given_answer.tokens)
    assert "".join(d.get("content", "") for d in deltas(chunks, 0)) == text


def test_a_token_of_half_a_character_has_no_bytes_and_no_infinite_logprob() -> None:
    given_answer = choice("é\ufffd", tokens=("é", "\ufffd"), logprobs=(-0.5, float("-inf")))
    data = json.loads(WIRE.format_answer(ask(logprobs=True), answered(given_answer)))
    whole, half = data["choices"][0]["logprobs"]["content"]
    assert whole == {"token": "é", "logprob": -0.5, "bytes": [195, 169], "top_logprobs": []}
    assert half == {"token": "\ufffd", "logprob": -9999.0, "bytes": None, "top_logprobs": []}


def test_an_empty_answer_is_text_and_not_null() -> None:
    data = json.loads(WIRE.format_answer(ask(), answered(choice(""))))
    assert data["choices"][0]["message"]["content"] == ""


def test_the_same_answer_has_the_same_bytes() -> None:
    again = Answer(**{name: getattr(ANSWER, name) for name in ANSWER.__struct_fields__})
    assert WIRE.format_answer(ask(), ANSWER) == OpenAIChat().format_answer(ask(), again)
    assert WIRE.stream(ask()).end(ANSWER) == OpenAIChat().stream(ask()).end(again)
