"""What a rollout gives to its steps is refused before anything is sampled, called or recorded."""

import asyncio

import pytest

from holdfast.records.errors import UsageError
from holdfast.records.message import FunctionCall, Message, Role, ToolCall
from holdfast.rollout import validate
from support.rollout.stage import TrajectoryUnderTest, call


def refused(rollout) -> str:
    subject = TrajectoryUnderTest()
    with pytest.raises(UsageError) as caught:
        asyncio.run(subject.perform(rollout))
    assert not subject.oracle.requests
    assert not asyncio.run(subject.history()).steps
    return str(caught.value)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (Message(Role.USER, "half \ud800"), "surrogates not allowed"),
        (Message(Role.USER, "a", name="\ud800"), "surrogates not allowed"),
        (Message(Role.USER, [{"type": "text", "n": 2**70}]), "can't serialize ints"),
        (Message(Role.USER, [{"type": "text", "n": object()}]), "type object is unsupported"),
        (Message(Role.USER, [{1: "text"}]), "Expected `str`"),
    ],
    ids=["text", "name", "number", "object", "key"],
)
def test_a_message_that_cannot_be_recorded_costs_no_generation(message, why):
    async def rollout(t):
        t.add(message)
        await t.generate()

    refusal = refused(rollout)
    assert "is not a message that can be recorded" in refusal
    assert why in refusal


@pytest.mark.parametrize(
    "made",
    [
        ToolCall("\ud800", FunctionCall("f", "{}")),
        ToolCall("a", FunctionCall("f", '"\ud800"')),
        ToolCall("a", FunctionCall("f", {"a": 1})),
        ToolCall(5, FunctionCall("f", "{}")),
    ],
    ids=["id", "arguments", "no text", "number"],
)
def test_a_call_that_cannot_be_recorded_is_not_made(made):
    assert "is not a call that can be recorded" in refused(lambda t: t.tool(made))


def test_what_is_larger_than_any_record_fails_its_trajectory_and_not_the_run(monkeypatch):
    monkeypatch.setattr(validate, "MAX_RESULT", 1_000)

    async def rollout(t):
        t.add("x" * 1_000)
        await t.generate()

    assert "bytes are more than 1,000" in refused(rollout)
    assert "bytes are more than 1,000" in refused(lambda t: t.tool(call("f", "x" * 1_000)))


@pytest.mark.parametrize(
    ("item", "why"),
    [
        ("hi", "t.messages holds messages, not str 'hi'"),
        (None, "t.messages holds messages, not None"),
        ({"role": "usr", "content": "hi"}, "t.messages[0]: role is 'usr'; the roles are system,"),
        ({"role": "user"}, "t.messages[0] has no 'content'"),
    ],
)
def test_what_is_no_message_is_found_in_the_conversation(item, why):
    async def rollout(t):
        t.messages.append(item)
        await t.generate()

    assert refused(rollout).startswith(why)


@pytest.mark.parametrize("stop", ["", ["a", ""]])
def test_an_empty_stop_is_refused_before_an_engine_refuses_the_run(stop):
    assert "the empty text" in refused(lambda t: t.generate(stop=stop))


async def child(t): ...


@pytest.mark.parametrize(
    ("step", "arguments"),
    [
        (lambda t: t.branch(child(t)), r"t.branch calls the function itself: t.branch(child)"),
        (lambda t: t.sub(child(t)), r"t.sub calls the function itself: t.sub(child)"),
        (lambda t: t.branch([child]), "did you mean *rollouts?"),
        (lambda t: t.sub("child"), "t.sub takes async functions of a Rollout, not str 'child'"),
        (lambda t: t.value(5), "t.value takes a function that is called once, not int 5"),
    ],
)
def test_what_is_no_function_is_told_how_to_give_one(step, arguments):
    assert arguments in refused(step)


def test_a_value_may_have_any_name():
    async def rollout(t):
        return [await t.value(lambda: 1, name=name) for name in ("\ud800", 7, "")]

    subject = TrajectoryUnderTest()
    assert asyncio.run(subject.perform(rollout)) == [1, 1, 1]
    assert asyncio.run(subject.perform(rollout)) == [1, 1, 1]
    assert not asyncio.run(subject.history()).forks
