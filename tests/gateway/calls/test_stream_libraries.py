"""Text reaches an agent while the engine samples it: the published libraries, on every wire.

That it is live is proved by the engine: it is held in the middle of the reply while the first of it
is read, and goes on when the test says so.
"""

import asyncio

import anthropic
import openai
import pytest

from holdfast.testing import FakeEngine
from support.gateway.counter import exchange, post
from support.gateway.streams import (
    ADDING,
    TEXT,
    THOUGHT,
    completions,
    held,
    release,
    streaming,
    unchunked,
    until_held,
)

MESSAGES = [{"role": "user", "content": "hello"}]
REQUEST = {"model": "m", "messages": MESSAGES}
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "add", "parameters": PARAMETERS}}


@pytest.fixture(scope="module")
def engine():
    """A long text, a text with a call, reasoning with either; without a conversation, letters."""
    replies = (f"@0 {TEXT}", f"@1 {TEXT} {ADDING}", f"@2 {THOUGHT}{TEXT}", f"@3 {THOUGHT}{ADDING}")
    with FakeEngine(replies=replies, mean_length=0) as engine:
        yield engine


def conversation(turn: int) -> list[dict[str, str]]:
    """One that the engine answers with its reply of this turn."""
    past = [MESSAGES[0], {"role": "assistant", "content": "hm"}] * turn
    return [*past, {"role": "user", "content": "go on"}]


def openai_client(binding):
    return openai.AsyncOpenAI(base_url=f"{binding.url}/v1", api_key=binding.key, max_retries=0)


def anthropic_client(binding):
    return anthropic.AsyncAnthropic(base_url=binding.url, api_key=binding.key, max_retries=0)


async def whole(counter, binding, path: str, body: dict):
    """The answer as the next attempt is told it, in JSON."""
    counter.gateway.release(binding)
    async with counter.attempt() as (_, again):
        return (await exchange(counter.port, post(path, body, again))).json


class Reading:
    """Reads a stream until it says something, checks that the engine is not done, and goes on."""

    def __init__(self, engine: FakeEngine):
        self._engine = engine
        self.was_live = False

    async def check_live(self, text: str | None) -> None:
        if text and not self.was_live:
            assert await completions(self._engine) == 0, "the generation had ended"
            self.was_live = True
            await release(self._engine)


@pytest.mark.parametrize("turn", range(4))
async def test_a_chat_is_told_while_it_is_sampled(engine, turn):
    async with streaming(engine, held(110 if turn == 2 else 50)) as (counter, _, binding):
        request = {"model": "m", "messages": conversation(turn), "tools": [TOOL]}
        reading, reasoning, text, chunks = Reading(engine), "", "", []
        async with openai_client(binding) as client:
            made = await client.chat.completions.create(**request, stream=True)
            async for chunk in made:
                chunks.append(chunk)
                for choice in chunk.choices:
                    thought = getattr(choice.delta, "reasoning_content", None) or ""
                    reasoning, text = reasoning + thought, text + (choice.delta.content or "")
                    await reading.check_live(thought or choice.delta.content)
        assert reading.was_live
        reply = await whole(counter, binding, "/v1/chat/completions", request)
        message = reply["choices"][0]["message"]
        assert (text, reasoning) == (
            message["content"] or "",
            message.get("reasoning_content", ""),
        )
        calls = [
            tool_call
            for c in chunks
            if c.choices
            for tool_call in c.choices[0].delta.tool_calls or ()
        ]
        arguments = "".join(call.function.arguments or "" for call in calls)
        assert arguments == "".join(
            item["function"]["arguments"] for item in message.get("tool_calls", ())
        )
        assert bool(calls) == (turn in (1, 3))
        assert chunks[0].id == reply["id"]
        assert chunks[0].created == reply["created"]
        assert chunks[-1].choices[0].finish_reason == reply["choices"][0]["finish_reason"]
        assert len(engine.requests()) == 1


async def test_the_openai_librarys_own_sum_of_a_live_stream_is_the_answer(engine):
    for turn in (0, 1, 3):
        async with streaming(engine, held(50)) as (counter, _, binding):
            request = {"model": "m", "messages": conversation(turn), "tools": [TOOL]}
            async with (
                openai_client(binding) as client,
                client.chat.completions.stream(**request) as stream,
            ):
                reading = Reading(engine)
                async for event in stream:
                    if event.type == "chunk" and event.chunk.choices:
                        delta = event.chunk.choices[0].delta
                        thought = getattr(delta, "reasoning_content", None)
                        await reading.check_live(delta.content or thought)
                final = await stream.get_final_completion()
            assert reading.was_live
            reply = await whole(counter, binding, "/v1/chat/completions", request)
            (message,), (expected,) = final.choices, reply["choices"]
            assert message.message.content == expected["message"]["content"]
            calls = [tool_call.id for tool_call in message.message.tool_calls or ()]
            assert calls == [item["id"] for item in expected["message"].get("tool_calls", ())]


@pytest.mark.parametrize("turn", range(4))
async def test_a_message_is_told_while_it_is_sampled(engine, turn):
    async with streaming(engine, held(50)) as (counter, _, binding):
        tool = {"name": "add", "input_schema": PARAMETERS}
        request = {"model": "m", "messages": conversation(turn), "max_tokens": 900}
        request["tools"] = [tool]
        reading = Reading(engine)
        async with (
            anthropic_client(binding) as client,
            client.messages.stream(**request) as stream,
        ):
            async for event in stream:
                if event.type == "content_block_delta" and not reading.was_live:
                    await reading.check_live(event.delta.type)
            final = await stream.get_final_message()
        assert reading.was_live
        reply = await whole(counter, binding, "/v1/messages", request)
        content = [item.model_dump(exclude_none=True) for item in final.content]
        assert [item["type"] for item in content] == [item["type"] for item in reply["content"]]
        for message, expected in zip(content, reply["content"], strict=True):
            assert {name: message[name] for name in expected} == expected
        assert final.stop_reason == reply["stop_reason"]
        assert final.usage.output_tokens == reply["usage"]["output_tokens"]
        assert final.usage.input_tokens == reply["usage"]["input_tokens"]
        assert final.id == reply["id"]


@pytest.mark.parametrize("turn", range(4))
async def test_a_response_is_told_while_it_is_sampled(engine, turn):
    async with streaming(engine, held(50)) as (counter, _, binding):
        tool = {"type": "function", "name": "add", "parameters": PARAMETERS}
        request = {"model": "m", "input": conversation(turn), "tools": [tool]}
        reading, numbers, text, final = Reading(engine), [], "", None
        async with openai_client(binding) as client:
            async for event in await client.responses.create(**request, stream=True):
                numbers.append(event.sequence_number)
                if event.type.endswith("text.delta"):
                    await reading.check_live(event.delta)
                if event.type == "response.output_text.delta":
                    text += event.delta
                if event.type == "response.completed":
                    final = event.response
        assert reading.was_live
        assert numbers == list(range(len(numbers)))
        reply = await whole(counter, binding, "/v1/responses", request)
        assert text == "".join(
            part["text"] for item in reply["output"] if item["type"] == "message"
            for part in item["content"]
        )  # fmt: skip
        assert final.output_text == text
        assert [item.id for item in final.output] == [item["id"] for item in reply["output"]]
        assert final.id == reply["id"]
        assert final.usage.output_tokens == reply["usage"]["output_tokens"]


async def test_a_bare_completion_is_told_while_it_is_sampled(engine):
    async with streaming(engine, held(40)) as (counter, _, binding):
        request = {"model": "m", "prompt": list(b"hello"), "max_tokens": 100}
        reading, text = Reading(engine), ""
        async with openai_client(binding) as client:
            async for chunk in await client.completions.create(**request, stream=True):
                text += chunk.choices[0].text
                await reading.check_live(chunk.choices[0].text)
        assert reading.was_live
        reply = await whole(counter, binding, "/v1/completions", request)
        assert text == reply["choices"][0]["text"]


async def test_two_choices_are_told_side_by_side(engine):
    async with streaming(engine, held(50)) as (counter, _, binding):
        request = {**REQUEST, "n": 2}
        texts, before_release, finished = ["", ""], set(), []
        async with openai_client(binding) as client:
            async for chunk in await client.chat.completions.create(**request, stream=True):
                for choice in chunk.choices:
                    texts[choice.index] += choice.delta.content or ""
                    finished += [choice.finish_reason] if choice.finish_reason else []
                streamed = {index for index, text in enumerate(texts) if text}
                if streamed != before_release and len(streamed) == 2:
                    assert await completions(engine) == 0
                    await release(engine, 2)
                before_release = streamed
        reply = await whole(counter, binding, "/v1/chat/completions", request)
        assert texts == [choice["message"]["content"] for choice in reply["choices"]]
        assert finished == ["stop", "stop"]
        assert len(engine.requests()) == 2


async def test_logprobs_and_usage_of_a_live_stream_come_whole(engine):
    async with streaming(engine, held(50)) as (counter, _, binding):
        request = {**REQUEST, "logprobs": True}
        more = {"stream": True, "stream_options": {"include_usage": True}}
        reading, logprobs, usage = Reading(engine), [], None
        async with openai_client(binding) as client:
            async for chunk in await client.chat.completions.create(**request, **more):
                usage = chunk.usage or usage
                for choice in chunk.choices:
                    await reading.check_live(choice.delta.content)
                    logprobs += choice.logprobs.content if choice.logprobs else []
        assert reading.was_live
        reply = await whole(counter, binding, "/v1/chat/completions", request)
        expected = reply["choices"][0]["logprobs"]["content"]
        assert [(logprob.token, logprob.logprob) for logprob in logprobs] == [
            (item["token"], item["logprob"]) for item in expected
        ]
        assert usage.completion_tokens == reply["usage"]["completion_tokens"]


async def test_a_stream_that_is_told_again_has_the_same_bytes_each_time(engine):
    async with streaming(engine) as (counter, _, binding):
        raw = {**REQUEST, "stream": True}
        live = await exchange(counter.port, post("/v1/chat/completions", raw, binding))
        counter.gateway.release(binding)
        messages = []
        for _ in range(2):
            async with counter.attempt() as (_, again):
                reply = await exchange(counter.port, post("/v1/chat/completions", raw, again))
                messages.append(unchunked(reply.body))
        assert messages[0] == messages[1]
        assert messages[0].endswith(b"data: [DONE]\n\n")
        assert unchunked(live.body).endswith(b"data: [DONE]\n\n")
        assert len(engine.requests()) == 1


async def test_streams_can_be_told_whole(engine):
    async with streaming(engine, held(50), stream_tokens=0) as (counter, _, binding):
        raw = post("/v1/chat/completions", {**REQUEST, "stream": True}, binding)
        waiting = asyncio.create_task(exchange(counter.port, raw))
        await until_held(engine)
        assert not (await counter.subject.history()).drafts
        await release(engine)
        assert unchunked((await waiting).body).endswith(b"data: [DONE]\n\n")
