"""Writes the numbers of each step to `metrics.jsonl`, to the terminal, and to trackers if wanted.

The file has the steps that the newest checkpoint holds or the running process has trained. If a
resumed run trains steps again, their new lines replace the old ones. At first, an evaluation has
its own line. At the next start or at the end, all lines of a step are merged into one.
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from holdfast.training.run.curve import draw
from holdfast.training.run.folder import CURVE

FILE = "metrics.jsonl"
SCORED = "scorer/"
"""The prefix of the names of a scorer's metrics."""
COLUMNS = 100
ROUNDING = 1e-9
"""The largest gradient that counts as 0. The mean of equal rewards has a rounding error, which
alone may give such a gradient."""


class Tracker(Protocol):
    def log(self, numbers: Mapping[str, float], step: int) -> None: ...
    def close(self) -> None: ...


Lines = Mapping[int, Mapping[str, float]]
"""Numbers by step."""


class TrainingMetrics:
    """Writes the numbers of a training. Only this object writes the file in `folder`. If a tracker
    fails, reports it and stops using it, and training continues."""

    def __init__(self, folder: Path, *, report: Callable[[str], None] = lambda line: None):
        self._path = folder / FILE
        self._report = report
        self._trackers: list[Tracker] = []

    def follow(self, trackers: Iterable[Tracker]) -> None:
        """Sends the numbers to these trackers from now on, before they are written to the file. If
        the process is killed between sending and writing, the resumed run writes the missing lines
        of the file again. In the other order, numbers that a tracker did not get would stay missing
        there."""
        self._trackers = list(trackers)

    def rewind(self, step: int) -> None:
        """Drops the lines after `step`, and merges all lines of each earlier step into one line."""
        kept = [{"step": at, **line} for at, line in self.lines().items() if at <= step]
        aside = self._path.with_suffix(".partial")
        with aside.open("w") as file:
            file.writelines(json.dumps(line) + "\n" for line in kept)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, self._path)

    def lines(self) -> dict[int, dict[str, Any]]:
        """Returns the metrics by step. All lines of a step are merged; a later line wins."""
        lines_by_step: dict[int, dict[str, Any]] = {}
        for line in read(self._path):
            lines_by_step.setdefault(line.pop("step"), {}).update(line)
        return dict(sorted(lines_by_step.items()))

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Writes the numbers durably, so that a step whose checkpoint is safe has its numbers."""
        self._each_tracker("log", dict(numbers), step)
        with self._path.open("a") as file:
            file.write(json.dumps({"step": step, **numbers}) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        self._each_tracker("close")
        self._trackers = []

    def _each_tracker(self, method: str, *arguments: object) -> None:
        for tracker in list(self._trackers):
            try:
                getattr(tracker, method)(*arguments)
            except Exception as error:
                self._trackers.remove(tracker)
                name = getattr(tracker, "name", type(tracker).__name__)
                self._report(
                    f"the tracker {name} failed, and training goes on without it: {error!r:.300}; "
                    f"{self._path} has every number"
                )


def read(path: Path) -> list[dict[str, Any]]:
    """Returns the complete lines of a file. The last line may be incomplete after a kill, and is
    then left out."""
    if not path.exists():
        return []
    values = []
    for line in path.read_text().split("\n"):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and isinstance(value.get("step"), int):
            values.append(value)
    return values


def is_skipped(numbers: Mapping[str, float]) -> bool:
    """Returns whether a step changed no weights because no gradient was finite."""
    return 0 < numbers.get("skipped_updates", 0) == numbers.get("updates")


def is_empty(numbers: Mapping[str, float]) -> bool:
    """Returns whether no token was sampled for a step, because the rollout did not ask its
    policy."""
    return numbers.get("tokens") == 0 and numbers.get("trajectories", 0) > 0


def is_flat(numbers: Mapping[str, float]) -> bool:
    """Returns whether a step trained nothing because the rewards of each group are equal. The
    gradient must be 0 too: a KL term, or a baseline over the whole batch, may give a gradient even
    then."""
    is_without = numbers.get("groups_informative") == 0 and not is_empty(numbers)
    return is_without and numbers.get("gradient_norm", 1.0) < ROUNDING


def step_line(step: int, numbers: Mapping[str, float]) -> str:
    """Returns the most important numbers of a step, in lines of at most 100 columns: the reward
    with its standard error, the gap between engine and trainer, the share of clipped tokens,
    sampled tokens per second, groups with a gradient, and the means of scorers' metrics.
    `metrics.jsonl` has all numbers."""
    clipped = numbers.get("clipped_positive", 0.0) + numbers.get("clipped_negative", 0.0)
    rate = numbers.get("sampled_tokens", 0.0) / max(numbers["seconds"], 1e-9)
    gap = numbers.get("gap_mean", numbers.get("asked_gap_mean"))
    parts = [
        f"step {step:<4}",
        f"reward {with_error(numbers['reward'], numbers.get('reward_error'))}",
        f"gap {gap:.1g}" if gap is not None else "",
        f"clipped {100 * clipped:.1f} %",
        f"kl {numbers['kl']:.3f}" if "kl" in numbers else "",
        f"{numbers['groups_informative']:.0f}/{numbers['groups_drawn']:.0f} groups",
        f"{numbers['trajectories_failed']:.0f} failed" if numbers["trajectories_failed"] else "",
        "gradients not finite: skipped" if numbers["skipped_updates"] else "",
        f"{rate:,.0f} tokens/s",
        f"{numbers['seconds']:.0f} s",
    ]
    parts += [f"{name[len(SCORED) :]} {numbers[name]:.4g}" for name in numbers if _is_scored(name)]
    return _filled([part for part in parts if part])


def with_error(mean: float, error: float | None) -> str:
    return f"{mean:.3f}" if error is None else f"{mean:.3f} ± {error:.3f}"


def standard_error(clusters: Sequence[Sequence[float]]) -> float | None:
    """Returns the standard error of the mean over all values, if values of one cluster depend on
    each other (CR1). Returns None for fewer than two clusters."""
    clusters = [values for values in clusters if values]
    count = sum(map(len, clusters))
    if len(clusters) < 2:
        return None
    mean = math.fsum(chain.from_iterable(clusters)) / count
    sums = (math.fsum(value - mean for value in values) for values in clusters)
    squares = math.fsum(value * value for value in sums)
    return math.sqrt(len(clusters) / (len(clusters) - 1) * squares) / count


def _is_scored(name: str) -> bool:
    return name.startswith(SCORED)


def _filled(parts: Sequence[str]) -> str:
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + 2 + len(part) > COLUMNS:
            lines.append(" " * len(parts[0]))
        lines[-1] += f"  {part}"
    return "\n".join(lines)


class TrainingReport(Struct, frozen=True):
    """How a training ended."""

    run: str
    steps: int
    """The number of all trained steps."""
    model: Path
    """The folder of the newest weights."""
    stopped: str
    """Why the training stopped early; "" if it trained all steps."""
    rewards: list[float]
    """The mean reward over each step's trajectories."""
    held_out: dict[int, float]
    """The mean reward over held-out tasks, by step."""
    skipped_steps: int
    """The number of steps that changed no weights, because no gradient was finite."""
    flat_steps: int = 0
    """The number of steps without a gradient, because the rewards of each group were equal."""
    empty_steps: int = 0
    """The number of steps without data to train on, because no token was sampled."""

    @property
    def trained_nothing(self) -> bool:
        """Whether steps ran, but none of them changed the model."""
        return 0 < self.steps == self.skipped_steps + self.flat_steps + self.empty_steps


def report_of(
    run: str, metrics: TrainingMetrics, *, folder: Path, model: Path, stopped: str
) -> TrainingReport:
    """Summarizes the metrics, and draws the learning curve into the folder."""
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
