"""The gateway's memory: over many calls, and for each trajectory that waits.

A trajectory holds its own tokens while it is open, and nothing once it has ended. So the calls of
the first figure belong to trajectories that come and go; how much an open one holds for each call
that brings nothing but new tokens is told beside it.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine

from gateway_service import Agent, Service, client, service
from result import Result

from holdfast.testing import FakeEngine
from holdfast.testing.fake_engine.faults import Fault, FaultKind

AGENTS = 16
CALLS, EACH = 3_000, 10
"""Calls, and how many of them a trajectory has."""
WARM = 480
PROMPT, REPLY = 4_000, 100
WAITING = 1_000


def measure() -> list[Result]:
    # The second call of each trajectory is held until all of them wait.
    hold = Fault(FaultKind.HOLD, matching="/1.0.0", seconds=300)
    growth = _of(_growth, trajectories=(CALLS + WARM) // EACH + AGENTS)
    kept = _of(_kept, trajectories=AGENTS) / AGENTS / EACH
    with (
        FakeEngine(mean_length=0, faults=[hold]) as engine,
        service("gateway", engine.url, trajectories=WAITING + AGENTS) as running,
    ):
        idle, asking = asyncio.run(_waiting(running, engine))
    return [
        Result("gateway: memory, growth over 3,000 calls of 4k tokens", growth / 2**20, "MB",
               "≤ 50", f"an open trajectory holds {kept / 1024:.0f} KB a call of new tokens"),
        Result("gateway: memory of a trajectory that waits", idle / 1024, "KB", "≤ 40",
               f"{WAITING:,} at once, each after a call of 400/100 tokens; while its second is "
               f"sampled, with connections on both sides: {asking / 1024:.0f} KB"),
    ]  # fmt: skip


def _of(what: Callable[[Service], Coroutine[None, None, float]], *, trajectories: int) -> float:
    """Each in a process of its own: memory that one left free would hide what another takes."""
    with (
        FakeEngine(mean_length=0) as engine,
        service("gateway", engine.url, trajectories=trajectories) as running,
    ):
        return asyncio.run(what(running))


async def _growth(running: Service) -> float:
    """Over calls of trajectories that end."""
    async with client() as session:

        async def work(calls: int) -> None:
            for _ in range(calls // AGENTS // EACH):
                agent = await Agent.taken(session, running)
                await _calls(agent)
                await agent.complete()

        await asyncio.gather(*(work(WARM) for _ in range(AGENTS)))
        before = running.used()["memory"]
        await asyncio.gather(*(work(CALLS) for _ in range(AGENTS)))
        return running.used()["memory"] - before


async def _kept(running: Service) -> float:
    """By trajectories that have not ended."""
    async with client() as session:
        agents = [await Agent.taken(session, running) for _ in range(AGENTS)]
        await asyncio.gather(*(_calls(agent) for agent in agents))
        before = running.used()["memory"]
        await asyncio.gather(*(_calls(agent, first=EACH) for agent in agents))
        return running.used()["memory"] - before


async def _calls(agent: Agent, *, first: int = 0) -> None:
    """Each the first of its conversation, so that all of its tokens are new."""
    for call in range(first, first + EACH):
        said = f"{agent.task} {call} ".ljust(PROMPT, "x")
        await agent.ask([{"role": "user", "content": said}], reply=REPLY)


async def _waiting(running: Service, engine: FakeEngine) -> tuple[float, float]:
    async with client() as session:
        # What the first ones need is needed once: pools, buffers, code.
        for _ in range(AGENTS):
            await _asked(await Agent.taken(session, running), "first")
        before = running.used()["memory"]
        agents = [await Agent.taken(session, running) for _ in range(WAITING)]
        for agent in agents:
            await _asked(agent, "first")
        idle = running.used()["memory"]
        asking = [asyncio.create_task(_asked(agent, "second")) for agent in agents]
        deadline = time.monotonic() + 60
        while engine.stats().held < WAITING:
            assert time.monotonic() < deadline, "not all of them came to ask"
            await asyncio.sleep(0.1)
        held = running.used()["memory"]
        engine.release()
        await asyncio.gather(*asking)
        return (idle - before) / WAITING, (held - before) / WAITING


async def _asked(agent: Agent, words: str) -> None:
    said = f"{words} {agent.task} ".ljust(400, "x")
    await agent.ask([{"role": "user", "content": said}], reply=REPLY)
