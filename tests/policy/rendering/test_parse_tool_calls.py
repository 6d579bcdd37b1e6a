"""A policy that was shown no tools calls none: what looks like a call is text."""

import asyncio

import pytest

from holdfast.policy.rendering.parse_stream import Channel, LiveMessage
from holdfast.policy.rendering.parse_tool_calls import parse_hermes, without_calls
from holdfast.records.message import Message, Role, user
from support.gateway.counter import CHAT, HELLO, MESSAGES, RESPONSES, exchange, opened, post
from support.gateway.streams import ThinkingBytes
from support.rollout.stage import Oracle, TrajectoryUnderTest

CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
REPLIES = f"So: {CALL}"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": SCHEMA}}]
FLAT = [{"type": "function", "name": "add", "parameters": SCHEMA}]
ANTHROPIC = [{"name": "add", "input_schema": SCHEMA}]
CONVERSATION = {"model": "m", "input": "hello"}
UNSHOWN = [
    (CHAT, HELLO),
    (CHAT, {**HELLO, "tools": TOOLS, "tool_choice": "none"}),
    (RESPONSES, CONVERSATION),
    (RESPONSES, {**CONVERSATION, "tools": FLAT, "tool_choice": "none"}),
    (MESSAGES, {**HELLO, "max_tokens": 500}),
    (MESSAGES, {**HELLO, "max_tokens": 500, "tools": ANTHROPIC, "tool_choice": {"type": "none"}}),
]
KINDS = {
    CHAT: lambda result: [
        result["choices"][0]["finish_reason"],
        result["choices"][0]["message"]["content"],
        result["choices"][0]["message"].get("tool_calls") or [],
    ],
    RESPONSES: lambda result: [
        "stop" if result["status"] == "completed" else result["status"],
        result["output"][0]["content"][0]["text"],
        result["output"][1:],
    ],
    MESSAGES: lambda result: [
        "stop" if result["stop_reason"] == "end_turn" else result["stop_reason"],
        result["content"][0]["text"],
        result["content"][1:],
    ],
}


@pytest.mark.parametrize(("path", "query"), UNSHOWN)
async def test_an_agent_that_shows_no_tools_is_told_text(path, query):
    async with opened(lambda request: REPLIES) as (counter, _, binding):
        reply = await exchange(counter.port, post(path, query, binding))
        assert KINDS[path](reply.json) == ["stop", REPLIES, []]


async def test_one_that_shows_them_is_told_the_call():
    async with opened(lambda request: REPLIES) as (counter, _, binding):
        reply = await exchange(counter.port, post(CHAT, {**HELLO, "tools": TOOLS}, binding))
        reason, text, (call,) = KINDS[CHAT](reply.json)
        assert (reason, text, call["function"]["name"]) == ("tool_calls", "So:", "add")


@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_asked_next_goes_on_from_the_sampled_tokens(stream):
    async with opened(lambda request: REPLIES) as (counter, _, binding):
        await exchange(counter.port, post(CHAT, {**HELLO, "stream": stream}, binding))
        messages = [
            {"role": "assistant", "content": REPLIES},
            {"role": "user", "content": "and?"},
        ]
        more = {**HELLO, "messages": [*HELLO["messages"], *messages]}
        assert (await exchange(counter.port, post(CHAT, more, binding))).status == 200
    first, second = (await counter.subject.history()).generations
    assert second.base == first.path
    assert not second.prefix_break


def test_a_rollout_that_shows_no_tools_is_given_text_and_goes_on_from_its_tokens():
    async def rollout(t):
        replies = [await t.generate()]
        t.add(user("and?"))
        return [*replies, await t.generate()]

    subject = TrajectoryUnderTest(Oracle(lambda request: REPLIES))
    for reply in asyncio.run(subject.perform(rollout)):
        assert (reply.text, reply.tool_calls) == (REPLIES, ())
    first, second = asyncio.run(subject.history()).generations
    assert (second.base, second.prefix_break) == (first.path, "")


def test_reasoning_stays_apart_from_a_text_that_looks_like_a_call():
    message = Message(Role.ASSISTANT, "So:", tool_calls=parse_hermes(CALL)[1], reasoning="Hm.")
    for text in (f"<think>\nHm.\n</think>\n\n{REPLIES}", f"Hm.\n</think>\n\n{REPLIES}"):
        assert without_calls(message, text) == Message(Role.ASSISTANT, REPLIES, reasoning="Hm.")


def test_what_is_told_of_it_while_it_is_sampled_is_its_beginning():
    whole = f"<think>\nHm.\n</think>\n\nWell, so: {CALL} and more"
    live = LiveMessage(ThinkingBytes(), prompt=())
    message = "".join(
        text
        for token in whole.encode()
        for channel, text in live.take([token])
        if channel is Channel.CONTENT
    )
    result = without_calls(ThinkingBytes().parse(whole.encode()), whole)
    assert message
    assert result.text.startswith(message)
    assert CALL in result.text
