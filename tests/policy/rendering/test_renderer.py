import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.records.message import FunctionCall, Message, Role, ToolCall, assistant, user

RENDERER = ByteRenderer()
END = RENDERER.END

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
MESSAGES = st.lists(st.builds(Message, st.sampled_from(Role), TEXT), max_size=4)
ARGUMENTS = st.dictionaries(TEXT, st.integers() | TEXT | st.none(), max_size=3)
CALLS = st.builds(
    lambda name, arguments: ToolCall("", FunctionCall(name, json.dumps(arguments))), TEXT, ARGUMENTS
).filter(lambda call: "</tool_call>" not in call.name + call.arguments)


@given(before=MESSAGES, text=TEXT, after=MESSAGES)
def test_the_bridge_continues_a_completion_as_a_full_rendering_would(
    before: list[Message], text: str, after: list[Message]
) -> None:
    prompt = list(RENDERER.render(before, []))
    completion = [*text.encode(), END]
    bridge = RENDERER.bridge(prompt, completion, after, [])
    assert bridge is not None
    assert prompt + completion + bridge == list(
        RENDERER.render([*before, assistant(text), *after], [])
    )


@given(before=MESSAGES, text=TEXT, after=MESSAGES, cut=st.integers(0, 20))
def test_the_bridge_ends_a_completion_that_was_cut_and_keeps_what_was_sampled(
    before: list[Message], text: str, after: list[Message], cut: int
) -> None:
    prompt = list(RENDERER.render(before, []))
    completion = list(text.encode()[:cut])
    bridge = RENDERER.bridge(prompt, completion, after, [])
    assert bridge is not None
    assert bridge[0] == END
    assert bridge == [END, *(RENDERER.bridge(prompt, [*completion, END], after, []) or ())]


def test_a_prompt_ends_where_the_assistant_begins_to_speak() -> None:
    ids = list(RENDERER.render([user("hi")], []))
    assert ids == [256, *b"user\nhi", 257, 256, *b"assistant\n"]


def test_tools_come_first_and_in_an_order_that_does_not_depend_on_their_keys() -> None:
    items = list(RENDERER.render([], [{"name": "f", "type": "function"}]))
    other = list(RENDERER.render([], [{"type": "function", "name": "f"}]))
    assert items == other
    assert bytes(items[1:7]) == b"tools\n"


@given(TEXT.filter(lambda text: "<tool_call>" not in text), st.booleans())
def test_what_was_said_is_parsed_back(text: str, ended: bool) -> None:
    assert RENDERER.parse([*text.encode(), *([END] if ended else [])]) == assistant(text)


@given(TEXT.filter(lambda text: "<" not in text), st.lists(CALLS, min_size=1, max_size=3))
def test_tool_calls_are_parsed_back(text: str, calls: list[ToolCall]) -> None:
    message = Message(Role.ASSISTANT, text.strip(), tool_calls=tuple(calls))
    rendered = RENDERER.bridge([], [END], [message], [])
    assert rendered is not None
    reply = rendered[len([256, *b"assistant\n"]) : -len([256, *b"assistant\n"])]
    parsed = RENDERER.parse(reply)
    assert parsed.content == message.content
    assert [(call.name, json.loads(call.arguments)) for call in parsed.tool_calls] == [
        (call.name, json.loads(call.arguments)) for call in calls
    ]
    assert {call.id for call in parsed.tool_calls} == {""}


@pytest.mark.parametrize(
    "inside",
    [
        "",
        "{",
        "7",
        "[1]",
        '{"name": "f"}',
        '{"arguments": {}}',
        '{"name": "\\ud800", "arguments": {}}',
        "[" * 100_000,
        "9" * 10_000,
    ],
)
def test_a_malformed_call_stays_text_also_beside_a_good_one(inside: str) -> None:
    bad = f"<tool_call>{inside}</tool_call>"
    good = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert RENDERER.parse(list(bad.encode())) == assistant(bad)
    both = RENDERER.parse(list((bad + good).encode()))
    assert both.content == bad
    assert [call.name for call in both.tool_calls] == ["f"]


@given(
    st.lists(
        st.integers(0, 257)
        | st.sampled_from(list(b'<tool_call>{"name":"\\ud800","arguments":{}}</tool_call>')),
        max_size=60,
    )
)
def test_whatever_is_sampled_parses_to_a_message_that_can_be_recorded(ids: list[int]) -> None:
    message = RENDERER.parse(ids)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=Message) == message
