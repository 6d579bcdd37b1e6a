"""OpenAI's and Anthropic's libraries before a gateway, with an engine behind it."""

import asyncio
from contextlib import asynccontextmanager

import anthropic
import openai

from holdfast.gateway.server import Gateway
from holdfast.gateway.wires.all import WIRES
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.rendering.messages_only import MessagesOnly
from holdfast.rollout.replay.speaker import Speaker
from holdfast.testing import FakeEngine
from support.gateway.counter import Counter
from support.rollout.stage import TrajectoryUnderTest

HI = [{"role": "user", "content": "hi"}]


@asynccontextmanager
async def engine_behind(dialect="vllm", **options):
    """(engine, counter, binding)"""
    with FakeEngine(dialect=dialect, **options) as engine:
        policy = EnginePolicy(engine.url, engine.model)
        await policy.check()
        subject = TrajectoryUnderTest()
        subject.oracle = policy
        try:
            async with Gateway(WIRES) as gateway:
                counter = Counter(gateway, subject)
                async with counter.attempt() as (trajectory, binding):
                    if not policy.has_tokens:
                        trajectory.session.speaker = Speaker(policy, MessagesOnly())
                    yield engine, counter, binding
        finally:
            await policy.aclose()


def openai_client(binding, **options):
    return openai.AsyncOpenAI(
        base_url=f"{binding.url}/v1", api_key=binding.key, max_retries=0, **options
    )


def anthropic_client(binding):
    return anthropic.AsyncAnthropic(base_url=binding.url, api_key=binding.key, max_retries=0)


def perform(body):
    return asyncio.run(body())
