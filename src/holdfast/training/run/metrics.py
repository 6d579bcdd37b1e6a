"""The numbers of each step: `metrics.jsonl`, a line on the terminal, and trackers where wanted.

The file has the steps that the newest checkpoint or the running process has trained: what a resumed
run trains again is written again in its place. An evaluation is a line of its own until the file is
written anew, at the next start or at the end; lines of one step belong together.
"""

import importlib.util
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from holdfast.records.errors import UsageError

FILE = "metrics.jsonl"
TRACKERS = ("wandb", "trackio", "tensorboard")


class Tracker(Protocol):
    def log(self, numbers: Mapping[str, float], step: int) -> None: ...
    def close(self) -> None: ...


class TrainingMetrics:
    """Writes numbers; owns the file in `folder`."""

    def __init__(self, folder: Path, *, trackers: Sequence[Tracker] = ()):
        self._path = folder / FILE
        self._trackers = trackers

    def rewind(self, step: int) -> None:
        """Drops the lines after `step`; of each other step, one line is left."""
        kept = [{"step": at, **line} for at, line in self.lines().items() if at <= step]
        aside = self._path.with_suffix(".partial")
        with aside.open("w") as file:
            file.writelines(json.dumps(line) + "\n" for line in kept)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, self._path)

    def lines(self) -> dict[int, dict[str, Any]]:
        """By step; what was written of a step later is added to it."""
        found: dict[int, dict[str, Any]] = {}
        for line in read(self._path):
            found.setdefault(line.pop("step"), {}).update(line)
        return dict(sorted(found.items()))

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Durable, so that a step whose checkpoint is safe has its numbers."""
        with self._path.open("a") as file:
            file.write(json.dumps({"step": step, **numbers}) + "\n")
            file.flush()
            os.fsync(file.fileno())
        for tracker in self._trackers:
            tracker.log(numbers, step)

    def close(self) -> None:
        for tracker in self._trackers:
            tracker.close()


def read(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file; the last one may have been cut by a kill."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text().split("\n"):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and isinstance(value.get("step"), int):
            found.append(value)
    return found


def step_line(step: int, numbers: Mapping[str, float]) -> str:
    """`step 1  reward 0.49  loss 0.000  kl 0.000  kept 13/16 groups  128 trajectories  7 s`"""
    parts = [
        f"step {step:<4}",
        f"reward {numbers['reward']:.3f}",
        f"loss {numbers['loss']:+.3f}",
        f"kl {numbers.get('kl', 0.0):.3f}",
        f"kept {numbers['groups_informative']:.0f}/{numbers['groups_drawn']:.0f} groups",
        f"{numbers['trajectories']:.0f} trajectories",
    ]
    if numbers["trajectories_failed"]:
        parts.append(f"{numbers['trajectories_failed']:.0f} failed")
    if numbers["skipped_updates"]:
        parts.append("gradients not finite: skipped")
    return "  ".join([*parts, f"{numbers['seconds']:.0f} s"])


def check_tracker(name: str) -> None:
    """Raises `UsageError` for one that is unknown or not installed."""
    if name not in TRACKERS:
        raise UsageError(f"no tracker is called {name!r}; there are {', '.join(TRACKERS)}")
    if importlib.util.find_spec(name) is None:
        raise UsageError(f"the tracker {name} is not installed: pip install {name}")


def open_tracker(name: str, *, run: str, folder: Path) -> Tracker:
    """A tracker that was checked. It may write into `folder`, and speak to its server."""
    makers: dict[str, Callable[..., Tracker]] = {
        "wandb": _WandbLike,
        "trackio": _WandbLike,
        "tensorboard": _Tensorboard,
    }
    return makers[name](name, run=run, folder=folder)


class _WandbLike:
    """Weights & Biases; trackio has the same functions."""

    def __init__(self, module: str, *, run: str, folder: Path):
        from importlib import import_module

        self._module: Any = import_module(module)
        more = {"dir": str(folder), "id": run, "resume": "allow"} if module == "wandb" else {}
        self._module.init(project="holdfast", name=run, **more)

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        self._module.log(dict(numbers), step=step)

    def close(self) -> None:
        self._module.finish()


class _Tensorboard:
    def __init__(self, _: str, *, run: str, folder: Path):
        from torch.utils.tensorboard import SummaryWriter

        writer: Any = SummaryWriter
        self._writer = writer(str(folder / "tensorboard"))

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()
