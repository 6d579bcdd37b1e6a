"""Forced tools, one call at a time, seeds and `top_k`, as agents ask for them, with an engine."""

import json

import anthropic
import openai
import pytest

from holdfast.policy.rendering.structure import structure_of
from holdfast.records.encoding.tokens import unpack_ids
from holdfast.records.errors import Unsupported
from holdfast.records.sampling import Sampling
from support.gateway.counter import BODIES, CHAT, COMPLETIONS, exchange, opened, post
from support.gateway.libraries import HI, anthropic_client, engine_behind, openai_client, perform

ENGINES = ["vllm", "vllm-scale-out", "sglang"]


def schema(name: str) -> dict[str, object]:
    item = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    return {"name": name, "description": f"does {name}", "parameters": item}


NAMES = ("first", "second")
TOOLS = [{"type": "function", "function": schema(name)} for name in NAMES]
FLAT = [{"type": "function", **schema(name)} for name in NAMES]
ANTHROPIC = [
    {"name": name, "description": "does", "input_schema": schema(name)["parameters"]}
    for name in NAMES
]


@pytest.mark.parametrize("dialect", ENGINES)
def test_a_forced_call_is_sampled_in_the_models_own_markup(dialect):
    async def body():
        async with engine_behind(dialect) as (_, counter, binding):
            async with openai_client(binding) as client:
                request = {"model": "m", "messages": HI, "tools": TOOLS}
                chat = await client.chat.completions.create(**request, tool_choice="required")
                calls = chat.choices[0].message.tool_calls
                assert {call.function.name for call in calls} <= set(NAMES)
                assert isinstance(json.loads(calls[0].function.arguments)["n"], int)
                assert chat.choices[0].finish_reason == "tool_calls"
                named = {"type": "function", "function": {"name": "second"}}
                chat = await client.chat.completions.create(**request, tool_choice=named)
                assert [
                    tool_call.function.name for tool_call in chat.choices[0].message.tool_calls
                ] == ["second"]
                response = await client.responses.create(
                    model="m",
                    input="hi",
                    tools=FLAT,
                    tool_choice={"type": "function", "name": "first"},
                )
                assert [item.name for item in response.output] == ["first"]
            async with anthropic_client(binding) as client:
                request = {"model": "m", "messages": HI, "max_tokens": 500, "tools": ANTHROPIC}
                for choice in ({"type": "any"}, {"type": "tool", "name": "second"}):
                    reply = await client.messages.create(**request, tool_choice=choice)
                    assert reply.stop_reason == "tool_use"
                assert [item.name for item in reply.content] == ["second"]
        history = await counter.subject.history()
        # What was sampled is what counts: nothing is added to it, and it is all trained.
        assert all(step.trainable for step in history.generations)

    perform(body)


def test_one_call_at_a_time_is_kept_by_the_engine():
    async def body():
        async with engine_behind() as (_, _, binding), openai_client(binding) as client:
            for seed in range(8):
                chat = await client.chat.completions.create(
                    model="m",
                    messages=HI,
                    tools=TOOLS,
                    tool_choice="required",
                    parallel_tool_calls=False,
                    seed=seed,
                )
                assert len(chat.choices[0].message.tool_calls) == 1

    perform(body)


def test_a_call_that_cannot_be_forced_is_refused_with_the_way_out():
    async def body():
        async with engine_behind("fireworks") as (_, _, binding):
            async with openai_client(binding) as client:
                request = {"model": "m", "messages": HI, "tools": TOOLS}
                with pytest.raises(openai.BadRequestError, match="--ignore tool_choice") as message:
                    await client.chat.completions.create(**request, tool_choice="required")
                assert message.value.param == "tool_choice"
                with pytest.raises(openai.BadRequestError, match="--ignore parallel_tool_calls"):
                    await client.chat.completions.create(**request, parallel_tool_calls=False)
                choice = {"type": "function", "function": {"name": "third"}}
                with pytest.raises(openai.BadRequestError, match="not found in 'tools'"):
                    await client.chat.completions.create(**request, tool_choice=choice)
                # The attempt goes on.
                await client.chat.completions.create(**request)
            async with anthropic_client(binding) as client:
                with pytest.raises(anthropic.BadRequestError, match="--ignore tool_choice"):
                    await client.messages.create(
                        model="m",
                        messages=HI,
                        max_tokens=5,
                        tools=ANTHROPIC,
                        tool_choice={"type": "any"},
                    )

    perform(body)


def test_an_engine_that_takes_messages_is_told_what_to_call():
    async def body():
        async with engine_behind("chat") as (_, _, binding), openai_client(binding) as client:
            choice = {"type": "function", "function": {"name": "second"}}
            with pytest.raises(openai.BadRequestError, match="answered something else"):
                # The fake one knows nothing of it, which is noticed.
                await client.chat.completions.create(
                    model="m", messages=HI, tools=TOOLS, tool_choice=choice
                )

    perform(body)


def test_calls_in_another_markup_are_not_forced():
    class Another:
        name = "another"

    with pytest.raises(Unsupported, match="calls as another writes them"):
        structure_of(Another(), Sampling(tool_choice="required"), TOOLS)
    assert structure_of(Another(), Sampling(), TOOLS) == ""


@pytest.mark.parametrize("run_seed", [1, None])
def test_a_seed_is_kept_within_its_trajectory_and_differs_between_those_of_a_group(run_seed):
    async def seeds(sample: int) -> list[int | None]:
        async with opened(samples=2, seed=run_seed, sample=sample) as (counter, _, binding):
            for seed in (7, 7, 8, None):
                body = {"model": "m", "messages": HI, "seed": seed}
                reply = await exchange(counter.port, post(CHAT, body, binding))
                assert reply.status == 200
            return [request.seed for request in counter.subject.oracle.requests]

    async def body():
        first, again, other, none = await seeds(0)
        assert first == again != other
        assert (none is None) == (run_seed is None)
        assert first not in await seeds(1)

    perform(body)


def test_top_k_reaches_the_engine_and_makes_another_request():
    async def body():
        async with opened() as (counter, _, binding):
            for top_k in (5, 0, -1, None):
                body = {"model": "m", "messages": HI, "top_k": top_k}
                assert (await exchange(counter.port, post(CHAT, body, binding))).status == 200
            drawn = [request.sampling.top_k for request in counter.subject.oracle.requests]
            assert drawn == [5, 0, 0, 0]
            keys = {called.key for called in (await counter.subject.history()).calls.values()}
            assert len(keys) == 2

    perform(body)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_token_ids_are_told_where_they_are_asked_for(path, stream):
    async def body():
        async with opened() as (counter, _, binding):
            body = {**BODIES[path], "max_tokens": 50, "return_token_ids": True, "stream": stream}
            reply = await exchange(counter.port, post(path, body, binding))
            assert reply.status == 200, reply.body
            lines = reply.body.decode().splitlines() if stream else [f"data: {reply.body.decode()}"]
            messages = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
            choices = [choice for chunk in messages for choice in chunk["choices"]]
            (choice,) = [choice for choice in choices if "token_ids" in choice]
            (request,) = counter.subject.oracle.requests
            assert choice["prompt_token_ids"] == list(request.prompt)
            (step,) = (await counter.subject.history()).generations
            assert choice["token_ids"] == list(unpack_ids(step.ids))

    perform(body)


def test_token_ids_that_nobody_has_are_refused():
    async def body():
        async with engine_behind("chat") as (engine, _, binding), openai_client(binding) as client:
            with pytest.raises(openai.BadRequestError, match="--ignore return_token_ids"):
                await client.chat.completions.create(
                    model="m", messages=HI, extra_body={"return_token_ids": True}
                )
            assert not engine.requests()

    perform(body)
