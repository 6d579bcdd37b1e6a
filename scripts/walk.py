"""The walk of one trajectory: the files that it goes through, and the hops between them.

Two turns and one tool, against the fake engine. A hop is a call from one file of the package into
another; frames of libraries in between do not count. What a run does once is left out: counted is
what a run of three trajectories does more than one of two. `--hops` lists the hops, most first.
"""

import asyncio
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import FrameType

import holdfast
from holdfast.testing import FakeEngine

PACKAGE = str(Path(holdfast.__file__).parent) + "/"


@holdfast.tool
async def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


async def rollout(t: holdfast.Rollout) -> None:
    t.add(*t.task.messages)
    await t.generate(tools=[add])
    await t.tool(add.call(a=1, b=2), add)
    await t.generate(tools=[add])


class Walk:
    """Counts calls between files. Other threads are counted apart, by `threads`."""

    def __init__(self) -> None:
        self.hops: Counter[tuple[str, str]] = Counter()
        self.calls: Counter[str] = Counter()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not _is_ours(frame) or not _begins(frame):
            return
        file = frame.f_code.co_filename[len(PACKAGE) :]
        self.calls[file] += 1
        caller = frame.f_back
        while caller is not None and not _is_ours(caller):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename != frame.f_code.co_filename:
            self.hops[caller.f_code.co_filename[len(PACKAGE) :], file] += 1


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(PACKAGE)


def _begins(frame: FrameType) -> bool:
    """Whether it is called: a coroutine that goes on is at a RESUME with an argument."""
    return frame.f_code.co_code[frame.f_lasti + 1] == 0


async def _run(url: str, trajectories: int) -> None:
    tasks = [{"id": str(number), "prompt": "What is 1 + 2?"} for number in range(trajectories)]
    with tempfile.TemporaryDirectory() as folder:
        journal = holdfast.open_journal(Path(folder) / "walk.db")
        policy = holdfast.EnginePolicy(url, "fake")
        try:
            settings = holdfast.Settings(concurrency=1)
            await holdfast.run(
                rollout, tasks=tasks, policy=policy, journal=journal, name="walk", seed=1,
                sampling=holdfast.Sampling(max_tokens=16), settings=settings,
            )  # fmt: skip
        finally:
            await policy.aclose()
            await journal.close()


def walk(url: str, trajectories: int) -> tuple[Walk, Walk]:
    """Of the loop's thread, and of all others."""
    here, elsewhere = Walk(), Walk()
    threading.setprofile(elsewhere)
    sys.setprofile(here)
    try:
        asyncio.run(_run(url, trajectories))
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return here, elsewhere


def main() -> None:
    with FakeEngine() as engine:
        walk(engine.url, 1)  # Imports and caches.
        (two, two_beside), (three, three_beside) = walk(engine.url, 2), walk(engine.url, 3)
    hops, calls = three.hops - two.hops, three.calls - two.calls
    beside = three_beside.calls - two_beside.calls
    between = sum(n for (a, b), n in hops.items() if a.split("/")[0] != b.split("/")[0])
    print(f"{len(calls)} files ({len(calls.keys() | beside.keys())} with other threads)")
    print(f"{hops.total()} hops between files, {between} between packages; {calls.total()} calls")
    if "--hops" in sys.argv:
        for (caller, callee), number in hops.most_common():
            print(f"{number:5} {caller} -> {callee}")


if __name__ == "__main__":
    main()
