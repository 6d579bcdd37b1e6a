"""A message is also taken as a dict in OpenAI's shape; what is wrong with it is one line."""

import pytest

from holdfast.records.errors import UsageError
from holdfast.records.message import (
    FunctionCall,
    Message,
    Role,
    ToolCall,
    as_message,
    as_messages,
    system,
    user,
)
from holdfast.records.task import Task, as_tasks

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}

AS_OBJECT = {"name": "f", "arguments": {"a": 1}}


class Dumped:
    """Another library's message."""

    role = "assistant"

    def model_dump(self, *, mode, exclude_none):
        assert mode == "json"
        return {"role": "assistant", "content": "yes", "refusal": None}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("hi", user("hi")),
        (user("hi"), user("hi")),
        ({"role": "user", "content": "hi"}, user("hi")),
        ({"role": "user", "content": "hi", "refusal": None, "weight": 1}, user("hi")),
        ({"role": "assistant", "content": None}, Message(Role.ASSISTANT, None)),
        (
            {"role": "assistant", "content": "a", "reasoning_content": "b"},
            Message(Role.ASSISTANT, "a", reasoning="b"),
        ),
        (
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            Message(Role.ASSISTANT, None, (ToolCall("c1", FunctionCall("f", '{"a": 1}')),)),
        ),
        (
            {"role": "assistant", "tool_calls": [CALL | {"function": AS_OBJECT}]},
            Message(Role.ASSISTANT, "", (ToolCall("c1", FunctionCall("f", '{"a":1}')),)),
        ),
        (
            {"role": "tool", "content": "4", "tool_call_id": "c1"},
            Message(Role.TOOL, "4", tool_call_id="c1"),
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": "look"}]},
            Message(Role.USER, [{"type": "text", "text": "look"}]),
        ),
        (Dumped(), Message(Role.ASSISTANT, "yes")),
    ],
)
def test_a_message_from_what_chat_apis_have(value, message):
    assert as_message(value) == message
    if message.content is not None:  # A message without one has no such member.
        assert as_message(message.to_dict()) == message
    assert Task("t", messages=[value]).messages == (message,)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (3, r"a message is of type int \(3\); give a dict like"),
        (None, "a message is None; give a dict"),
        ([], r"a message is of type list"),
        ({}, "a message has no 'role'"),
        ({"from": "human", "value": "hi"}, "no 'role', but 'from', 'value'"),
        ({"rol": "user"}, "no 'role'; is 'rol' meant for it?"),
        ({"role": 3, "content": "a"}, "role is 3; the roles are system"),
        ({"role": "user", "text": "hi"}, "no 'content'; is 'text' meant|no 'content', but 'text'"),
        ({"role": "user", "content": {"type": "text"}}, "content is of type dict"),
        ({"role": "user", "content": "a", "name": 3}, "name is of type int"),
        ({"role": "assistant", "tool_calls": {"id": "c"}}, "tool_calls is of type dict"),
        ({"role": "assistant", "tool_calls": [{}]}, r"tool_calls\[0\]: .*id.*a call is"),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f"}}]},
            r"tool_calls\[0\]: .*arguments",
        ),
    ],
)
def test_the_bad_member_is_named(value, why):
    with pytest.raises(UsageError, match=why) as caught:
        as_message(value)
    assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match=r"messages\[1\]"):
        as_messages(["fine", value])


def test_a_conversation_is_a_list():
    assert as_messages("hi") == (user("hi"),)
    with pytest.raises(UsageError, match="messages is of type dict"):
        as_messages({"role": "user", "content": "a"})
    with pytest.raises(UsageError, match=r"task 'x': messages\[0\]: role is 'usr'"):
        Task("x", messages=({"role": "usr", "content": "a"},))
    (task,) = as_tasks([Task("x", messages=[{"role": "user", "content": "a"}])])
    assert task.messages == (user("a"),)


def test_the_text_of_a_role_is_as_good_as_the_role() -> None:
    message = Message("user", "hi")  # type: ignore[arg-type]
    assert message.role is Role.USER
    assert message == user("hi")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Message("usr", "hi"), "role is 'usr'; the roles are system, user, assistant"),
        (lambda: Message(None, "hi"), "role is None; the roles are system"),
        (lambda: Message(Role.USER, 5), r"content is of type int \(5\); give a text"),
        (lambda: user(5), r"content is of type int \(5\); give a text"),
        (lambda: system({"text": "hi"}), "content is of type dict"),
        (lambda: user(["hi"]), r"content\[0\] is of type str \('hi'\); a part is a dict"),
    ],
)
def test_a_message_that_could_not_be_sent_is_refused_where_it_is_made(make, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        make()
    assert "\n" not in str(caught.value)
