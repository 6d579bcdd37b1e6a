"""What a client was told, sent back by it, is the message that was sampled."""

import json

from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.gateway.calls import digest
from holdfast.gateway.protocol.messages import Answer, AnswerChoice
from holdfast.gateway.wires.anthropic.blocks import arguments_of, input_of
from holdfast.gateway.wires.anthropic.messages import AnthropicMessages
from holdfast.records.message import FunctionCall, Message, Role, ToolCall
from support.exhaustive import points

WIRE = AnthropicMessages()
HELLO = {"role": "user", "content": "Hello"}

_texts = st.text(st.characters(exclude_categories=["Cs"]))
_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=6,
)
_objects = st.dictionaries(_texts, _json, max_size=3) | st.dictionaries(
    st.just("INVALID_JSON"), _texts, min_size=1
)
# As models write them: with spaces or without, escaped or not, and sometimes broken off.
_arguments = (
    _objects.map(json.dumps)
    | _objects.map(lambda item: json.dumps(item, ensure_ascii=False, separators=(",", ":")))
    | _objects.map(lambda item: json.dumps(item, indent=1)[:-1])
    | _json.map(json.dumps)
    | _texts
)
_calls = st.lists(
    st.builds(FunctionCall, st.sampled_from(["look", "hear"]), _arguments), max_size=3
).map(
    lambda results: tuple(ToolCall(f"t{number}", result) for number, result in enumerate(results))
)
_messages = st.builds(
    Message,
    st.just(Role.ASSISTANT),
    _texts,
    tool_calls=_calls,
    reasoning=st.none() | _texts.filter(bool),
)


def _formatted(message: Message) -> list[dict[str, object]]:
    answer = Answer("a1", 0, "m", (AnswerChoice(message, "stop"),), 1, 1)
    return json.loads(WIRE.format_answer(_ask([HELLO]), answer))["content"]  # type: ignore[no-any-return]


def _ask(messages: list[object]) -> object:
    body = {"model": "m", "max_tokens": 16, "messages": messages}
    return WIRE.parse(json.dumps(body).encode())


def _parsed(*contents: object) -> Message:
    turns = [{"role": "assistant", "content": content} for content in contents]
    request = WIRE.parse(
        json.dumps({"model": "m", "max_tokens": 16, "messages": [HELLO, *turns, HELLO]}).encode()
    )
    assert len(request.messages) == 3
    return request.messages[1]


@settings(max_examples=points(125, 500))
@given(_messages)
@example(Message(Role.ASSISTANT, ""))
@example(
    Message(
        Role.ASSISTANT,
        "",
        tool_calls=(ToolCall("t", FunctionCall("look", '{"INVALID_JSON": "{"}')),),
    )
)
def test_an_echo_is_the_message_that_was_told(message: Message) -> None:
    messages = _formatted(message)
    parsed = _parsed(messages)
    assert (parsed.role, parsed.content, parsed.reasoning) == (
        message.role,
        message.content,
        message.reasoning,
    )
    assert digest.after(digest.START, parsed) == digest.after(digest.START, message)
    if messages:
        assert _parsed(*([block] for block in messages)) == parsed


@settings(max_examples=points(75, 300))
@given(_messages)
def test_an_echo_of_an_echo_changes_nothing(message: Message) -> None:
    parsed = _parsed(_formatted(message))
    assert _parsed(_formatted(parsed)) == parsed


@settings(max_examples=points(75, 300))
@given(_arguments)
def test_arguments_come_back_as_they_were_or_as_the_same_json(written: str) -> None:
    back = arguments_of(input_of(written))
    assert back == written or json.loads(back) == json.loads(written)


@given(_messages, _messages)
def test_other_messages_stay_other_messages(first: Message, other: Message) -> None:
    same = digest.after(digest.START, first) == digest.after(digest.START, other)
    parsed = [
        digest.after(digest.START, _parsed(_formatted(message))) for message in (first, other)
    ]
    assert (parsed[0] == parsed[1]) == same
