"""Images in requests: an engine that is sent messages is sent them, others are not; and what is
recorded, shown and exported of them."""

import base64
import json

import pytest

from holdfast.cli.commands.runs.show import _lines
from holdfast.engine.export.row_messages import messages_of
from holdfast.gateway.limits import GatewayLimits
from holdfast.gateway.server import Gateway
from holdfast.gateway.wires.all import WIRES
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.rendering.messages_only import MessagesOnly
from holdfast.records.message import Message, Role, image, user
from holdfast.records.task import Task
from holdfast.records.trajectory import TrajectoryKey
from holdfast.records.view import TrajectoryView
from holdfast.rollout.replay.speaker import Speaker
from holdfast.testing import FakeEngine
from support.gateway.counter import (
    CHAT,
    COUNT,
    MESSAGES,
    RESPONSES,
    Counter,
    exchange,
    opened,
    post,
)
from support.gateway.libraries import anthropic_client, engine_behind, openai_client, perform
from support.rollout.stage import TrajectoryUnderTest

PIXELS = base64.b64encode(bytes(range(256)) * 48).decode()
DATA = f"data:image/png;base64,{PIXELS}"
OTHER = f"data:image/png;base64,{PIXELS[4:]}"
SIGNED = "https://pictures.example/cat.jpg?X-Signature=s3cr3t-s1gnature"


def chat_body(url: str = DATA, text: str = "what is it?", **more: object) -> dict[str, object]:
    parts = [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}]
    return {"model": "m", "messages": [{"role": "user", "content": parts}], **more}


def anthropic_body(url: str = DATA, **more: object) -> dict[str, object]:
    source = {"type": "url", "url": url}
    if url.startswith("data:"):
        data = url.partition(",")[2]
        source = {"type": "base64", "media_type": "image/png", "data": data}
    blocks = [{"type": "text", "text": "what is it?"}, {"type": "image", "source": source}]
    return {
        "model": "m",
        "max_tokens": 50,
        "messages": [{"role": "user", "content": blocks}],
        **more,
    }


def responses_body(url: str = DATA, **more: object) -> dict[str, object]:
    parts = [
        {"type": "input_text", "text": "what is it?"},
        {"type": "input_image", "image_url": url},
    ]
    return {"model": "m", "input": [{"role": "user", "content": parts}], **more}


BODIES = {CHAT: chat_body, MESSAGES: anthropic_body, RESPONSES: responses_body}
SEEN = Message(Role.USER, [{"type": "text", "text": "what is it?"}, image(DATA)])


async def ask(counter, binding, wire: str, body: object):
    return await exchange(counter.port, post(wire, body, binding))


def view_of(history, subject) -> TrajectoryView:
    return TrajectoryView(TrajectoryKey("run", subject.task.id, 0), subject.task, history)


@pytest.mark.parametrize("wire", BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_is_sent_messages_is_sent_their_images(wire, stream):
    async def body():
        async with engine_behind("chat", images=True) as (engine, counter, binding):
            for url in (DATA, SIGNED):
                reply = await ask(counter, binding, wire, BODIES[wire](url, stream=stream))
                assert reply.status == 200, reply.body
            assert [call.images for call in engine.calls()] == [(DATA,), (SIGNED,)]
            history = await counter.subject.history()
            assert history.generations[0].added == (SEEN,)

    perform(body)


@pytest.mark.parametrize("wire", BODIES)
def test_the_same_image_is_the_same_call_and_another_is_another(wire):
    async def body():
        async with engine_behind("chat", images=True) as (engine, counter, binding):
            first = await ask(counter, binding, wire, BODIES[wire]())
        # The attempt is over, and another begins.
        with FakeEngine(dialect="chat", images=True) as engine:
            policy = EnginePolicy(engine.url, engine.model)
            await policy.check()
            counter.subject.oracle = policy
            async with Gateway(WIRES) as gateway:
                counter = Counter(gateway, counter.subject)
                async with counter.attempt() as (trajectory, binding):
                    trajectory.session.speaker = Speaker(policy, MessagesOnly())
                    again = await ask(counter, binding, wire, BODIES[wire]())
                    assert again.body == first.body
                    assert not engine.calls()
                    other = await ask(counter, binding, wire, BODIES[wire](OTHER))
                    assert other.body != first.body
                    assert [call.images for call in engine.calls()] == [(OTHER,)]
            await policy.aclose()

    perform(body)


def test_what_the_libraries_send_goes_on_from_the_reply():
    async def body():
        async with engine_behind("chat", images=True) as (engine, counter, binding):
            async with openai_client(binding) as client:
                messages = chat_body()["messages"]
                chat = await client.chat.completions.create(model="m", messages=messages)
                messages += [
                    chat.choices[0].message.model_dump(),
                    {"role": "user", "content": "sure?"},
                ]
                await client.chat.completions.create(model="m", messages=messages)
                first = await client.responses.create(**responses_body())
                await client.responses.create(
                    model="m", input="sure?", previous_response_id=first.id
                )
            async with anthropic_client(binding) as client:
                await client.messages.create(**anthropic_body())
            history = await counter.subject.history()
            assert [call.images for call in engine.calls()] == [(DATA,)] * 5
        steps = history.generations
        assert [step.base for step in steps[:2]] == ["", steps[0].path]
        assert steps[1].added == (user("sure?"),)

    perform(body)


def test_a_tools_result_may_be_an_image():
    async def body():
        use = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
        block = anthropic_body()["messages"][0]["content"][1]
        result = {"type": "tool_result", "tool_use_id": "t1", "content": [block]}
        turns = [
            {"role": "user", "content": "look"},
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]},
        ]
        async with engine_behind("chat", images=True) as (engine, counter, binding):
            reply = await ask(counter, binding, MESSAGES, anthropic_body(messages=turns))
            assert reply.status == 200, reply.body
            assert [call.images for call in engine.calls()] == [(DATA,)]

    perform(body)


def test_no_image_is_stored_twice():
    """By several choices, a rewritten history, a sub-agent, or a task that has it already."""

    async def body():
        async with engine_behind("chat", images=True) as (engine, counter, binding):
            first = chat_body(text="one", n=3)
            assert (await ask(counter, binding, CHAT, first)).status == 200
            again = {"role": "user", "content": "again"}
            for system in ("be kind", "be short"):
                turns = [{"role": "system", "content": system}, *first["messages"], again]
                request = {"model": "m", "messages": turns}
                assert (await ask(counter, binding, CHAT, request)).status == 200
            history = await counter.subject.history()
            view = view_of(history, counter.subject)
            whole = [
                item
                for step in history.generations
                for item in step.added
                if not isinstance(item, str) and item.images
            ]
            assert len(whole) == 1
            assert all(any(token.images for token in turn.prompt) for turn in view.turns)
            assert [call.images for call in engine.calls()] == [(DATA,)] * 5

    perform(body)


def test_an_image_of_the_task_is_recorded_by_reference():
    async def body():
        task = Task(id="t", messages=(SEEN,))
        with FakeEngine(dialect="chat", images=True) as engine:
            policy = EnginePolicy(engine.url, engine.model)
            await policy.check()
            subject = TrajectoryUnderTest(policy, task=task)
            async with Gateway(WIRES) as gateway:
                counter = Counter(gateway, subject)
                async with counter.attempt() as (trajectory, binding):
                    trajectory.session.speaker = Speaker(policy, MessagesOnly())
                    assert (await ask(counter, binding, CHAT, chat_body())).status == 200
            await policy.aclose()
            (step,) = (await subject.history()).generations
            assert step.added == ("task:0",)

    perform(body)


def test_it_is_shown_by_its_kind_and_size_and_exported_as_it_was():
    async def body():
        async with engine_behind("chat", images=True) as (_, counter, binding):
            await ask(counter, binding, CHAT, chat_body())
            await ask(counter, binding, CHAT, chat_body(SIGNED))
            view = view_of(await counter.subject.history(), counter.subject)
        shown = "\n".join(_lines(view, None, full=True))
        assert "user: what is it?[image png 12 kB]" in shown
        assert "user: what is it?[image from pictures.example]" in shown
        assert PIXELS[:40] not in shown
        assert "s3cr3t" not in shown
        first, second = (messages_of(view, step)[0] for step in view.history.generations)
        assert first["content"] == chat_body()["messages"][0]["content"]
        assert second["content"] == chat_body(SIGNED)["messages"][0]["content"]

    perform(body)


@pytest.mark.parametrize(("wire", "param"), [
    (CHAT, "messages[0].content"), (RESPONSES, "input[0].content"), (MESSAGES, "messages.0.content")
])  # fmt: skip
@pytest.mark.parametrize("dialect", ["vllm", "vllm-scale-out", "sglang", "fireworks"])
def test_an_engine_that_is_sent_tokens_is_sent_no_images(dialect, wire, param):
    async def body():
        async with engine_behind(dialect) as (engine, counter, binding):
            seen = len(engine.calls())
            reply = await ask(counter, binding, wire, BODIES[wire]())
            error = reply.json["error"]
            assert reply.status == 400
            assert param in json.dumps(error)
            assert "the dialect chat" in error["message"]
            assert len(engine.calls()) == seen
            assert (await ask(counter, binding, wire, BODIES[wire](SIGNED))).status == 400
            assert not (await counter.subject.history()).generations

    perform(body)


def test_nor_are_the_tokens_of_an_image_counted():
    async def body():
        counted = {**anthropic_body()}
        del counted["max_tokens"]
        async with engine_behind("vllm") as (_, counter, binding):
            reply = await ask(counter, binding, COUNT, counted)
            assert reply.status == 400
            assert "messages.0.content" in reply.json["error"]["message"]

    perform(body)


@pytest.mark.parametrize("wire", BODIES)
def test_an_engine_that_refuses_images_is_asked_once_and_quoted(wire):
    async def body():
        async with engine_behind("chat") as (engine, counter, binding):
            before = engine.stats().requests
            reply = await ask(counter, binding, wire, BODIES[wire](SIGNED))
            assert reply.status == 400
            assert "is not a multimodal model" in reply.json["error"]["message"]
            assert engine.stats().requests == before + 1
            assert b"s3cr3t" not in reply.body
            refused = list((await counter.subject.history()).refusals.values())
            assert len(refused) == 1
            assert "s3cr3t" not in refused[0].message
            # The agent can go on without it.
            plain = chat_body(messages=[{"role": "user", "content": "what is it?"}])
            assert (await ask(counter, binding, CHAT, plain)).status == 200

    perform(body)


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "data:text/plain,x", "cat.jpg", "", "ftp://x/y"]
)
@pytest.mark.parametrize("wire", [CHAT, RESPONSES])
def test_only_addresses_of_images_reach_an_engine(wire, url):
    async def body():
        async with engine_behind("chat", images=True) as (engine, counter, binding):
            reply = await ask(counter, binding, wire, BODIES[wire](url))
            assert reply.status == 400
            assert "image_url" in reply.json["error"]["param"]
            assert not engine.calls()

    perform(body)


def test_a_body_that_is_too_large_is_refused_as_that():
    async def body():
        async with opened(limits=GatewayLimits(body=10_000)) as (counter, _, binding):
            reply = await ask(counter, binding, CHAT, chat_body())
            assert reply.status == 413

    perform(body)
