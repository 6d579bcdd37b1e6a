"""The walk of one training step: the files of Holdfast that it goes through, and the hops between.

From the groups of a batch, which are read from the journal, to the weights in force, for the second
step of a small training with the embedded engine. What the step's own task begins counts, in other
tasks and threads, too; what goes on beside it (leases, the journal's writer) does not. A hop is a
call from one file of the package into another; frames of libraries in between do not count.
`--hops` lists the hops, most first.
"""

import asyncio
import sys
import tempfile
import threading
from collections import Counter
from contextvars import ContextVar
from pathlib import Path
from types import FrameType

import holdfast
from holdfast import crashpoint

PACKAGE = str(Path(holdfast.__file__).parent) + "/"
STEPS = 2
_is_in_step: ContextVar[bool] = ContextVar("is_in_step", default=False)
"""Tasks and threads have that of whoever began them."""


async def rollout(t: holdfast.Rollout) -> None:
    t.add(*t.task.messages)
    await t.generate(max_tokens=8)


def score(trajectory: holdfast.TrajectoryView) -> float:
    return float(len(trajectory.reply) % 2)


class Walk:
    """Counts calls between files while a step is under way."""

    def __init__(self) -> None:
        self.hops: Counter[tuple[str, str]] = Counter()
        self.calls: Counter[str] = Counter()
        self._step = 1

    def reach(self, point: str) -> None:
        if point == "train.published":
            _is_in_step.set(False)
            self._step += 1

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not _is_ours(frame) or not _begins(frame):
            return
        if frame.f_code.co_name == "load_group" and self._step == STEPS:
            _is_in_step.set(True)
        if not _is_in_step.get():
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


async def _train(folder: Path) -> None:
    await holdfast.train(
        rollout,
        tasks=[{"id": name, "prompt": "What is 1 + 2?"} for name in "ab"],
        scorer=score,
        journal=folder / "walk.db",
        name="walk",
        out=folder / "out",
        settings={"groups": 2, "samples": 2, "steps": STEPS},
    )


def main() -> None:
    walk = Walk()
    crashpoint.arm(walk.reach)
    threading.setprofile(walk)
    sys.setprofile(walk)
    try:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(_train(Path(folder)))
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    between = sum(n for (a, b), n in walk.hops.items() if a.split("/")[0] != b.split("/")[0])
    print(f"{len(walk.calls)} files")
    print(
        f"{walk.hops.total()} hops between files, {between} between packages; "
        f"{walk.calls.total()} calls"
    )
    if "--hops" in sys.argv:
        for (caller, callee), number in walk.hops.most_common():
            print(f"{number:5} {caller} -> {callee}")


if __name__ == "__main__":
    main()
