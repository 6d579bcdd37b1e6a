"""A training loop of one's own: its model is the list of all tasks that it was trained on."""

import json
import os
import sys
from pathlib import Path

import holdfast
from holdfast.testing import crash_points


class Model:
    """What it was trained on, and the checkpoint of that."""

    def __init__(self, checkpoint: Path):
        self._file = checkpoint
        self.step = 0
        self.history: list[str] = []
        if checkpoint.exists():
            state = json.loads(checkpoint.read_text())
            self.step, self.history = state["step"], state["history"]

    def train(self, step: int, tasks: list[str]) -> None:
        self.step = step
        self.history += tasks
        aside = self._file.with_suffix(".part")
        aside.write_text(json.dumps({"step": self.step, "history": self.history}))
        os.replace(aside, self._file)


def by_steps(journal: str, model: Model) -> None:
    with holdfast.Delivery(journal, "run", groups=2, checkpoint=model.step) as delivery:
        for step, batch in delivery:
            model.train(step, [group.task for group in batch.groups])
            delivery.commit(step)


def by_taking(journal: str, model: Model) -> None:
    with holdfast.Delivery(
        journal, "run", groups=2, checkpoint=model.step, trained=model.history
    ) as delivery:
        while groups := delivery.take(2):
            model.train(model.step + 1, [group.task for group in groups])
            delivery.commit(model.step, groups=groups)


if __name__ == "__main__":
    if plan := os.environ.get("HOLDFAST_CRASH"):
        crash_points.arm(plan)
    loop = by_taking if sys.argv[3] == "take" else by_steps
    loop(sys.argv[1], Model(Path(sys.argv[2])))
