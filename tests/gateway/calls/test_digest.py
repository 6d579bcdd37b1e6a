"""When two conversations are the same, and when they are not."""

import pytest
from msgspec import structs

from holdfast.gateway.calls import digest as canonical
from holdfast.records.message import FunctionCall, Message, Role, ToolCall, assistant, user


def call(arguments: str, *, call_id: str = "c") -> Message:
    made = ToolCall(call_id, FunctionCall("add", arguments))
    return Message(Role.ASSISTANT, "", tool_calls=(made,))


def digest(*messages: Message) -> bytes:
    return canonical.digests(messages)[-1]


@pytest.mark.parametrize(
    ("item", "other"),
    [
        (call('{"a": 1, "b": 2}'), call('{"b":2,"a":1}')),
        (call('{"a": 1.0}'), call('{"a": 1}')),
        (call("{"), call("{")),
        (assistant("x"), structs.replace(assistant("x"), reasoning="because")),
        (user("ab"), Message(Role.USER, [{"type": "text", "text": "a"}, {"text": "b"}])),
        (call("{}"), structs.replace(call("{}"), content=None)),
    ],
)
def test_what_says_the_same_is_the_same(item, other):
    assert digest(item) == digest(other)


@pytest.mark.parametrize(
    ("item", "other"),
    [
        (call('{"a": 1}'), call('{"a": 2}')),
        (call('{"a": 1.5}'), call('{"a": 1}')),
        (call('{"a": "1"}'), call('{"a": 1}')),
        (call("{"), call("{ ")),
        (call("{}"), call("{}", call_id="d")),
        (user("x"), assistant("x")),
        (user("x"), user("x ")),
    ],
)
def test_what_says_something_else_is_another(item, other):
    assert digest(item) != digest(other)


def test_a_conversation_is_more_than_its_words():
    assert digest(user("a"), user("b")) != digest(user("ab"))
    assert digest(user("a"), user("b")) != digest(user("b"), user("a"))


def test_a_large_number_stays_itself():
    assert digest(call('{"a": 9007199254740993}')) != digest(call('{"a": 9007199254740992}'))
