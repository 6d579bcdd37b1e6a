"""A stop string ends a reply and is not a part of what is told; the tokens keep it."""

import pytest

from holdfast.gateway.agents.subprocess import BlackBoxRolloutProcessor
from support.engine.local_run import LocalRun
from support.rollout.stage import Oracle

REPLY = "Thought: look\nObservation:"
STREAMED = "Thought: look\n"


def played(agent, answer=lambda request: REPLY) -> LocalRun:
    local = LocalRun(policy=Oracle(answer))
    local.run(BlackBoxRolloutProcessor(agent))
    history = local.history()
    assert history.status.name == "COMPLETED", history.failures
    return local


def assert_one_exact_conversation(local: LocalRun) -> None:
    history = local.history()
    assert (len(history.generations), history.prefix_breaks, len(local.rows())) == (2, 0, 1)
    first, second = history.generations
    assert second.base == first.path
    assert first.message.text == REPLY, "what was sampled is recorded"


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_is_told_the_text_before_it_and_goes_on_with_the_exact_tokens(stream):
    async def agent(binding, task):
        from openai import AsyncOpenAI

        async with AsyncOpenAI(base_url=f"{binding.url}/v1", api_key=binding.key) as client:
            messages = [{"role": "user", "content": "go"}]
            for _ in range(2):
                made = await client.chat.completions.create(
                    model="m", messages=messages, stop=["Observation:"], stream=stream
                )
                if stream:
                    chunks = [chunk.choices[0] async for chunk in made if chunk.choices]
                    text = "".join(chunk.delta.content or "" for chunk in chunks)
                    reason = chunks[-1].finish_reason
                else:
                    text, reason = made.choices[0].message.content, made.choices[0].finish_reason
                assert (text, reason) == (STREAMED, "stop")
                messages.append({"role": "assistant", "content": text})
                messages.append({"role": "user", "content": "Observation: nothing"})

    assert_one_exact_conversation(played(agent))


@pytest.mark.parametrize("stream", [False, True])
def test_an_anthropic_client_is_told_which_one_it_was(stream):
    async def agent(binding, task):
        from anthropic import AsyncAnthropic

        async with AsyncAnthropic(base_url=binding.url, api_key=binding.key) as client:
            messages = [{"role": "user", "content": "go"}]
            for _ in range(2):
                request = {
                    "model": "m",
                    "max_tokens": 100,
                    "messages": messages,
                    "stop_sequences": ["Never", "Observation:"],
                }
                if stream:
                    async with client.messages.stream(**request) as events:
                        made = await events.get_final_message()
                else:
                    made = await client.messages.create(**request)
                assert made.content[0].text == STREAMED
                assert (made.stop_reason, made.stop_sequence) == ("stop_sequence", "Observation:")
                messages.append({"role": "assistant", "content": made.content})
                messages.append({"role": "user", "content": "Observation: nothing"})

    assert_one_exact_conversation(played(agent))


def test_an_agent_that_is_killed_is_told_the_same_again():
    async def agent(binding, task):
        from openai import AsyncOpenAI

        async with AsyncOpenAI(base_url=f"{binding.url}/v1", api_key=binding.key) as client:
            messages = [{"role": "user", "content": "go"}]
            made = await client.chat.completions.create(
                model="m", messages=messages, stop=["Observation:"]
            )
            texts.append(made.model_dump_json())
        if len(texts) == 1:
            raise RuntimeError("killed")

    texts: list[str] = []
    local = played(agent)
    assert texts[0] == texts[1]
    assert len(local.policy.requests) == 1


def test_a_reply_that_only_ran_out_of_tokens_is_told_whole():
    async def agent(binding, task):
        from openai import AsyncOpenAI

        async with AsyncOpenAI(base_url=f"{binding.url}/v1", api_key=binding.key) as client:
            made = await client.chat.completions.create(
                model="m",
                messages=[{"role": "user", "content": "go"}],
                stop=["nowhere"],
                max_tokens=5,
            )
            assert (made.choices[0].message.content, made.choices[0].finish_reason) == (
                REPLY[:5],
                "length",
            )

    played(agent)
