"""Anthropic's messages, from bytes to bytes."""

import json

import pytest

from holdfast.gateway.protocol.messages import Answer, AnswerChoice, GenerationRequest
from holdfast.gateway.wires.anthropic.messages import (
    AnthropicMessages,
    format_count,
    format_model,
    format_models,
    parse_count_request,
)
from holdfast.records.message import FunctionCall, Message, Role, ToolCall, assistant, system, user

WIRE = AnthropicMessages()
HELLO = {"role": "user", "content": "Hello"}


def ask(*messages: object, **fields: object) -> GenerationRequest:
    body = {"model": "m", "max_tokens": 16, "messages": messages or (HELLO,), **fields}
    return WIRE.parse(json.dumps(body).encode())


def answer(message: Message, finish: str = "stop", **fields: object) -> Answer:
    choice = AnswerChoice(message, finish, **fields)  # type: ignore[arg-type]
    return Answer("a1", 1700000000, "m", (choice,), 20, 7, 5)


def formatted(message: Message, finish: str = "stop", **fields: object) -> dict[str, object]:
    return json.loads(WIRE.format_answer(ask(), answer(message, finish, **fields)))


def events(message: Message, finish: str = "stop") -> list[dict[str, object]]:
    results = []
    for event in WIRE.stream(ask(stream=True)).end(answer(message, finish)):
        name, data = event.decode().removesuffix("\n\n").split("\n")
        results.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {results[-1]['type']}"
    return results


def call(identifier: str, name: str, arguments: str) -> ToolCall:
    return ToolCall(identifier, FunctionCall(name, arguments))


# --- requests ----------------------------------------------------------------------------------


def test_sampling_is_read() -> None:
    reply = ask(temperature=0.5, top_p=0.9, stop_sequences=["END"], stream=True)
    assert reply == GenerationRequest(
        "m", (user("Hello"),), max_tokens=16, temperature=0.5, top_p=0.9, stop=("END",), stream=True
    )


def test_what_changes_no_sample_is_accepted() -> None:
    reply = ask(
        metadata={"user_id": "u"},
        service_tier="auto",
        speed="standard",
        diagnostics={"previous_message_id": None},
        cache_control={"type": "ephemeral"},
        thinking={"type": "adaptive"},
        tool_choice={"type": "auto", "disable_parallel_tool_use": False},
        output_config={"effort": "high", "format": None},
        container=None,
        mcp_servers=[],
    )
    assert reply == ask()
    assert ask(thinking={"type": "adaptive", "display": "omitted"}) == ask()


def test_thinking_is_a_budget_or_no_effort_at_all() -> None:
    enabled = ask(thinking={"type": "enabled", "budget_tokens": 2000})
    assert (enabled.thinking_token_budget, enabled.reasoning_effort) == (2000, None)
    disabled = ask(thinking={"type": "disabled"}, output_config={"effort": "low"})
    assert (disabled.thinking_token_budget, disabled.reasoning_effort) == (None, "none")


def test_a_string_and_a_text_block_are_the_same() -> None:
    block = {"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral"}}
    assert ask({"role": "user", "content": [block]}, system=[{"type": "text", "text": "Be."}]) == (
        ask(HELLO, system="Be.")
    )


def test_the_system_prompt_comes_first_and_an_empty_one_is_none() -> None:
    assert ask(system="Be brief.").messages == (system("Be brief."), user("Hello"))
    assert ask(system="").messages == ask(system=[]).messages == (user("Hello"),)


def test_a_system_message_stays_where_it_stands() -> None:
    messages = ask(HELLO, {"role": "system", "content": "Be brief."}, HELLO).messages
    assert messages == (user("Hello"), system("Be brief."), user("Hello"))


def test_an_account_that_changes_with_each_request_is_no_part_of_the_prompt() -> None:
    def prompt(number: int) -> list[object]:
        line = f"x-anthropic-billing-header: cc_version=2.1; cch={number};"
        return [{"type": "text", "text": line}, {"type": "text", "text": "Be brief."}]

    assert ask(system=prompt(1)) == ask(system=prompt(2)) == ask(system="Be brief.")
    assert ask(system="x-anthropic-billing-header: cch=3;\nBe brief.") == ask(system="Be brief.")


def test_results_become_tool_messages_before_what_the_user_adds() -> None:
    uses = [
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "id": "t1", "name": "look", "input": {"b": 1, "a": [2]}},
        {"type": "tool_use", "id": "t2", "name": "hear", "input": {}},
    ]
    results = [
        {"type": "tool_result", "tool_use_id": "t2", "content": "a bird"},
        {
            "type": "tool_result",
            "tool_use_id": "t1",
            "content": [{"type": "text", "text": "no "}, {"type": "text", "text": "light"}],
            "is_error": True,
        },
        {"type": "text", "text": "And "},
        {"type": "text", "text": "now?"},
    ]
    reply = ask(HELLO, {"role": "assistant", "content": uses}, {"role": "user", "content": results})
    calls = (call("t1", "look", '{"b":1,"a":[2]}'), call("t2", "hear", "{}"))
    assert reply.messages[1:] == (
        Message(Role.ASSISTANT, "Let me look.", tool_calls=calls),
        Message(Role.TOOL, "a bird", tool_call_id="t2", name="hear"),
        Message(Role.TOOL, "no light", tool_call_id="t1", name="look"),
        user("And now?"),
    )


@pytest.mark.parametrize(
    ("result", "text"),
    [({}, ""), ({"content": None}, ""), ({"content": []}, ""), ({"is_error": True}, "Error")],
)
def test_a_result_may_say_nothing_but_an_error_may_not(
    result: dict[str, object], text: str
) -> None:
    use = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", **result}
    reply = ask(
        HELLO, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}
    )
    assert reply.messages[-1] == Message(Role.TOOL, text, tool_call_id="t1", name="look")


def test_assistant_turns_in_a_row_are_one_and_user_turns_stay_apart() -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    hidden = {"type": "redacted_thinking", "data": "xyz"}
    use = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    whole = ask(
        HELLO, {"role": "assistant", "content": [thought, hidden, _text("So."), use]}, HELLO
    )
    apart = ask(
        HELLO,
        {"role": "assistant", "content": [thought, hidden]},
        {"role": "assistant", "content": "So."},
        {"role": "assistant", "content": [use]},
        HELLO,
    )
    message = Message(
        Role.ASSISTANT, "So.", tool_calls=(call("t1", "look", "{}"),), reasoning="Hm."
    )
    assert whole.messages == apart.messages == (user("Hello"), message, user("Hello"))
    assert ask(HELLO, HELLO).messages == (user("Hello"), user("Hello"))


def test_tools_become_function_schemas_and_none_hides_them() -> None:
    schema = {"type": "object", "properties": {"z": {"type": "string"}, "a": {"maximum": 1.5}}}
    look = {"name": "look", "description": "Looks.", "input_schema": schema}
    bare = {"name": "hear", "input_schema": {}, "type": "custom", "cache_control": None}
    reply = ask(tools=[look, bare])
    assert reply.tools == (
        {
            "type": "function",
            "function": {"name": "look", "description": "Looks.", "parameters": schema},
        },
        {"type": "function", "function": {"name": "hear", "parameters": {}}},
    )
    assert list(schema["properties"]) == list(
        reply.tools[0]["function"]["parameters"]["properties"]
    )  # type: ignore[index]
    assert ask(tools=[look, bare], tool_choice={"type": "none"}) == ask()


# --- answers -----------------------------------------------------------------------------------


def test_an_answer_says_everything() -> None:
    calls = (call("t1", "look", '{"b": 1, "a": 2}'),)
    message = Message(Role.ASSISTANT, "So.", tool_calls=calls, reasoning="Hm.")
    reply = formatted(message, "tool_calls")
    thought = reply["content"].pop(0)  # type: ignore[attr-defined]
    assert thought.pop("signature")
    assert thought == {"type": "thinking", "thinking": "Hm."}
    assert reply == {
        "id": "msg_a1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [
            {"type": "text", "text": "So."},
            {"type": "tool_use", "id": "t1", "name": "look", "input": {"b": 1, "a": 2}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 15,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 5,
            "output_tokens": 7,
            "service_tier": "standard",
        },
    }


@pytest.mark.parametrize(
    ("finish", "stop", "reason", "sequence"),
    [
        ("stop", None, "end_turn", None),
        ("stop", "END", "stop_sequence", "END"),
        ("length", None, "max_tokens", None),
        ("tool_calls", None, "tool_use", None),
    ],
)
def test_stop_reasons(finish: str, stop: str | None, reason: str, sequence: str | None) -> None:
    reply = formatted(assistant("x"), finish, stop_string=stop)
    assert (reply["stop_reason"], reply["stop_sequence"]) == (reason, sequence)


def test_nothing_said_is_no_block() -> None:
    assert formatted(assistant(""))["content"] == []


@pytest.mark.parametrize("written", ['{"a": ', "[1, 2]", "", "NaN", '"\\ud800"', '{"a": 1e999}'])
def test_arguments_that_are_no_object_are_told_in_one(written: str) -> None:
    reply = formatted(Message(Role.ASSISTANT, "", tool_calls=(call("t1", "look", written),)))
    assert reply["content"][0]["input"] == {"INVALID_JSON": written}  # type: ignore[index]


def test_a_stream_says_what_the_answer_says() -> None:
    text = "naïve \u2028 line\x85 ends\n" * 400
    calls = (call("t1", "look", json.dumps({"text": text})), call("t2", "hear", ""))
    message = Message(Role.ASSISTANT, text, tool_calls=calls, reasoning="Hm. " * 100)
    chunks = events(message, "tool_calls")
    whole = formatted(message, "tool_calls")
    begun = chunks[0]["message"]
    assert begun == {  # type: ignore[comparison-overlap]
        **whole,
        "content": [],
        "stop_reason": None,
        "usage": {**whole["usage"], "output_tokens": 0},  # type: ignore[dict-item]
    }
    assert _joined(chunks) == whole["content"]
    starts = [event["content_block"] for event in chunks if event["type"] == "content_block_start"]
    assert starts == [
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "text", "text": ""},
        {"type": "tool_use", "id": "t1", "name": "look", "input": {}},
        {"type": "tool_use", "id": "t2", "name": "hear", "input": {}},
    ]
    last, end = chunks[-2:]
    assert last["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert last["usage"]["output_tokens"] == 7  # type: ignore[index]
    assert end == {"type": "message_stop"}


def test_an_event_is_one_line_for_every_way_to_split_lines() -> None:
    text = "a\u2028b\x85c\u2029d\x0be\r\nf"
    for event in WIRE.stream(ask(stream=True)).end(answer(assistant(text))):
        assert len(event.decode().splitlines()) == 3  # its name, its data, a blank line


def test_the_same_answer_has_the_same_bytes() -> None:
    message = Message(
        Role.ASSISTANT, "So.", tool_calls=(call("t", "look", '{"z":1,"a":2}'),), reasoning="Hm."
    )
    first, again = answer(message), answer(message)
    assert WIRE.format_answer(ask(), first) == AnthropicMessages().format_answer(ask(), again)
    assert WIRE.stream(ask()).end(first) == AnthropicMessages().stream(ask()).end(again)
    assert WIRE.keep_alive() == b'event: ping\ndata: {"type":"ping"}\n\n'


# --- counting and models -----------------------------------------------------------------------


def test_counting_reads_the_same_conversation() -> None:
    tools = [{"name": "look", "input_schema": {}}]
    body = {"model": "m", "messages": [HELLO], "system": "Be.", "tools": tools}
    count_request, reply = (
        parse_count_request(json.dumps(body).encode()),
        ask(HELLO, system="Be.", tools=tools),
    )
    assert (count_request.messages, count_request.tools) == (reply.messages, reply.tools)
    assert json.loads(format_count(12)) == {"input_tokens": 12}


def test_counting_may_end_with_the_assistant() -> None:
    body = {"model": "m", "messages": [HELLO, {"role": "assistant", "content": "Hi"}]}
    assert parse_count_request(json.dumps(body).encode()).messages[-1] == assistant("Hi")


def test_models_are_one_page() -> None:
    data = json.loads(format_models(["a", "b"], created=86400))
    assert (data["first_id"], data["last_id"], data["has_more"]) == ("a", "b", False)
    assert data["data"][0] == json.loads(format_model("a", created=86400))
    assert data["data"][0]["created_at"] == "1970-01-02T00:00:00Z"
    assert json.loads(format_models([]))["first_id"] is None


def _text(text: str) -> dict[str, object]:
    return {"type": "text", "text": text}


def _joined(results: list[dict[str, object]]) -> list[dict[str, object]]:
    """The blocks of a stream, as a client puts them together."""
    blocks: list[dict[str, object]] = []
    for event in results:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append(dict(event["content_block"]))  # type: ignore[call-overload]
        elif event["type"] == "content_block_delta":
            _grow(blocks[event["index"]], event["delta"])  # type: ignore[index, arg-type]
    for block in blocks:
        if "written" in block:
            block["input"] = json.loads(str(block.pop("written")))
    return blocks


def _grow(block: dict[str, object], delta: dict[str, str]) -> None:
    kind = delta["type"]
    if kind == "input_json_delta":
        block["written"] = str(block.get("written", "")) + delta["partial_json"]
    else:
        field = kind.removesuffix("_delta")
        block[field] = str(block[field]) + delta[field]
