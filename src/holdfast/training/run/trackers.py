"""Sends each step once to Weights & Biases, trackio and TensorBoard, even if a process is killed.

A tracker may lose its last numbers with the process (Weights & Biases writes late), or may have
more steps than the newest checkpoint. A tracker is therefore opened with the trained steps: steps
that the tracker lacks are logged again, and steps that the tracker has are not logged twice.
"""

import contextlib
import hashlib
import importlib.util
import re
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from holdfast.records.errors import UsageError
from holdfast.records.run import Run
from holdfast.training.run.metrics import Lines, Tracker

TRACKERS = ("wandb", "trackio", "tensorboard")
PROJECT = "holdfast"
EVALUATED = "eval_reward"
"""The name of an evaluation's metric. It is logged after the other numbers of its step."""


def check_tracker(name: Tracker | str) -> None:
    """Raises `UsageError` for a tracker that is unknown or not installed."""
    if not isinstance(name, str):
        return
    if name not in TRACKERS:
        raise UsageError(f"no tracker is called {name!r}; there are {', '.join(TRACKERS)}")
    if importlib.util.find_spec(name) is None:
        raise UsageError(f"the tracker {name} is not installed: pip install {name}")


def open_tracker(name: Tracker | str, *, run: Run, folder: Path, lines: Lines) -> Tracker:
    """Opens a tracker, and logs those steps of `lines` that it lacks. Returns the caller's own
    tracker unchanged. The tracker may write into `folder` and connect to its server. Raises
    `UsageError` if the tracker cannot be opened."""
    if not isinstance(name, str):
        return name
    makers: dict[str, Callable[..., Tracker]] = {
        "wandb": _Wandb,
        "trackio": _Trackio,
        "tensorboard": _Tensorboard,
    }
    try:
        with contextlib.redirect_stdout(sys.stderr):  # Trackers print to stdout otherwise.
            return makers[name](run=run, folder=folder, lines=lines)
    except Exception as error:
        first = next(iter(str(error).splitlines()), "") or repr(error)
        raise UsageError(f"the tracker {name} cannot be opened: {first}") from error


def tracked_name(run: Run) -> str:
    """Returns a name for the training in trackers. The name is the same in every process of the
    training. A training with the same name in another journal has another name here."""
    made = hashlib.sha256(f"{run.spec.name}\0{run.created}".encode()).hexdigest()
    readable = re.sub(r"[^A-Za-z0-9_.-]", "-", run.spec.name)[:60]
    return f"{readable}-{made[:8]}"


class _Resumed:
    """A tracker that knows the last step that it has, or -1 if it has none."""

    name = ""

    def __init__(self, *, known: int, lines: Lines):
        self._known = known
        for step, numbers in lines.items():
            if step == known and EVALUATED in numbers:  # The evaluation alone may have been lost.
                self._send({n: v for n, v in numbers.items() if n.startswith(EVALUATED)}, step)
            elif step > known:
                self._send(numbers, step)

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        if step > self._known or EVALUATED in numbers:
            self._send(numbers, step)

    def _send(self, numbers: Mapping[str, float], step: int) -> None:
        raise NotImplementedError


class _Wandb(_Resumed):
    """Weights & Biases. The x axis of charts is the metric `step`, because W&B's own counter drops
    numbers for a step before the newest. Offline, each process writes a folder with all steps."""

    name = "wandb"

    def __init__(self, *, run: Run, folder: Path, lines: Lines):
        wandb: Any = import_module("wandb")
        name = tracked_name(run)
        self._run = wandb.init(
            project=PROJECT, name=run.spec.name, id=name, dir=str(folder), resume="allow"
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        known = self._run.summary.get("step") if self._run.resumed else None
        super().__init__(known=-1 if known is None else int(known), lines=lines)

    def _send(self, numbers: Mapping[str, float], step: int) -> None:
        self._run.log({"step": step, **numbers})

    def close(self) -> None:
        self._run.finish()


class _Trackio(_Resumed):
    """trackio. A training is one run of trackio, which is continued under the same name."""

    name = "trackio"

    def __init__(self, *, run: Run, folder: Path, lines: Lines):
        self._module: Any = import_module("trackio")
        self._run = self._module.init(PROJECT, name=tracked_name(run), resume="allow")
        super().__init__(known=getattr(self._run, "_next_step", 0) - 1, lines=lines)

    def _send(self, numbers: Mapping[str, float], step: int) -> None:
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        with contextlib.redirect_stdout(sys.stderr):
            self._module.finish()


class _Tensorboard:
    """TensorBoard. Steps after the newest checkpoint are removed and logged again."""

    name = "tensorboard"

    def __init__(self, *, run: Run, folder: Path, lines: Lines):
        from torch.utils.tensorboard import SummaryWriter

        writer: Any = SummaryWriter
        purge = max(lines) + 1 if lines else None
        self._writer = writer(str(folder / "tensorboard"), purge_step=purge)

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
