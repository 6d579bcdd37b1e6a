"""The gateway's replay: how many recorded calls one process gives back in a second of its CPU."""

import asyncio
import json

from gateway_service import Agent, Service, client, service
from result import Result

from holdfast.testing import FakeEngine

AGENTS = 2
CALLS = {"short conversations": (300, 1), "a conversation of 300 calls": (300, 300)}
REPLY = 30


def measure() -> list[Result]:
    with FakeEngine(mean_length=0) as engine:
        found = []
        for name, (calls, length) in CALLS.items():
            with service("gateway", engine.url, trajectories=AGENTS) as running:
                cpu = asyncio.run(_replayed(running, calls, length))
            rate, detail = (
                AGENTS * calls / cpu,
                f"{cpu / AGENTS / calls * 1e3:.2f} ms of CPU a call",
            )
            found.append(Result(f"gateway: replay, {name}", rate, "calls/s", "≥ 1000", detail))
        return found


async def _replayed(running: Service, calls: int, length: int) -> float:
    """CPU seconds of all calls, asked a second time by the next attempts."""
    async with client() as session:
        first = [await Agent.taken(session, running) for _ in range(AGENTS)]
        asked = await asyncio.gather(
            *(_live(agent, calls, length, number) for number, agent in enumerate(first))
        )
        again = [await Agent.taken(session, running, one.task) for one in first]
        before = running.used()["cpu"]
        heard = await asyncio.gather(
            *(_again(agent, said) for agent, said in zip(again, asked, strict=True))
        )
        after = running.used()["cpu"]
    assert heard == [[reply for _, reply in said] for said in asked], "it was sampled anew"
    return after - before


async def _live(agent: Agent, calls: int, length: int, number: int) -> list[tuple[bytes, str]]:
    """Each request and its answer; a conversation goes on for `length` calls."""
    told: list[tuple[bytes, str]] = []
    messages: list[dict[str, str]] = []
    for call in range(calls):
        if call % length == 0:
            messages = []
        messages.append({"role": "user", "content": f"{number} {call} ".ljust(60, "x")})
        body = {"model": "fake", "max_tokens": REPLY, "messages": messages}
        sent = json.dumps(body).encode()
        reply = await agent.send(sent)
        told.append((sent, reply))
        messages.append({"role": "assistant", "content": reply})
    return told


async def _again(agent: Agent, said: list[tuple[bytes, str]]) -> list[str]:
    return [await agent.send(body) for body, _ in said]
