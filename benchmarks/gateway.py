"""The gateway: CPU per call, replay and memory, against a bare proxy that captures what it relays.

What is compared: agents that ask for chat completions, each call the first of its conversation, so
that its whole prompt is new. On both sides the record is durable before the answer. The bare proxy
relays the agent's text, parses both ways and writes what it saw, many calls to one fsync; it keeps
no token, no logprob and no order, and could give nothing back. The gateway renders the prompt,
sends the engine 32,000 ids for 32 KB of text, gets them back and checks them. A proxy that has the
engine tell ids and logprobs, and keeps them, is told beside it: that is what a trainer could use.
"""

import asyncio
import statistics

import gateway_memory
import gateway_replay
from gateway_service import Agent, Service, client, service
from result import Result

from holdfast.testing import FakeEngine

ROUNDS = 3
AT_ONCE = 16
MODES = ("text", "proxy", "gateway")
SHAPES = {"400/100": (400, 100, 640), "4k/300": (4_000, 300, 320), "32k/500": (32_000, 500, 160)}


def measure() -> list[Result]:
    return [*_processor(), *gateway_replay.measure(), *gateway_memory.measure()]


def _processor() -> list[Result]:
    found = []
    with FakeEngine(mean_length=0) as engine:
        for name, shape in SHAPES.items():
            rounds = [[cpu(mode, engine.url, shape) for mode in MODES] for _ in range(ROUNDS)]
            ratio = statistics.median(ours / bare for bare, _, ours in rounds)
            kept = statistics.median(ours / tokens for _, tokens, ours in rounds)
            bare, tokens, ours = (min(column) * 1e3 for column in zip(*rounds, strict=True))
            detail = (
                f"{ours:.2f} ms a call, bare {bare:.2f}; keeping tokens {tokens:.2f}: {kept:.2f} ×"
            )
            found.append(
                Result(f"gateway: CPU per call / bare proxy, {name}", ratio, "×", "≤ 4", detail)
            )
            streamed = cpu("gateway", engine.url, shape, stream=True) * 1e3
            detail = f"{streamed:.2f} ms a call; told and durable every 16 tokens"
            name = f"gateway: CPU per streamed call / whole call, {name}"
            found.append(Result(name, streamed / ours, "×", "", detail))
    return found


def cpu(mode: str, engine: str, shape: tuple[int, int, int], *, stream: bool = False) -> float:
    """Seconds of CPU for each call."""
    prompt, reply, calls = shape
    with service(mode, engine, trajectories=AT_ONCE) as running:
        return asyncio.run(_asked(running, prompt, reply, calls=calls, stream=stream)) / calls


async def _asked(
    running: Service, prompt: int, reply: int, *, calls: int, stream: bool = False
) -> float:
    async with client() as session:
        agents = [await Agent.taken(session, running) for _ in range(AT_ONCE)]
        await ask(agents, prompt, reply, calls=2 * AT_ONCE, stream=stream)
        before = running.used()["cpu"]
        await ask(agents, prompt, reply, calls=calls, first=2, stream=stream)
        return running.used()["cpu"] - before


async def ask(
    agents: list[Agent],
    prompt: int,
    reply: int,
    *,
    calls: int,
    first: int = 0,
    stream: bool = False,
) -> None:
    """So many calls of all agents at once, each the first of its conversation."""

    async def one(number: int, agent: Agent) -> None:
        for turn in range(first, first + calls // len(agents)):
            said = f"{number} {turn} ".ljust(prompt, "x")
            await agent.ask([{"role": "user", "content": said}], reply=reply, stream=stream)

    await asyncio.gather(*(one(number, agent) for number, agent in enumerate(agents)))
