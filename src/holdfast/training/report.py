"""The report on a training has its steps, dismissals, versions, staleness and learning curve.

It is read only from the journal. It needs neither torch nor the folder of the training, and is the
same however many processes the training took.
"""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from holdfast.engine.report import many
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import GroupEnd, LedgerEntry, TrajectoryRow
from holdfast.records.group import Dismissal
from holdfast.records.run import Run
from holdfast.records.samples.summary import Summary
from holdfast.records.samples.version import WeightVersion, newest_of, staleness
from holdfast.records.step import VersionSpan

HELD_OUT = ".held-out."
"""The text between the name of the training and the version, in the name of an evaluation's run."""
MAX_LISTED = 8
"""The largest number of steps of a curve that a line shows."""
Curve = list[tuple[int, float]]
"""Pairs of step and mean reward, in the order of steps."""


class ConsumerReport(Struct, frozen=True):
    """What one consumer did with a run."""

    consumer: str
    sealed: bool
    """Whether no more tasks are admitted."""
    steps: int
    """The last trained step that a checkpoint holds."""
    groups: dict[str, int]
    """The number of groups for each end: trained, dismissed or open."""
    dismissed: dict[str, int]
    """The number of dismissed groups for each reason."""
    versions: int
    newest: str
    """The name of the newest version."""
    staleness: dict[int, int] = field(default_factory=dict)
    """The number of trained trajectories for each staleness. Staleness counts versions between the
    weights that sampled a trajectory and the weights that were trained."""
    stale: Curve = field(default_factory=list)
    """The mean staleness of each step's trained trajectories."""
    rewards: Curve = field(default_factory=list)
    """The mean reward of all groups sampled for a step, as in `metrics.jsonl`."""
    held_out: Curve = field(default_factory=list)


class TrainingCollector:
    """Collects the training's numbers from the trajectories of a run, without keeping the
    trajectories."""

    def __init__(
        self,
        ledgers: Mapping[str, Sequence[LedgerEntry]],
        versions: Sequence[WeightVersion],
        *,
        sealed: bool,
        held_out: Curve,
    ):
        self._ledgers = ledgers
        self._versions = versions
        self._sealed = sealed
        self._held_out = held_out
        self._entries = {
            name: {entry.ordinal: entry for entry in entries} for name, entries in ledgers.items()
        }
        self._by_name = {version.name: version for version in versions}
        self._made = {version.step for version in versions}
        self._rewards: dict[str, dict[int, list[float]]] = {name: {} for name in ledgers}
        self._staleness: dict[str, dict[int, list[int]]] = {name: {} for name in ledgers}

    def take(self, row: TrajectoryRow, summary: Summary) -> None:
        for name, entries in self._entries.items():
            entry = entries.get(row.ordinal)
            if entry is None or entry.step is None or not row.status.is_outcome:
                continue
            is_trained = entry.end is GroupEnd.TRAINED
            if is_trained or entry.reason == Dismissal.UNINFORMATIVE:
                rewards = self._rewards[name].setdefault(entry.step, [])
                rewards += [] if summary.reward is None else [summary.reward]
            if is_trained and summary.versions is not None and entry.step - 1 in self._made:
                self._add_staleness(name, entry.step, summary.versions)

    def _add_staleness(self, name: str, step: int, versions: Sequence[str]) -> None:
        known = [self._by_name[version] for version in versions if version in self._by_name]
        behind = staleness(
            [VersionSpan(version, 0, 1) for version in versions], known, now=step - 1
        )
        if behind is not None:
            self._staleness[name].setdefault(step, []).append(behind)

    def reports(self) -> list[ConsumerReport]:
        return [self._report(name, entries) for name, entries in self._ledgers.items()]

    def _report(self, name: str, entries: Sequence[LedgerEntry]) -> ConsumerReport:
        ends = Counter(entry.end for entry in entries)
        trained = (entry.step or 0 for entry in entries if entry.end is GroupEnd.TRAINED)
        steps = max(trained, default=0)
        dismissed = [entry.reason for entry in entries if entry.end is GroupEnd.DISMISSED]
        rewards = sorted(self._rewards[name].items())
        stale = sorted(self._staleness[name].items())
        newest = newest_of(self._versions)
        return ConsumerReport(
            consumer=name,
            sealed=self._sealed,
            steps=steps,
            groups={str(end): ends[end] for end in GroupEnd},
            dismissed=dict(sorted(Counter(dismissed).items())),
            versions=len(self._versions),
            newest="" if newest is None else newest.name,
            staleness=dict(sorted(Counter(n for _, behind in stale for n in behind).items())),
            stale=[(step, statistics.fmean(behind)) for step, behind in stale],
            rewards=[(step, statistics.fmean(r)) for step, r in rewards if r and step <= steps],
            held_out=self._held_out,
        )


async def open_collector(journal: Journal, run: Run) -> TrainingCollector:
    """Opens a collector. For a run without a training, it collects nothing."""
    consumers = await journal.consumers(run)
    versions = await journal.versions(run)
    return TrainingCollector(
        {name: await journal.ledger(run, name) for name in consumers},
        versions,
        sealed=(await journal.progress(run)).sealed,
        held_out=await _held_out(journal, run, versions) if consumers else [],
    )


async def _held_out(journal: Journal, run: Run, versions: Sequence[WeightVersion]) -> Curve:
    """Returns the mean reward of each finished evaluation, by step."""
    over = {
        row.name for row in await journal.runs() if row.settled == sum(row.by_status.values()) > 0
    }
    means: dict[int, float] = {}
    for version in versions:
        name = f"{run.spec.name}{HELD_OUT}{version.name}"
        evaluation = await journal.find_run(name) if name in over else None
        if evaluation is None:
            continue
        if rewards := [reward for _, reward in await journal.rewards(evaluation)]:
            means[version.step] = statistics.fmean(rewards)
    return sorted(means.items())


def as_lines(report: ConsumerReport) -> list[str]:
    """Writes the report as lines of text."""
    lines = [f"  {report.consumer}: {_groups(report)}"]
    if report.versions:
        lines.append(
            f"  {many(report.versions, 'weight version')}, the newest {report.newest}"
            f"{_staleness(report.staleness)}"
        )
    for name, curve in (("reward by step", report.rewards), ("held out", report.held_out)):
        if curve:
            lines.append(f"  {name}: {_points(curve)}")
    return lines


def _groups(report: ConsumerReport) -> str:
    reasons = ", ".join(f"{total} {reason}" for reason, total in report.dismissed.items())
    stream = "sealed" if report.sealed else "open for more tasks"
    parts = [
        f"{many(report.steps, 'step')} trained on {many(report.groups['trained'], 'group')}",
        f"{report.groups['dismissed']} dismissed{f' ({reasons})' if reasons else ''}",
        f"{report.groups['open']} open",
    ]
    return f"{', '.join(parts)}; the run is {stream}"


def _staleness(counts: Mapping[int, int]) -> str:
    total = sum(counts.values())
    if not total:
        return ""
    mean = sum(behind * number for behind, number in counts.items()) / total
    return f"; staleness {mean:.2f} on average, at most {max(counts)}"


def _points(curve: Curve) -> str:
    """Writes the first and the last point of a curve, and some points between them."""
    apart = max(1, -(-(len(curve) - 1) // (MAX_LISTED - 1)))
    shown = [*curve[:-1:apart], curve[-1]]
    return ", ".join(f"{step}: {reward:.3f}" for step, reward in shown)
