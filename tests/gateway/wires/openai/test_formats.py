"""JSON and reasoning effort, as the published libraries ask for them, with an engine behind it."""

import json
from typing import Literal

import anthropic
import openai
import pytest
from pydantic import BaseModel

from holdfast.policy.policy import Completion
from holdfast.policy.rendering.messages_only import MessagesOnly
from holdfast.records.errors import BadRequest, Unsupported
from holdfast.records.message import FunctionCall, Message, Role, ToolCall
from holdfast.records.step import Generated
from holdfast.rollout.replay.speaker import Speaker
from support.gateway.counter import CHAT, MESSAGES, RESPONSES, opened
from support.gateway.libraries import HI, anthropic_client, engine_behind, openai_client, perform
from support.rollout.renderers import Thinking
from support.rollout.stage import Oracle


class Weather(BaseModel):
    city: str
    days: int
    sky: Literal["clear", "cloudy"]


SCHEMA = Weather.model_json_schema()
STRICT = {"name": "weather", "schema": SCHEMA, "strict": True}


@pytest.mark.parametrize("dialect", ["vllm", "vllm-scale-out", "sglang", "fireworks", "chat"])
def test_every_library_parses_what_every_engine_says(dialect):
    async def body():
        async with engine_behind(dialect) as (engine, counter, binding):
            async with openai_client(binding) as client:
                chat = await client.chat.completions.parse(
                    model="m", messages=HI, response_format=Weather
                )
                response = await client.responses.parse(model="m", input="hi", text_format=Weather)
            async with anthropic_client(binding) as client:
                message = await client.messages.parse(
                    model="m", max_tokens=200, messages=HI, output_format=Weather
                )
            parsed = [chat.choices[0].message.parsed, response.output_parsed, message.parsed_output]
            assert all(isinstance(item, Weather) for item in parsed)
            assert response.text.format.type == "json_schema"
            assert all(
                call.schema["properties"].keys() == {"city", "days", "sky"}
                for call in engine.calls()
            )
            history = await counter.subject.history()
            assert all(
                isinstance(generation.sampling.json, str) for generation in history.generations
            )

    perform(body)


@pytest.mark.parametrize("stream", [False, True])
def test_any_object_is_one_whether_streamed_or_not(stream):
    async def body():
        async with engine_behind() as (_, _, binding), openai_client(binding) as client:
            made = await client.chat.completions.create(
                model="m", messages=HI, response_format={"type": "json_object"}, stream=stream
            )
            if stream:
                parts = [item.choices[0].delta.content or "" async for item in made]
                assert isinstance(json.loads("".join(parts)), dict)
            else:
                assert isinstance(json.loads(made.choices[0].message.content), dict)
            bare = await client.completions.create(
                model="m",
                prompt="a number: ",
                max_tokens=200,
                extra_body={"response_format": {"type": "json_schema", "json_schema": STRICT}},
            )
            Weather.model_validate_json(bare.choices[0].text)

    perform(body)


def test_json_is_part_of_what_makes_a_request_the_same():
    async def body():
        async with engine_behind() as (engine, counter, binding), openai_client(binding) as client:
            request = {"model": "m", "messages": HI}
            plain = await client.chat.completions.create(**request)
            made = await client.chat.completions.create(
                **request, response_format={"type": "json_object"}
            )
            assert plain.choices[0].message.content != made.choices[0].message.content
            calls = len(engine.calls())
            async with counter.attempt() as (_, again), openai_client(again) as client:
                reply = await client.chat.completions.create(
                    **request, response_format={"type": "json_object"}
                )
                assert reply.choices[0].message.content == made.choices[0].message.content
            assert len(engine.calls()) == calls

    perform(body)


def cannot(request):
    return Unsupported("json", "no engine of ours can")


def bad_schema(request):
    return BadRequest("http://e answered 400: Grammar error: Invalid type: nonsense")


@pytest.mark.parametrize(("answer", "arguments"), [(cannot, "no engine"), (bad_schema, "nonsense")])
def test_what_the_engine_cannot_is_refused_in_the_providers_shape_and_the_attempt_goes_on(
    answer, arguments
):
    async def body():
        headers = []

        def once(request):
            headers.append(request)
            return answer(request) if request.sampling.json else "fine"

        async with opened(once) as (counter, trajectory, binding):
            async with openai_client(binding) as client:
                with pytest.raises(openai.BadRequestError, match=arguments) as refused:
                    await client.chat.completions.create(
                        model="m", messages=HI, response_format={"type": "json_object"}
                    )
                assert refused.value.param == "response_format"
                form = {"type": "json_schema", **STRICT}
                with pytest.raises(openai.BadRequestError, match=arguments) as refused:
                    await client.responses.create(model="m", input="hi", text={"format": form})
                assert refused.value.param == "text.format"
            async with anthropic_client(binding) as client:
                form = {"type": "json_schema", "schema": SCHEMA}
                with pytest.raises(anthropic.BadRequestError, match=r"output_config\.format"):
                    await client.messages.create(
                        model="m", max_tokens=9, messages=HI, output_config={"format": form}
                    )
            assert not trajectory.broken.is_set()
            assert not (await counter.subject.history()).steps
            async with openai_client(binding) as client:
                made = await client.chat.completions.create(model="m", messages=HI)
                assert made.choices[0].message.content == "fine"

    perform(body)


def test_json_with_tools_is_refused_where_tokens_are_sampled():
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}

    async def body():
        async with engine_behind() as (engine, _, binding), openai_client(binding) as client:
            request = {"model": "m", "messages": HI, "response_format": {"type": "json_object"}}
            with pytest.raises(openai.BadRequestError, match="cannot call tools") as refused:
                await client.chat.completions.create(**request, tools=[tool])
            assert refused.value.param == "response_format"
            assert not engine.calls()
            await client.chat.completions.create(**request, tools=[tool], tool_choice="none")

    perform(body)


def test_a_chat_engine_may_call_a_tool_instead():
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    message = Message(Role.ASSISTANT, "", tool_calls=(ToolCall("c", FunctionCall("look", "{}")),))

    class Calling(Oracle):
        async def sample(self, request):
            return Completion(b"", b"", "stop", (), self.model, 1, 0.0, message=message)

    async def body():
        async with opened() as (_, trajectory, binding), openai_client(binding) as client:
            trajectory.session.speaker = Speaker(Calling(), MessagesOnly())
            request = {"model": "m", "messages": HI, "response_format": {"type": "json_object"}}
            made = await client.chat.completions.create(**request, tools=[tool])
            assert made.choices[0].message.tool_calls[0].function.name == "look"

    perform(body)


EFFORTS = {
    CHAT: "reasoning_effort",
    RESPONSES: "reasoning.effort",
    MESSAGES: "output_config.effort",
}


async def ask_with_effort(binding, wire, effort):
    if wire == MESSAGES:
        async with anthropic_client(binding) as client:
            return await client.messages.create(
                model="m", max_tokens=9, messages=HI, output_config={"effort": effort}
            )
    async with openai_client(binding) as client:
        if wire == RESPONSES:
            return await client.responses.create(
                model="m", input="hi", reasoning={"effort": effort}
            )
        return await client.chat.completions.create(model="m", messages=HI, reasoning_effort=effort)


@pytest.mark.parametrize("wire", EFFORTS)
def test_an_effort_is_written_where_the_renderer_knows_it(wire):
    async def body():
        async with opened() as (counter, trajectory, binding):
            voice = trajectory.session.speaker
            trajectory.session.speaker = Speaker(voice.policy, Thinking())
            await ask_with_effort(binding, wire, "low")
            (request,) = counter.subject.oracle.requests
            assert bytes(request.prompt[:3].tolist()) == b"low"
            (step,) = (await counter.subject.history()).steps.values()
            assert isinstance(step, Generated)
            assert step.sampling.reasoning_effort == "low"

    perform(body)


@pytest.mark.parametrize("wire", EFFORTS)
def test_an_effort_is_refused_by_its_name_where_it_does_not(wire):
    async def body():
        async with opened() as (counter, trajectory, binding):
            with pytest.raises((openai.BadRequestError, anthropic.BadRequestError)) as refused:
                await ask_with_effort(binding, wire, "low")
            error = refused.value.body.get("error", refused.value.body)
            assert EFFORTS[wire] in error["message"]
            assert error.get("param", EFFORTS[wire]) == EFFORTS[wire]
            assert not counter.subject.oracle.requests
            assert not trajectory.broken.is_set()

    perform(body)


def test_a_chat_engine_is_told_the_effort():
    async def body():
        async with engine_behind("chat") as (engine, _, binding):
            await ask_with_effort(binding, CHAT, "high")
            assert [call.effort for call in engine.calls()] == ["high"]

    perform(body)


def test_high_is_what_anthropic_calls_no_effort_at_all():
    async def body():
        async with opened() as (counter, _, binding):
            await ask_with_effort(binding, MESSAGES, "high")
            (request,) = counter.subject.oracle.requests
            assert request.sampling.reasoning_effort is None

    perform(body)


def test_tokens_are_counted_at_the_effort_that_is_asked_for():
    async def body():
        async with opened() as (_, trajectory, binding), anthropic_client(binding) as client:
            voice = trajectory.session.speaker
            trajectory.session.speaker = Speaker(voice.policy, Thinking())
            request = {"model": "m", "messages": HI}
            plain = await client.messages.count_tokens(**request)
            low = await client.messages.count_tokens(**request, output_config={"effort": "low"})
            assert low.input_tokens == plain.input_tokens + len("low")

    perform(body)


def test_a_wire_reads_what_it_cannot_do_before_a_trajectory_does():
    """Nothing of a malformed format reaches the engine."""

    async def body():
        async with opened() as (counter, _, binding), openai_client(binding) as client:
            for form in ({"type": "xml"}, {"type": "json_schema"}, {"type": "json_schema", "x": 1}):
                with pytest.raises(openai.BadRequestError) as refused:
                    await client.chat.completions.create(
                        model="m", messages=HI, response_format=form
                    )
                assert refused.value.param.startswith("response_format")
            assert not counter.subject.oracle.requests

    perform(body)
