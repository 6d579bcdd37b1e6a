"""An hour of 1,000 agents at one gateway: what it adds to a call, errors, and whether memory grows.

Each agent takes a trajectory, makes calls with pauses between them, says that it is done, and takes
the next trajectory. The engine answers after `DELAY`. What the gateway adds is the time of a call
above that of the same request to the engine itself, which is asked beside the agents, from the same
process. The first tenth is left out. `HOLDFAST_SOAK_SECONDS` makes it shorter.
"""

import asyncio
import os
import random
import statistics
import time

import aiohttp
from gateway_service import Agent, Service, client, service
from result import Result

from holdfast.testing import FakeEngine

SECONDS = float(os.environ.get("HOLDFAST_SOAK_SECONDS", "3600"))
AGENTS, CALLS = 1_000, 10
PAUSE, DELAY = 60.0, 0.5
PROMPT, REPLY = 400, 64
READ_EVERY = 10.0


def measure() -> list[Result]:
    # Enough trajectories for agents that never wait.
    most = AGENTS * (2 + int(SECONDS / (CALLS * (PAUSE + DELAY))))
    with (
        FakeEngine(mean_length=0, delay=DELAY) as engine,
        service("gateway", engine.url, trajectories=most) as running,
    ):
        soak = Soak(running, engine.url)
        asyncio.run(soak.run())
    calls, direct = sorted(soak.calls), sorted(soak.direct)
    half = soak.memory[len(soak.memory) // 2 :]
    growth = statistics.mean(half[-5:]) / statistics.mean(half[:5])
    detail = (
        f"{len(calls):,} calls in {SECONDS:.0f} s, {soak.ended:,} trajectories ended; "
        f"p50 {_share(calls, 0.5) - _share(direct, 0.5):.3f} s"
    )
    added = _share(calls, 0.99) - _share(direct, 0.99)
    return [
        Result(f"soak: p99 that the gateway adds, {AGENTS:,} agents", added, "s", "", detail),
        Result("soak: calls that failed", soak.errors, "", "≤ 0"),
        Result("soak: memory at the end / in the middle", growth, "×", "≤ 1.1",
               f"{soak.memory[0] / 2**20:.0f} MB at first, {half[-1] / 2**20:.0f} MB at the end"),
    ]  # fmt: skip


def _share(ordered: list[float], share: float) -> float:
    return ordered[int(share * (len(ordered) - 1))]


class Soak:
    def __init__(self, running: Service, engine: str):
        self._running, self._engine = running, engine
        self._until = time.monotonic() + SECONDS
        self._from = time.monotonic() + SECONDS / 10
        """All agents begin at once, which is no steady state."""
        self.calls: list[float] = []
        self.direct: list[float] = []
        self.memory: list[float] = []
        self.errors = self.ended = 0

    async def run(self) -> None:
        async with client() as session, asyncio.TaskGroup() as group:
            for number in range(AGENTS):
                group.create_task(self._agent(session, random.Random(number)))
            group.create_task(self._ask_engine(session))
            group.create_task(self._read_memory())

    async def _agent(self, session: aiohttp.ClientSession, dice: random.Random) -> None:
        await asyncio.sleep(dice.uniform(0, PAUSE))
        while time.monotonic() < self._until:
            agent = await Agent.taken(session, self._running)
            messages: list[dict[str, str]] = []
            for call in range(CALLS):
                if time.monotonic() >= self._until:
                    return
                said = f"{agent.task} {call} ".ljust(PROMPT, "x")
                messages.append({"role": "user", "content": said})
                began = time.monotonic()
                try:
                    reply = await agent.ask(messages, reply=REPLY)
                except (AssertionError, aiohttp.ClientError):
                    self.errors += 1
                    break
                if began > self._from:
                    self.calls.append(time.monotonic() - began)
                messages.append({"role": "assistant", "content": reply})
                await asyncio.sleep(dice.uniform(0, 2 * PAUSE))
            await agent.complete()
            self.ended += 1

    async def _ask_engine(self, session: aiohttp.ClientSession) -> None:
        """Sends the engine itself such requests, one after the other."""
        agent = Agent(session, self._engine)
        while time.monotonic() < self._until:
            began = time.monotonic()
            said = [{"role": "user", "content": "x" * PROMPT}]
            await agent.ask(said, reply=REPLY)
            if began > self._from:
                self.direct.append(time.monotonic() - began)

    async def _read_memory(self) -> None:
        while time.monotonic() < self._until:
            used = await asyncio.to_thread(self._running.used)
            self.memory.append(used["memory"])
            await asyncio.sleep(READ_EVERY)
