"""The gateway: CPU per call, against a bare proxy that relays, parses and keeps what it saw.

Each call is the first of its conversation, so that the whole prompt is new. The record is durable
before the answer, on both sides; the proxy's has no tokens, no logprobs and no replay.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import aiohttp
from result import Result

from holdfast.testing import FakeEngine

HERE = Path(__file__).parent
ROUNDS = 3
AT_ONCE = 16
SHAPES = {"400/100": (400, 100, 640), "4k/300": (4_000, 300, 320), "32k/500": (32_000, 500, 96)}


def measure() -> list[Result]:
    found = []
    with FakeEngine(mean_length=0) as engine:
        for name, (prompt, reply, calls) in SHAPES.items():
            pairs = [
                [_cpu(mode, engine.url, prompt, reply, calls) for mode in ("proxy", "gateway")]
                for _ in range(ROUNDS)
            ]
            ratio = statistics.median(ours / bare for bare, ours in pairs)
            bare, ours = (min(column) * 1e3 for column in zip(*pairs, strict=True))
            detail = f"{ours:.2f} ms a call, bare {bare:.2f}"
            found.append(
                Result(f"gateway: CPU per call / bare proxy, {name}", ratio, "×", "≤ 4", detail)
            )
    return found


def _cpu(mode: str, engine: str, prompt: int, reply: int, calls: int) -> float:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        command = [sys.executable, str(HERE / "gateway_child.py"), mode, engine, folder, "16"]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert child.stdin is not None
        assert child.stdout is not None
        url = child.stdout.readline().strip()
        asyncio.run(_ask(mode, url, prompt, reply, calls))
        child.stdin.close()
        told = json.loads(child.stdout.readline())
        child.wait(60)
        child.stdout.close()
    return float(told["cpu"]) / calls


async def _ask(mode: str, url: str, prompt: int, reply: int, calls: int) -> None:
    async with aiohttp.ClientSession() as session:
        keys = [await _key(session, mode, url) for _ in range(AT_ONCE)]

        async def agent(number: int) -> None:
            for turn in range(calls // AT_ONCE):
                words = f"{number} {turn} ".ljust(prompt, "x")
                body = {
                    "model": "fake", "max_tokens": reply,
                    "messages": [{"role": "user", "content": words}],
                }  # fmt: skip
                headers = {"Authorization": f"Bearer {keys[number]}"}
                target = f"{url}/v1/chat/completions"
                async with session.post(target, json=body, headers=headers) as answer:
                    assert answer.status == 200, await answer.text()
                    await answer.read()

        await asyncio.gather(*(agent(number) for number in range(AT_ONCE)))


async def _key(session: aiohttp.ClientSession, mode: str, url: str) -> str:
    if mode == "proxy":
        return "none"
    async with session.post(f"{url}/trajectories", json={"wait": 30}) as answer:
        taken: dict[str, str] = await answer.json()
        return taken["key"]
