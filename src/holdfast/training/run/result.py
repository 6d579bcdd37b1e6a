"""How a training ended, from its numbers."""

from pathlib import Path

from msgspec import Struct

from holdfast.training.run.curve import draw
from holdfast.training.run.folder import CURVE
from holdfast.training.run.metrics import TrainingMetrics, is_empty, is_flat, is_skipped


class TrainingReport(Struct, frozen=True):
    """How a training ended."""

    run: str
    steps: int
    """How many were trained, in all."""
    model: Path
    """The folder of the newest weights."""
    stopped: str
    """Why it stopped early; "" when it trained all steps."""
    rewards: list[float]
    """The mean over each step's trajectories."""
    held_out: dict[int, float]
    """The mean over held-out tasks, by step."""
    skipped_steps: int
    """In how many steps nothing was trained, since no gradient was finite."""
    flat_steps: int = 0
    """In how many there was no gradient, since the rewards of each group were equal."""
    empty_steps: int = 0
    """In how many there was nothing to train, since no token was sampled."""

    @property
    def trained_nothing(self) -> bool:
        """There were steps, and the model is still the one that it began with."""
        return 0 < self.steps == self.skipped_steps + self.flat_steps + self.empty_steps


def report_of(
    run: str, metrics: TrainingMetrics, *, folder: Path, model: Path, stopped: str
) -> TrainingReport:
    """What the metrics come to; the curve is drawn into the folder."""
    lines = metrics.lines()
    metrics.rewind(max(lines, default=0))
    rewards = {step: line["reward"] for step, line in lines.items() if "reward" in line}
    held_out = {s: line["eval_reward"] for s, line in lines.items() if "eval_reward" in line}
    curves = {"training": list(rewards.items()), "held out": list(held_out.items())}
    drawn = {name: line for name, line in curves.items() if line}
    (folder / CURVE).write_text(draw(drawn, title=f"{run}: mean reward", axis="step"))
    return TrainingReport(
        run=run,
        steps=max(rewards, default=0),
        model=model,
        stopped=stopped,
        rewards=list(rewards.values()),
        held_out=held_out,
        skipped_steps=sum(map(is_skipped, lines.values())),
        flat_steps=sum(map(is_flat, lines.values())),
        empty_steps=sum(map(is_empty, lines.values())),
    )
