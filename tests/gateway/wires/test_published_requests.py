"""Requests as published agents send them (recorded from mini-swe-agent 2.4 on LiteLLM 1.106, from
smolagents 1.26 and from the Vercel AI SDK 6), and what libraries put beside what they were told."""

import asyncio

import msgspec
import pytest

from holdfast.gateway.calls.unsupported import IgnoredFields
from holdfast.gateway.protocol.messages import RequestRejected
from holdfast.gateway.server import Gateway
from holdfast.gateway.wires.all import WIRES
from holdfast.records.errors import UsageError
from support.gateway.counter import CHAT, MESSAGES, RESPONSES, Counter, exchange, opened, post
from support.rollout.stage import TrajectoryUnderTest

CALL = 'so <tool_call>{"name": "plus", "arguments": {"a": 1, "b": 2}}</tool_call>'
PLUS = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
FLAT = {"type": "function", "name": "plus", "description": "Adds two numbers.", "parameters": PLUS}
TOOL = {"type": "function", "function": {"name": "plus", "parameters": PLUS}}


def perform(body):
    return asyncio.run(body())


def answers(*texts: str):
    left = list(texts)
    return lambda request: left.pop(0)


async def post_to(counter: Counter, binding, path: str, body: dict) -> dict:
    reply = await exchange(counter.port, post(path, body, binding))
    assert reply.status == 200, reply.body
    return reply.json


def test_what_litellm_sends_back_goes_on_with_the_tokens_of_the_turn_before():
    async def body():
        async with opened(answers(CALL, "done")) as (counter, _, binding):
            request = {"model": "m", "messages": [{"role": "user", "content": "add"}]}
            first = await post_to(counter, binding, CHAT, {**request, "tools": [TOOL]})
            message = first["choices"][0]["message"]
            messages = [
                *request["messages"],
                {
                    "content": message["content"],
                    "role": "assistant",
                    "tool_calls": [
                        {
                            "function": tool_call["function"],
                            "id": tool_call["id"],
                            "type": "function",
                        }
                        for tool_call in message["tool_calls"]
                    ],
                    "provider_specific_fields": {"refusal": None},
                },
                {"content": "3", "tool_call_id": message["tool_calls"][0]["id"], "role": "tool"},
            ]
            again = {"model": "m", "messages": messages, "tools": [TOOL]}
            await post_to(counter, binding, CHAT, again)
            assert (await counter.subject.history()).prefix_breaks == 0

    perform(body)


BESIDE = {
    "thinking blocks": {"thinking_blocks": [{"type": "thinking", "thinking": "hm"}]},
    "reasoning details": {"reasoning_details": [{"type": "reasoning.text", "text": "hm"}]},
    "a message's cache hint": {"cache_control": {"type": "ephemeral"}},
    "annotations": {"annotations": [{"type": "url_citation", "url_citation": {}}]},
    "an unknown null": {"never_heard_of": None},
}


@pytest.mark.parametrize("beside", BESIDE)
def test_what_changes_nothing_that_is_sampled_is_accepted_in_messages(beside):
    more = BESIDE[beside]
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello", **more},
        {"role": "user", "content": "and?"},
    ]
    wire = WIRES[CHAT]
    body = {"model": "m", "messages": messages}

    async def send_both():
        async with opened() as (counter, trajectory, binding):
            await post_to(counter, binding, CHAT, body)
            plain = [{k: v for k, v in message.items() if k not in more} for message in messages]
            await post_to(counter, binding, CHAT, {**body, "messages": plain})
            # It is the same request.
            assert [len(items) for items in trajectory._calls._by_key.values()] == [2]

    assert wire is not None
    perform(send_both)


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_unknown_nulls_say_nothing_in_any_wire_and_arguments_keep_theirs(path):
    async def body():
        async with opened(answers("ok")) as (counter, _, binding):
            call = {"type": "tool_use", "id": "c", "name": "plus", "input": {"a": None, "b": 1}}
            result = {"type": "tool_result", "tool_use_id": "c", "content": "1", "unknown": None}
            bodies = {
                CHAT: {"messages": [{"role": "user", "content": "hi", "unknown": None}]},
                RESPONSES: {"input": [{"role": "user", "content": "hi", "unknown": None}]},
                MESSAGES: {
                    "messages": [
                        {"role": "user", "content": "hi"},
                        {"role": "assistant", "content": [call]},
                        {"role": "user", "content": [result]},
                    ],
                    "max_tokens": 9,
                },
            }
            await post_to(counter, binding, path, {"model": "m", "other": None, **bodies[path]})
            (request,) = counter.subject.oracle.requests
            text = bytes(token for token in request.prompt if token < 256).decode()
            assert "unknown" not in text
            assert path != MESSAGES or '{"a":null,"b":1}' in text

    perform(body)


def test_members_of_messages_are_left_out_by_name_and_what_is_said_never_is():
    body = b'{"model":"m","messages":[{"role":"user","content":"hi","mood":{"x":1}}]}'
    chat = WIRES[CHAT]
    with pytest.raises(RequestRejected, match=r'Unknown parameter.*ignore=\["messages.mood"\]'):
        IgnoredFields().parse(CHAT, chat, body)
    ask = IgnoredFields(["messages.mood"]).parse(CHAT, chat, body)
    assert ask.ignored == ("messages.mood",)
    assert [message.text for message in ask.messages] == ["hi"]
    for text in ("messages", "messages.content", "input.content.text", "messages.tool_calls.id"):
        with pytest.raises(UsageError, match="cannot be ignored"):
            IgnoredFields([text])


@pytest.mark.parametrize(
    ("path", "more", "way_out"),
    [
        (CHAT, {"bad_words": ["x"]}, "bad_words"),
        (CHAT, {"tools": [{"type": "web_search"}]}, ""),
        (RESPONSES, {"tools": [{"type": "web_search"}]}, "tool:*"),
        (RESPONSES, {"text": {"verbosity": "low"}}, "text.verbosity"),
        (MESSAGES, {"thinking": {"type": "between_tools"}}, "thinking"),
        (MESSAGES, {"container": "x"}, "container"),
        (MESSAGES, {"tools": [{"type": "web_search_20250305", "name": "w"}]}, "tool:*"),
    ],
)
def test_a_refusal_names_a_way_out_and_it_is_one(path, more, way_out):
    request = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
    query = {"model": "m", "input": "hi"} if path == RESPONSES else request
    body = msgspec.json.encode({**query, **more})
    with pytest.raises(RequestRejected) as refused:
        IgnoredFields().parse(path, WIRES[path], body)
    assert (f"--ignore {way_out})" in refused.value.message) == bool(way_out)
    if way_out:
        assert IgnoredFields([way_out]).parse(path, WIRES[path], body).ignored


def responses(*input_items, **more) -> dict:
    return {"model": "oracle", "input": list(input_items), "tools": [FLAT], **more}


HELLO = {"role": "user", "content": [{"type": "input_text", "text": "do a"}]}


def test_items_that_an_agent_only_refers_to_are_those_that_it_was_told():
    """As the Vercel AI SDK does it with its default provider: text by its id, calls whole."""

    async def body():
        async with opened(answers(CALL, "it is 3")) as (counter, _, binding):
            first = await post_to(counter, binding, RESPONSES, responses(HELLO, tool_choice="auto"))
            arguments, call = first["output"]
            again = responses(
                HELLO,
                {"type": "item_reference", "id": arguments["id"]},
                {
                    "type": "function_call",
                    "call_id": call["call_id"],
                    "name": "plus",
                    "arguments": '{"a":1,"b":2}',
                },
                {"type": "function_call_output", "call_id": call["call_id"], "output": "3"},
                tool_choice="auto",
            )
            await post_to(counter, binding, RESPONSES, again)
            history = await counter.subject.history()
            assert len(history.generations) == 2
            assert history.prefix_breaks == 0
            assert history.generations[1].base == history.generations[0].path

    perform(body)


@pytest.mark.parametrize("killed", [False, True], ids=["in one process", "across a kill"])
def test_a_response_goes_on_from_the_one_that_it_names(killed):
    subject = TrajectoryUnderTest()
    subject.oracle.answer = answers("first", "second", "third")

    async def within(calls):
        async with Gateway(WIRES) as gateway:
            counter = Counter(gateway, subject)
            async with counter.attempt() as (trajectory, binding):
                return await calls(counter, trajectory, binding)

    async def begun(counter, _, binding):
        fields = responses(HELLO, instructions="be kind", store=True)
        return (await post_to(counter, binding, RESPONSES, fields))["id"]

    async def gone_on(counter, trajectory, binding, name=""):
        trajectory.go_on()
        name = name or await begun(counter, trajectory, binding)
        more = {"role": "user", "content": "and then?"}
        same = responses(more, previous_response_id=name, instructions="be kind")
        second = await post_to(counter, binding, RESPONSES, same)
        assert second["previous_response_id"] == name
        # Instructions hold for one response: without them, it is another conversation.
        other = responses(more, previous_response_id=second["id"])
        await post_to(counter, binding, RESPONSES, other)

    async def body():
        name = await within(begun) if killed else ""
        await within(lambda *args: gone_on(*args, name=name))
        first, second, third = (await subject.history()).generations
        assert (second.base, second.prefix_break) == (first.path, "")
        assert third.base == ""
        assert [item.text for item in third.added] == [
            "do a",
            "first",
            "and then?",
            "second",
            "and then?",
        ]

    perform(body)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"previous_response_id": "resp_unknown"}, "previous_response_id"),
        ({"input": [{"type": "item_reference", "id": "msg_1234_0"}]}, "input[0]"),
        ({"conversation": "conv_1"}, "conversation"),
    ],
)
def test_what_this_trajectory_was_never_told_cannot_be_referred_to(body, param):
    async def send():
        async with opened() as (counter, _, binding):
            raw = post(RESPONSES, {**responses(HELLO), **body}, binding)
            reply = await exchange(counter.port, raw)
            assert (reply.status, reply.json["error"]["param"]) == (400, param)
            assert "send the whole conversation as 'input'" in reply.json["error"]["message"]

    perform(send)
