"""The loop that is watched: a run, or a gateway, with large prompts beside small ones."""

import asyncio
import gc
import json
import sys
import time
from pathlib import Path

import stalls

import holdfast
import holdfast.engine.running.run
import holdfast.policy.client.replicas
from holdfast.gateway.agents.external import ExternalRolloutProcessor
from holdfast.policy.rendering.select import renderer_for

BEAT = 0.005
LATE = 0.05


class Heart:
    """Beats on the loop, and remembers the longest time between two beats."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self.longest = 0.0
        self.late = 0

    async def beat(self) -> None:
        last = self._began = time.monotonic()
        while True:
            await asyncio.sleep(BEAT)
            now = time.monotonic()
            self.longest = max(self.longest, now - last - BEAT)
            self.late += now - last - BEAT > LATE
            last = now

    def found(self) -> str:
        seconds = time.monotonic() - self._began
        return json.dumps({"longest": self.longest, "late": self.late, "seconds": seconds})


def tasks() -> list[dict[str, object]]:
    texts = {f"large-{number}": stalls.large_text(number) for number in range(stalls.LARGE)}
    small = "a few words " * (stalls.SMALL_BYTES // 12)
    texts |= {f"small-{number}": small for number in range(stalls.SMALL)}
    return [{"id": name, "prompt": text} for name, text in texts.items()]


async def rollout(t: holdfast.Rollout) -> None:
    t.add(*t.task.messages)
    for _ in range(stalls.TURNS):
        await t.generate(max_tokens=stalls.TOKENS)
        t.add("go on")


class Printing(ExternalRolloutProcessor):
    async def setup(self) -> None:
        await super().setup()
        print(self.url, flush=True)


async def nothing() -> None:
    heart = Heart()
    beating = asyncio.create_task(heart.beat())
    await asyncio.to_thread(sys.stdin.readline)
    beating.cancel()
    print(heart.found(), flush=True)


async def main(mode: str, url: str, folder: str, model: str) -> None:
    if mode == "nothing":
        return await nothing()
    journal = holdfast.open_journal(Path(folder) / "journal.db")
    policy = holdfast.EnginePolicy(url, "fake", connections=16)
    count = stalls.LARGE + stalls.SMALL
    empty: list[dict[str, object]] = [{"id": str(n), "messages": []} for n in range(count)]
    heart = Heart()
    work = holdfast.run(
        rollout if mode == "generate" else Printing(),
        tasks=tasks() if mode == "generate" else empty,
        policy=policy, journal=journal, name="bench", seed=1,
        renderer=renderer_for(model, family="template"),
        settings=holdfast.Settings(concurrency=count),
    )  # fmt: skip
    gc.collect()
    beating = asyncio.create_task(heart.beat())
    try:
        if mode == "generate":
            _, report = await work
            assert report.turns == count * stalls.TURNS, report
        else:
            running = asyncio.create_task(work)
            await asyncio.to_thread(sys.stdin.readline)
            running.cancel()
            await asyncio.wait({running})
        print(heart.found(), flush=True)
    finally:
        beating.cancel()
        await policy.aclose()
        await journal.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
