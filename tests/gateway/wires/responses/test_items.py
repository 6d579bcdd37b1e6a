"""What was answered as items and is sent back as items is the message that it was."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.gateway.protocol.messages import Answer, AnswerChoice, GenerationRequest
from holdfast.gateway.wires.responses.responses import OpenAIResponses
from holdfast.records.message import FunctionCall, Message, Role, ToolCall, assistant, system, user
from support.exhaustive import points

WIRE = OpenAIResponses()
ASK = GenerationRequest("m", (user("hi"),))
Item = dict[str, Any]


def called(number: int, *, turn: int = 0, arguments: str = "{}") -> ToolCall:
    return ToolCall(f"call_{turn:016x}_{number}", FunctionCall("f", arguments))


def items(message: Message, identifier: str = "a0") -> list[Item]:
    reason = "tool_calls" if message.tool_calls else "stop"
    answer = Answer(identifier, 1, "m", (AnswerChoice(message, reason),), 1, 1)
    output: list[Item] = json.loads(WIRE.format_answer(ASK, answer))["output"]
    return output


def results(message: Message) -> list[Item]:
    return [
        {"type": "function_call_output", "call_id": tool_call.id, "output": f"of {tool_call.id}"}
        for tool_call in message.tool_calls
    ]


def tools(message: Message) -> list[Message]:
    return [
        Message(Role.TOOL, f"of {tool_call.id}", tool_call_id=tool_call.id)
        for tool_call in message.tool_calls
    ]


def read(*sent: Item) -> list[Message]:
    body = {"model": "m", "input": [{"role": "user", "content": "hi"}, *sent]}
    return list(WIRE.parse(json.dumps(body).encode()).messages[1:])


def without(sent: list[Item], *names: str) -> list[Item]:
    return [{key: value for key, value in item.items() if key not in names} for item in sent]


def interleaved(sent: list[Item], outputs: list[Item]) -> list[Item]:
    """Each result right after its call."""
    by_call = {output["call_id"]: output for output in outputs}
    result = []
    for item in sent:
        result += [item, by_call[item["call_id"]]] if "call_id" in item else [item]
    return result


TWO = Message(Role.ASSISTANT, "Let me see.", (called(0), called(1)), reasoning="hm")

TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
REPLIES = st.builds(
    lambda text, reasoning, arguments: Message(
        Role.ASSISTANT,
        text,
        tuple(called(place, arguments=argument) for place, argument in enumerate(arguments)),
        reasoning=reasoning or None,
    ),
    TEXTS,
    TEXTS,
    st.lists(TEXTS | st.just('{"b":  1, "a": 2}'), max_size=3),
)


@settings(max_examples=points(50, 150))
@given(REPLIES)
def test_a_reply_that_is_sent_back_is_the_same_message(reply: Message) -> None:
    assert read(*items(reply)) == [reply]
    assert read(*without(items(reply), "id", "status")) == [reply]
    assert read(*items(reply), *results(reply)) == [reply, *tools(reply)]


@settings(max_examples=100)
@given(st.lists(REPLIES, max_size=4))
def test_replies_that_follow_each_other_stay_apart(replies: list[Message]) -> None:
    sent = [item for place, reply in enumerate(replies) for item in items(reply, f"a{place}")]
    assert read(*sent) == replies


@settings(max_examples=100)
@given(REPLIES)
def test_results_between_the_calls_of_a_reply_do_not_cut_it(reply: Message) -> None:
    sent, outputs = items(reply), results(reply)
    assert read(*interleaved(sent, outputs)) == [reply, *tools(reply)]
    # Without ids of items, those of the calls tell.
    bare = without(sent, "id", "status")
    assert read(*interleaved(bare, outputs)) == [reply, *tools(reply)]


def test_whole_turns_without_any_ids_are_told_apart_by_their_order() -> None:
    def foreign(turn: int) -> Message:
        calls = tuple(ToolCall(f"x{turn}{number}", FunctionCall("f", "{}")) for number in range(2))
        return Message(Role.ASSISTANT, f"turn {turn}", calls, reasoning=f"hm {turn}")

    turns = [foreign(0), foreign(1)]
    sent = [item for turn in turns for item in [*without(items(turn), "id"), *results(turn)]]
    assert read(*sent) == [item for turn in turns for item in [turn, *tools(turn)]]
    # A call after the result of a call of which nothing says that it was made with it.
    first = read(*interleaved(without(items(turns[0]), "id"), results(turns[0])))
    assert [item.role for item in first] == [Role.ASSISTANT, Role.TOOL] * 2


def test_words_after_a_call_that_waits_for_its_result_belong_to_it() -> None:
    thought, arguments, *calls = without(items(TWO), "id")
    assert read(thought, *calls, arguments, *results(TWO)) == [TWO, *tools(TWO)]


def test_two_messages_in_a_row_are_two_replies() -> None:
    messages = [{"role": "assistant", "content": item} for item in ("a", "b")]
    assert read(*messages) == [assistant("a"), assistant("b")]


def test_reasoning_after_words_begins_another_reply() -> None:
    messages = [Message(Role.ASSISTANT, item, reasoning=f"hm {item}") for item in ("a", "b")]
    assert (
        read(*(item for message in messages for item in without(items(message), "id"))) == messages
    )


def test_the_items_of_openai_itself_are_put_together_by_their_order() -> None:
    sent = [
        {"type": "reasoning", "id": "rs_68af01", "summary": [], "encrypted_content": "gAAAA"},
        {
            "type": "message",
            "id": "msg_68af02",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "a", "annotations": []}],
        },
        {
            "type": "function_call",
            "id": "fc_68af03",
            "call_id": "call_abc",
            "name": "f",
            "arguments": "{}",
        },
    ]
    expected = Message(Role.ASSISTANT, "a", (ToolCall("call_abc", FunctionCall("f", "{}")),))
    assert read(*sent) == [expected]


def test_reasoning_is_read_from_its_summary_where_there_is_no_text() -> None:
    parts = [{"type": "summary_text", "text": item} for item in ("one", "two")]
    sent = {"type": "reasoning", "id": "rs_1", "summary": parts}
    message = {"role": "assistant", "content": "a"}
    assert read(sent, message) == [Message(Role.ASSISTANT, "a", reasoning="one\n\ntwo")]
    assert read(sent) == [Message(Role.ASSISTANT, "", reasoning="one\n\ntwo")]


def test_reasoning_that_is_left_out_is_all_that_is_missing() -> None:
    _, *rest = items(TWO)
    assert read(*rest) == [Message(Role.ASSISTANT, TWO.content, TWO.tool_calls)]


def test_somebody_else_speaking_ends_a_reply() -> None:
    sent = items(TWO)
    arguments = read(*sent[:2], {"role": "developer", "content": "stop"}, *sent[2:])
    assert [argument.role for argument in arguments] == [
        Role.ASSISTANT,
        Role.DEVELOPER,
        Role.ASSISTANT,
    ]


def test_parts_of_text_are_one_text() -> None:
    parts = [{"type": "input_text", "text": item} for item in ("a", "b")]
    sent: list[Item] = [
        {"role": "user", "content": parts},
        {"type": "message", "role": "system", "content": parts},
        {"type": "function_call_output", "call_id": "c", "output": parts},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    ]
    result = Message(Role.TOOL, "ab", tool_call_id="c")
    assert read(*sent) == [user("ab"), system("ab"), result, assistant("no")]
