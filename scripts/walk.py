"""The walk of one trajectory: the files that it goes through, and the hops between them.

Two turns and one tool, against the fake engine. A hop is a call from one file of the package into
another; frames of libraries in between do not count. What a run does once is left out: counted is
what a run of three trajectories does more than one of two. `--hops` lists the hops, most first.
"""

import asyncio
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType

import holdfast
from holdfast.testing import FakeEngine

PACKAGE = str(Path(holdfast.__file__).parent) + "/"
Hops = Counter[tuple[str, str]]


@holdfast.tool
async def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


async def rollout(t: holdfast.Rollout) -> None:
    t.add(*t.task.messages)
    await t.generate(tools=[add])
    await t.tool(add.call(a=1, b=2), add)
    await t.generate(tools=[add])


async def run(url: str, trajectories: int) -> None:
    tasks = [{"id": str(number), "prompt": "What is 1 + 2?"} for number in range(trajectories)]
    with tempfile.TemporaryDirectory() as folder:
        journal = holdfast.open_journal(Path(folder) / "walk.db")
        try:
            async with holdfast.EnginePolicy(url, "fake") as policy:
                await holdfast.run(
                    rollout, tasks=tasks, policy=policy, journal=journal, name="walk", seed=1,
                    sampling=holdfast.Sampling(max_tokens=16),
                    settings=holdfast.Settings(concurrency=1),
                )  # fmt: skip
        finally:
            await journal.close()


def walk(url: str, trajectories: int) -> Hops:
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
        asyncio.run(run(url, trajectories))
    finally:
        sys.setprofile(None)
    return hops


with FakeEngine() as engine:
    walk(engine.url, 1)  # Imports and caches.
    more = walk(engine.url, 3) - walk(engine.url, 2)
between = Counter({pair: n for pair, n in more.items() if pair[0] and pair[0] != pair[1]})
print(f"{len({file for _, file in more})} files, {between.total()} hops, {more.total()} calls")
if "--hops" in sys.argv:
    for (caller, callee), number in between.most_common():
        print(f"{number:5} {caller.removeprefix(PACKAGE)} -> {callee.removeprefix(PACKAGE)}")
