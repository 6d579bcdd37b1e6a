"""One side of the engine benchmark, in a process of its own."""

import asyncio
import json
import sys
import time
from pathlib import Path

import aiohttp
import msgspec

import holdfast
from holdfast.engine.guards.event_loop import fewer_collections, run_in_own_loop
from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.records.message import user

TURNS = 4
TRAJECTORIES = 1024
CONCURRENCY = 256
TOKENS = 256
WARM_UP = 8
"""Trajectories before the clock starts: what is measured is the work, not the imports."""


def tasks(count: int) -> list[dict[str, object]]:
    return [{"id": str(number), "prompt": "x" * 200} for number in range(count)]


async def bare(url: str, count: int) -> None:
    """What one would write by hand: a semaphore, a session, and the answers parsed."""
    prompt = list(ByteRenderer().render([user("x" * 200)], ()))
    slots = asyncio.Semaphore(CONCURRENCY)
    connector = aiohttp.TCPConnector(limit=CONCURRENCY)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def trajectory(number: int) -> None:
            async with slots:
                ids = list(prompt)
                for turn in range(TURNS):
                    body = {
                        "model": "fake", "prompt": ids, "max_tokens": TOKENS, "temperature": 1.0,
                        "logprobs": 0, "return_token_ids": True, "seed": number * 10 + turn,
                    }  # fmt: skip
                    async with session.post(f"{url}/v1/completions", json=body) as response:
                        answer = msgspec.json.decode(await response.read())
                    choice = answer["choices"][0]
                    assert len(choice["token_ids"]) == len(choice["logprobs"]["token_logprobs"])
                    ids = [*ids, *choice["token_ids"], 257, 256, *b"assistant\n"]

        await asyncio.gather(*(trajectory(number) for number in range(count)))


async def durable(url: str, journal_path: Path, count: int) -> None:
    async def rollout(t: holdfast.Rollout) -> None:
        t.add(*t.task.messages)
        for _ in range(TURNS):
            await t.generate()

    journal = holdfast.open_journal(journal_path)
    policy = holdfast.EnginePolicy(url, "fake", connections=CONCURRENCY)
    try:
        _, report = await holdfast.run(
            rollout, tasks=tasks(count), policy=policy, journal=journal, name="bench", seed=1,
            sampling=holdfast.Sampling(max_tokens=TOKENS),
            settings=holdfast.Settings(concurrency=CONCURRENCY),
        )  # fmt: skip
        assert report.turns == TURNS * count
    finally:
        await policy.aclose()
        await journal.close()


def main() -> None:
    mode, url, folder = sys.argv[1:]

    def perform(count: int) -> None:
        path = Path(folder) / f"{count}.db"
        if mode == "bare":
            asyncio.run(bare(url, count))
        elif mode == "library":
            asyncio.run(durable(url, path, count))
        else:
            with fewer_collections():
                run_in_own_loop(durable(url, path, count))

    perform(WARM_UP)
    cpu = time.process_time()
    perform(TRAJECTORIES)
    cpu = time.process_time() - cpu
    print(json.dumps({"cpu_per_turn": cpu / (TURNS * TRAJECTORIES)}))


main()
