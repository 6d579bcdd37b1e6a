"""The walk of one trajectory: the files that it goes through, and the hops between them.

Two turns and one tool, against the fake engine. A hop is a call from one file of the package into
another; frames of libraries in between do not count. What a run does once is left out: counted is
what a run of three trajectories does more than one of two. `--hops` lists the hops, most first.
"""

import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import FrameType
from typing import Any

import holdfast
from holdfast.testing import FakeEngine

PACKAGE = str(Path(holdfast.__file__).parent) + "/"
Hops = Counter[tuple[str, str]]
Run = Callable[[str, int], Coroutine[Any, Any, None]]
"""Runs so many units against the engine at this address."""


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


def walk(run: Run, url: str, size: int) -> Hops:
    """The calls in the loop's thread: the file of the caller, and that of the callee."""
    hops: Hops = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        file, at = frame.f_code.co_filename, frame.f_lasti
        # A coroutine that goes on is at a RESUME with an argument: that is not a call.
        if event == "call" and file.startswith(PACKAGE) and not frame.f_code.co_code[at + 1]:
            caller = frame.f_back
            while caller is not None and not caller.f_code.co_filename.startswith(PACKAGE):
                caller = caller.f_back
            hops[caller.f_code.co_filename if caller else "", file] += 1

    sys.setprofile(note)
    try:
        asyncio.run(run(url, size))
    finally:
        sys.setprofile(None)
    return hops


def report(run: Run, small: int, large: int) -> None:
    """Prints what the large run does more than the small one, for each unit of the difference."""
    with FakeEngine() as engine:
        walk(run, engine.url, 1)  # Imports and caches.
        more = walk(run, engine.url, large) - walk(run, engine.url, small)
    units = large - small
    between = Counter({pair: n for pair, n in more.items() if pair[0] and pair[0] != pair[1]})
    hops, calls = between.total() / units, more.total() / units
    print(f"{len({file for _, file in more})} files, {hops:.0f} hops, {calls:.0f} calls")
    if "--hops" in sys.argv:
        for (caller, callee), number in between.most_common():
            names = (name.removeprefix(PACKAGE) for name in (caller, callee))
            print(f"{number / units:5} {' -> '.join(names)}")


if __name__ == "__main__":
    report(run, 2, 3)
