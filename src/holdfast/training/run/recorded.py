"""Finds the files of a training, in the folder that its recorded command names. The folder may be
on another machine."""

from itertools import pairwise
from pathlib import Path

from holdfast.records.run import Run
from holdfast.training.run.folder import CHECKPOINTS
from holdfast.training.run.metrics import FILE, read

Metrics = dict[int, dict[str, float]]


def folder_of(run: Run) -> Path | None:
    """Returns the folder of a training, as its recorded command names it. Returns None if the run
    has no recorded command of a training."""
    command = run.spec.command
    if command is None or command.words[:1] != ("train",):
        return None
    named = [after for word, after in pairwise(command.words) if word == "--out"]
    named += [word.partition("=")[2] for word in command.words if word.startswith("--out=")]
    return Path(command.folder) / (named[-1] if named else run.spec.name)


def metrics_of(run: Run) -> Metrics:
    """Returns the metrics by step. Returns no metrics if their file is not on this machine. A gap
    that was requested from engines gets the same name as any other gap, because each step has only
    one gap."""
    folder = folder_of(run)
    lines: Metrics = {}
    for line in [] if folder is None else read(folder / FILE):
        numbers = {
            name.removeprefix("asked_"): value
            for name, value in line.items()
            if isinstance(value, int | float) and name != "step"
        }
        lines.setdefault(line["step"], {}).update(numbers)
    return dict(sorted(lines.items()))


def checkpoints_of(run: Run) -> list[int]:
    """Returns the steps whose checkpoints are on this machine."""
    folder = folder_of(run)
    paths = [] if folder is None else (folder / CHECKPOINTS).glob("step-*")
    numbers = (path.name.removeprefix("step-") for path in paths)
    return sorted(int(number) for number in numbers if number.isdecimal())
