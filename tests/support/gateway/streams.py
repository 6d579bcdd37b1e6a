"""A gateway before a real engine process that streams, for tests of streams."""

import asyncio
from contextlib import asynccontextmanager

from holdfast.gateway.limits import GatewayLimits
from holdfast.gateway.server import Gateway
from holdfast.gateway.wires.all import WIRES
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.rendering.parse_tool_calls import parse_hermes, split_reasoning
from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.policy.retry import RetryPolicy
from holdfast.records.message import Message, Role, user
from holdfast.records.task import Task
from holdfast.testing import FakeEngine, Fault, FaultKind
from support.gateway.counter import Counter
from support.rollout.stage import TrajectoryUnderTest

TEXT = "Once upon a time there was a very long answer, naïve and 雪-white, of {n} words and more."
ADDING = '<tool_call>{"name": "add", "arguments": {"a": {n}, "b": 2}}</tool_call>'
THOUGHT = "<think>\nLet me think about it for quite a while, {n} times.\n</think>\n\n"
RETRY = RetryPolicy(tries=5, deadline=60, try_timeout=20, base=0.01, cap=0.05)


class ThinkingBytes(ByteRenderer):
    """Bytes in which reasoning is told from text."""

    def parse(self, completion, *, prompt=(), tools=()):
        reasoning, rest = split_reasoning(self.decode(completion), opened=False)
        text, calls = parse_hermes(rest)
        return Message(Role.ASSISTANT, text, tool_calls=calls, reasoning=reasoning)


class StreamedTrajectory(TrajectoryUnderTest):
    """A trajectory on an engine."""

    renderer = ThinkingBytes()
    partial_tokens = 0

    async def session(self, **options):
        session = await super().session(partial_tokens=self.partial_tokens, **options)
        session.speaker = type(session.speaker)(session.speaker.policy, self.renderer)
        return session


@asynccontextmanager
async def streaming(engine: FakeEngine, *faults: Fault, journal=None, **limits):
    """(counter, trajectory, binding) on an engine with these faults, and its counters as new."""
    await asyncio.to_thread(engine.reset)
    await asyncio.to_thread(engine.set_faults, *faults)
    policy = EnginePolicy(engine.url, engine.model, retry=RETRY)
    try:
        await policy.check()
        subject = StreamedTrajectory(
            policy, task=Task(id="t", messages=(user("do it"),)), journal=journal
        )
        async with Gateway(WIRES, limits=GatewayLimits(**limits)) as gateway:
            counter = Counter(gateway, subject)
            async with counter.attempt() as (trajectory, binding):
                yield counter, trajectory, binding
    finally:
        await policy.aclose()


def held(after: int = 60, matching: str = "") -> Fault:
    """The engine stops after so many tokens, until it is told to go on."""
    return Fault(FaultKind.HOLD, after=after, matching=matching)


async def until_held(engine: FakeEngine, count: int = 1) -> None:
    async with asyncio.timeout(60):
        while (await asyncio.to_thread(engine.stats)).held < count:
            await asyncio.sleep(0.01)


async def release(engine: FakeEngine, count: int = 1) -> None:
    """Lets go of as many as are, or are about to be, held."""
    await until_held(engine, count)
    await asyncio.to_thread(engine.release)


async def completions(engine: FakeEngine) -> int:
    """Generations that have ended."""
    return (await asyncio.to_thread(engine.stats)).completions


def unchunked(raw: bytes) -> bytes:
    """The body of an answer that came in chunks, as far as they are whole."""
    data = b""
    while raw:
        size, _, rest = raw.partition(b"\r\n")
        length = int(size or b"0", 16)
        if not length or len(rest) < length:
            break
        data, raw = data + rest[:length], rest[length + 2 :]
    return data
