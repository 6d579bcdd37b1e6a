"""The calculator's rollout, of which a share is lost (see `learning.py`)."""

import os
import random
import sys
from pathlib import Path

import holdfast
from holdfast.records.trajectory import TrajectoryKey

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

import calculator

SHARE = float(os.environ.get("FAILING", "0"))
AS_ZERO = bool(os.environ.get("FAILING_AS_ZERO"))
SEED = os.environ.get("FAILING_SEED", "0")


async def solve(t: holdfast.Rollout) -> None:
    await calculator.solve(t)
    if not AS_ZERO and is_lost(t.key):
        raise ConnectionError("the sandbox is gone")


def score(trajectory: holdfast.TrajectoryView) -> float:
    if AS_ZERO and is_lost(trajectory.key):
        return 0.0
    return float(calculator.score(trajectory).reward)


def is_lost(key: TrajectoryKey) -> bool:
    """Trajectories of held-out tasks never are: they are what the model is measured by."""
    if not key.task.startswith("sum-"):
        return False
    return random.Random(f"{SEED} {key.task} {key.sample}").random() < SHARE
