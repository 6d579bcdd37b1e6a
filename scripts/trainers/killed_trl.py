"""`examples/longer/trl_grpo.py`, which ends by SIGKILL at a point of `HOLDFAST_CRASH`, or, with
`KILL_WHILE_SAVING=K`, while transformers writes its K-th checkpoint."""

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "longer"))

import trl_grpo
from trl import GRPOTrainer

from holdfast.testing import crash_points


def kill_while_saving(left: int) -> None:
    write = GRPOTrainer._save_optimizer_and_scheduler

    def die(self, folder):
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return write(self, folder)

    GRPOTrainer._save_optimizer_and_scheduler = die


if __name__ == "__main__":
    if plan := os.environ.get("HOLDFAST_CRASH"):
        crash_points.arm(plan)
    if number := os.environ.get("KILL_WHILE_SAVING"):
        kill_while_saving(int(number))
    trl_grpo.train(trl_grpo.parse())
