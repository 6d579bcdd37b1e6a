"""The status of each part of a pipeline is a small file, which is always replaced as a whole.
`holdfast train --watch` and Prometheus read the file. No part depends on it."""

import json
import os
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from holdfast.engine.progress.counters import Progress
from holdfast.journal.sql.journal import Journal
from holdfast.pipeline.pool import DataPool, PoolStats
from holdfast.prometheus import Family, label, single
from holdfast.records.errors import UsageError
from holdfast.records.history import History
from holdfast.training.run.folder import PARTS

WRITE_SECONDS = 1.0


class PartStatus(Struct, frozen=True):
    """The status of a part, as read from its file."""

    part: str
    doing: str
    at: float
    """The time of writing, in seconds since the epoch."""
    pid: int
    numbers: dict[str, float]


class StatusFile:
    """Writes the status of one part. A full disk does not stop the part."""

    def __init__(self, path: Path):
        self._path = path
        self._written = 0.0
        self._numbers: dict[str, float] = {}
        self._doing = ""

    def update(self, numbers: Mapping[str, float], *, doing: str | None = None) -> None:
        """Updates the numbers. Writes the file at once if `doing` has changed. Otherwise writes it
        at most once a second."""
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
    """Reads the status of every part that ever wrote one. Leaves out files that cannot be read."""
    part_statuses = []
    for path in sorted(folder.glob("*.json")):
        try:
            body = json.loads(path.read_text())
            numbers = {str(name): float(value) for name, value in body["numbers"].items()}
            doing, at, pid = str(body["doing"]), float(body["at"]), int(body["pid"])
            part_statuses.append(PartStatus(path.stem, doing, at, pid, numbers))
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            continue
    return part_statuses


class RolloutProgress(Progress):
    """Progress that also counts the seconds in which no trajectory was rolled out."""

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


SILENT_SECONDS = 10.0
"""Seconds after which a status is old. A trainer writes no status while it computes."""


async def pool_of(journal: Journal, name: str) -> DataPool:
    """Opens the pool of a training. Raises `UsageError` if the run does not exist or is no
    training."""
    run = await journal.find_run(name)
    if run is None:
        raise UsageError(f"the journal has no run {name!r}: give the --run of a training")
    if (await journal.progress(run)).sealed and not await journal.versions(run):
        raise UsageError(f"run {name!r} is not a training: give the --run of one")
    return DataPool(journal, run, bound=1)


def page(
    name: str, stats: PoolStats, parts: Sequence[PartStatus], versions: Sequence[str]
) -> list[str]:
    """Returns the lines of the page."""
    dismissed = ", ".join(f"{count} {reason}" for reason, count in stats.dismissed.items())
    stream = "sealed" if stats.is_sealed else "open"
    over = "over, " if stats.is_over else ""
    newest = versions[-1] if versions else "none"
    lines = [
        f"training {name}: {over}{stats.admitted} groups, {stats.trained} trained, stream {stream}",
        f"  queues     {stats.rolling_out} rolling out, {stats.ready} ready, {stats.taken} taken",
        f"  dismissed  {dismissed or 'none'}",
        f"  versions   {len(versions)}, the newest {newest}",
    ]
    for part in parts:
        lines.append(f"  {part.part:<10} {part.doing}{_age(part)}")
        lines += [f"    {line}" for line in _details(part)]
    return lines


def _age(part: PartStatus) -> str:
    age = time.time() - part.at
    return f" (said {age:.0f} s ago)" if age > SILENT_SECONDS else ""


_PAGE = {
    "trainer": (
        "step {step:.0f} of {steps:.0f}, idle for {idle_seconds_total:.0f} s in all",
        (
            "versions behind: {lag_newest:.0f} (newest token) to {lag_oldest:.0f} (oldest), at most"
            " {max_staleness:.0f} are wanted"
        ),
        (
            "{groups_open:.0f} of {groups_bound:.0f} groups on their way, the oldest ready one for "
            "{oldest_ready_seconds:.0f} s"
        ),
        (
            "too old: {groups_too_old_total:.0f} groups; sampled and not used: "
            "{tokens_unused_total:.0f} tokens"
        ),
    ),
    "rollouter": (
        "{running:.0f} running, {settled:.0f} settled, {failed:.0f} failed",
        "idle for {idle_seconds_total:.0f} s in all, {tokens_total:,.0f} tokens since its start",
    ),
}


def _details(part: PartStatus) -> list[str]:
    numbers = defaultdict(float, part.numbers)
    return [line.format_map(numbers) for line in _PAGE.get(part.part, ())]


async def watched_page(journal: Journal, name: str, *, folder: Path | None) -> list[str]:
    """Returns the page of the run `name`. The parts' own numbers come from `folder`, if it is
    known."""
    pool = await pool_of(journal, name)
    run = await journal.find_run(name)
    assert run is not None, "pool_of has found it"
    versions = [version.name for version in await journal.versions(run)]
    parts = [] if folder is None else read_status(folder / PARTS)
    return page(name, await pool.stats(), parts, versions)


def families(parts: Sequence[PartStatus], restarts: Mapping[str, int]) -> list[Family]:
    """Returns the numbers of all parts, the age of each part's status, and the restarts, as
    metrics. A number whose name ends with `_total` is a counter."""
    metrics = []
    for part in parts:
        for name, value in sorted(part.numbers.items()):
            kind = "counter" if name.endswith("_total") else "gauge"
            metrics.append(single(f"{part.part}_{name}", kind, value))
        metrics.append(single(f"{part.part}_said_seconds", "gauge", max(0, time.time() - part.at)))
    samples = tuple(("", label("part", name), float(n)) for name, n in restarts.items())
    return [*metrics, Family("restarts_total", "counter", samples)]
