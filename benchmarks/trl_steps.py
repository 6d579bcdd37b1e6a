"""TRL's `GRPOTrainer` through `holdfast.trl.rollouts`: what the plug-in adds to a step, and what a
step costs that the journal has.

Needs TRL: `.trainers/venv/bin/python benchmarks/trl_steps.py`, after `make interop`. The example
`trl_grpo.py` is trained twice from its beginning with one journal, without a checkpoint: the second
time, every step is answered from the journal. Wall seconds of one run; the first step, which starts
the engine, is left out.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from result import Result

STEPS = 5


class Clock:
    """Seconds of each call of a function."""

    def __init__(self, owner: Any, name: str):
        self.seconds: list[float] = []
        inner = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.monotonic()
            try:
                return inner(*args, **kwargs)
            finally:
                self.seconds.append(time.monotonic() - began)

        setattr(owner, name, timed)


class AsyncClock:
    """The same of a coroutine function."""

    def __init__(self, owner: Any, name: str):
        self.seconds: list[float] = []
        inner = getattr(owner, name)

        async def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.monotonic()
            try:
                return await inner(*args, **kwargs)
            finally:
                self.seconds.append(time.monotonic() - began)

        setattr(owner, name, timed)


def measure() -> list[Result]:
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "longer"))
    import trl_grpo
    from trl import GRPOConfig, GRPOTrainer

    import holdfast.trl.grpo

    vars(trl_grpo)["GRPOConfig"] = partial(GRPOConfig, save_strategy="no")
    folder = Path(tempfile.mkdtemp())
    steps = Clock(GRPOTrainer, "training_step")
    calls = Clock(holdfast.trl.grpo.TrlRollouts, "__call__")
    session = holdfast.trl.grpo._Session
    rollouts = AsyncClock(session, "_roll_out")
    try:
        words = ["--out", str(folder / "out"), "--journal", str(folder / "holdfast.db")]
        words += ["--steps", str(STEPS), "--groups", "4", "--samples", "8"]
        trl_grpo.train(trl_grpo.parse(words))
        shutil.rmtree(folder / "out")
        trl_grpo.train(trl_grpo.parse(words))
    finally:
        shutil.rmtree(folder)
    live, known = slice(1, STEPS), slice(STEPS + 1, 2 * STEPS)
    ratios = [
        step / (step - call + rollout)
        for step, call, rollout in zip(
            steps.seconds[live], calls.seconds[live], rollouts.seconds[live], strict=True
        )
    ]
    generating = statistics.median(calls.seconds[live])
    answering = statistics.median(calls.seconds[known])
    return [
        Result(
            "a TRL step, against its rollouts and its training",
            statistics.median(ratios),
            "×",
            "≤ 1.1",
            f"{statistics.median(steps.seconds[live]):.2f} s, 32 trajectories",
        ),
        Result(
            "answering a step from the journal, against generating it",
            generating / answering,
            "×",
            "≥ 20",
            f"{1000 * answering:.0f} ms against {generating:.2f} s",
        ),
    ]


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    for result in measure():
        print(f"{result.name}: {result.value:.2f} {result.unit} ({result.bound}), {result.detail}")
