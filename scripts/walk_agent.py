"""The walk of one agent's call through the gateway: the files that it goes through, and the hops
between them.

A hop is a call from one file of the package into another; frames of libraries in between do not
count. Counted is what a run whose agent makes thirteen calls does more than one of three calls, for
each call. `--hops` lists the hops, most first.
"""

import tempfile
from pathlib import Path

import aiohttp
from walk import report

import holdfast
from holdfast.gateway.server import Binding

HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


async def run(url: str, calls: int) -> None:
    async def agent(binding: Binding, task: holdfast.Task) -> float:
        headers = {"Authorization": f"Bearer {binding.key}"}
        async with aiohttp.ClientSession(headers=headers) as http:
            for _ in range(calls):
                async with http.post(f"{binding.url}/v1/chat/completions", json=HELLO) as answer:
                    await answer.read()
        return 1.0

    with tempfile.TemporaryDirectory() as folder:
        await holdfast.run(
            holdfast.BlackBoxRolloutProcessor(agent), tasks=[{"id": "0", "prompt": "hello"}],
            policy=url, model="fake", journal=Path(folder) / "walk.db", name="walk", seed=1,
        )  # fmt: skip


if __name__ == "__main__":
    report(run, 3, 13)
