"""Messages in one shape hold all that they held."""

from holdfast.engine.export.export import message_row
from holdfast.engine.export.nested import nested_message
from holdfast.records.message import FunctionCall, Message, Role, ToolCall

CALL = ToolCall(id="c1", function=FunctionCall(name="add", arguments='{"a": 1}'))


def test_the_tool_calls_of_a_record_are_in_the_columns() -> None:
    row = message_row(Message(Role.ASSISTANT, "", tool_calls=(CALL,)))
    function = {"name": "add", "arguments": '{"a": 1}'}
    assert row["tool_calls"] == [{"id": "c1", "type": "function", "function": function}]
    assert nested_message(row)["tool_calls"] == row["tool_calls"]


def test_parts_are_in_the_columns_whatever_kind_of_list_they_are_in() -> None:
    for kind in (list, tuple):
        fields = nested_message({"role": "user", "content": kind([{"type": "text", "text": "hi"}])})
        assert fields["content"] is None
        assert [part["text"] for part in fields["parts"]] == ["hi"]
