"""What each part of a pipeline says of itself: a small file that is whole or the one before.

Whoever wants to know (`holdfast train --watch`, Prometheus) reads it; nobody depends on it.
"""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from holdfast.engine.progress.counters import Progress
from holdfast.records.history import History

WRITE_SECONDS = 1.0


class PartStatus(Struct, frozen=True):
    """As it was read."""

    part: str
    doing: str
    at: float
    """When it was written, in seconds since the epoch."""
    pid: int
    numbers: dict[str, float]


class StatusFile:
    """Writes the status of one part. A disk that is full is no reason to stop."""

    def __init__(self, path: Path):
        self._path = path
        self._written = 0.0
        self._numbers: dict[str, float] = {}
        self._doing = ""

    def update(self, numbers: Mapping[str, float], *, doing: str | None = None) -> None:
        """Written at once where it does something else now, and once a second otherwise."""
        self._numbers |= numbers
        is_other = doing is not None and doing != self._doing
        self._doing = self._doing if doing is None else doing
        if is_other or time.monotonic() - self._written >= WRITE_SECONDS:
            self._write()

    def _write(self) -> None:
        self._written = time.monotonic()
        body = {
            "doing": self._doing,
            "at": time.time(),
            "pid": os.getpid(),
            "numbers": self._numbers,
        }
        aside = self._path.with_suffix(".partial")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            aside.write_text(json.dumps(body))
            os.replace(aside, self._path)
        except OSError:
            return


def read_status(folder: Path) -> list[PartStatus]:
    """Of every part that ever wrote one; what cannot be read is left out."""
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            body = json.loads(path.read_text())
            numbers = {str(name): float(value) for name, value in body["numbers"].items()}
            doing, at, pid = str(body["doing"]), float(body["at"]), int(body["pid"])
            found.append(PartStatus(path.stem, doing, at, pid, numbers))
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            continue
    return found


class RolloutProgress(Progress):
    """Counts, beside the rest, for how long nothing was rolled out."""

    def __init__(self) -> None:
        super().__init__()
        self._idle_before = 0.0
        self._idle_since: float | None = time.monotonic()

    @property
    def idle_seconds(self) -> float:
        since = self._idle_since
        return self._idle_before + (0.0 if since is None else time.monotonic() - since)

    def started(self) -> None:
        super().started()
        if self._idle_since is not None:
            self._idle_before, self._idle_since = self.idle_seconds, None

    def stopped(self) -> None:
        super().stopped()
        self._look()

    def settled(self, histories: "list[History]") -> None:  # type: ignore[override]
        super().settled(histories)
        self._look()

    def _look(self) -> None:
        if self.running <= 0 and self._idle_since is None:
            self._idle_since = time.monotonic()
