"""The walk of one agent's call through the gateway: the files that it goes through, and the hops
between them.

A hop is a call from one file of the package into another; frames of libraries in between do not
count. Counted is what a run whose agent makes thirteen calls does more than one of three calls, for
each call. `--hops` lists the hops, most first.
"""

import asyncio
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType

import aiohttp

import holdfast
from holdfast.gateway.server import Binding
from holdfast.testing import FakeEngine

PACKAGE = str(Path(holdfast.__file__).parent) + "/"
Hops = Counter[tuple[str, str]]
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


def walk(url: str, calls: int) -> Hops:
    """The calls in the loop's thread: the file of the caller, and that of the callee."""
    hops: Hops = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        file, at = frame.f_code.co_filename, frame.f_lasti
        # A coroutine that goes on is at a RESUME with an argument: that is no call.
        if event == "call" and file.startswith(PACKAGE) and not frame.f_code.co_code[at + 1]:
            caller = frame.f_back
            while caller is not None and not caller.f_code.co_filename.startswith(PACKAGE):
                caller = caller.f_back
            hops[caller.f_code.co_filename if caller else "", file] += 1

    sys.setprofile(note)
    try:
        asyncio.run(run(url, calls))
    finally:
        sys.setprofile(None)
    return hops


with FakeEngine() as engine:
    walk(engine.url, 1)  # Imports and caches.
    more = walk(engine.url, 13) - walk(engine.url, 3)
between = Counter({pair: n for pair, n in more.items() if pair[0] and pair[0] != pair[1]})
print(f"{len({file for _, file in more})} files, {between.total() / 10:.0f} hops of each call")
if "--hops" in sys.argv:
    for (caller, callee), number in between.most_common():
        print(f"{number / 10:5} {caller.removeprefix(PACKAGE)} -> {callee.removeprefix(PACKAGE)}")
