"""A running pipeline as a page of text, and as Prometheus metrics.

Both are made of what the parts say of themselves and of what the journal has: watching changes
nothing, and needs no part to be alive.
"""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.journal.journal import Journal
from holdfast.pipeline.pool import DataPool, PoolStats
from holdfast.pipeline.status import PartStatus, read_status
from holdfast.prometheus import Family, label, single
from holdfast.records.errors import UsageError
from holdfast.training.run.folder import PARTS

SILENT_SECONDS = 10.0
"""After which a status is old: while the trainer computes, it says nothing."""


async def pool_of(journal: Journal, name: str) -> DataPool:
    """Raises `UsageError` for a run that is not there, or that is no training."""
    run = await journal.find_run(name)
    if run is None:
        raise UsageError(f"the journal has no run {name!r}: give the --run of a training")
    if (await journal.progress(run)).sealed and not await journal.versions(run):
        raise UsageError(f"run {name!r} is no training: give the --run of one")
    return DataPool(journal, run, bound=1)


def page(
    name: str, stats: PoolStats, parts: Sequence[PartStatus], versions: Sequence[str]
) -> list[str]:
    """What there is to see now."""
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
    """The page of the run `name`; what the parts say is in `folder`, if it is known."""
    pool = await pool_of(journal, name)
    run = await journal.find_run(name)
    assert run is not None, "pool_of has found it"
    versions = [version.name for version in await journal.versions(run)]
    parts = [] if folder is None else read_status(folder / PARTS)
    return page(name, await pool.stats(), parts, versions)


def families(parts: Sequence[PartStatus], restarts: Mapping[str, int]) -> list[Family]:
    """Each number of each part; what only grows is a counter."""
    found = []
    for part in parts:
        for name, value in sorted(part.numbers.items()):
            kind = "counter" if name.endswith("_total") else "gauge"
            found.append(single(f"{part.part}_{name}", kind, value))
        found.append(single(f"{part.part}_said_seconds", "gauge", max(0, time.time() - part.at)))
    samples = tuple(("", label("part", name), float(n)) for name, n in restarts.items())
    return [*found, Family("restarts_total", "counter", samples)]
