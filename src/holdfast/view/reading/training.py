"""Reads the steps of a training: the groups that each step was trained on, the metrics of the
steps, and the restarts between them.

The journal has the groups, the versions and the rewards. The metrics of the optimizer are in the
file `metrics.jsonl` of the training's folder, which may be on another machine.
"""

from collections.abc import Sequence

from msgspec import Struct

from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import GroupEnd, LedgerEntry, TrajectoryRow
from holdfast.records.errors import JournalCorrupt
from holdfast.records.run import Run
from holdfast.records.samples.summary import Summary
from holdfast.records.step import AttemptStarted
from holdfast.records.trajectory import TrajectoryKey
from holdfast.training.report import ConsumerReport, open_collector
from holdfast.training.run.metrics import FILE
from holdfast.training.run.recorded import Metrics, folder_of, metrics_of
from holdfast.view.charts import Line, Mark
from holdfast.view.reading.digest import Entry, RunDigest

MAX_PROBED = 150
"""The largest number of steps for which a log is read, to see which process sampled the step."""
CHARTS: tuple[tuple[str, dict[str, str]], ...] = (
    ("reward", {"training": "reward", "held out": "eval_reward"}),
    ("loss", {"loss": "loss"}),
    ("entropy", {"entropy": "entropy"}),
    ("KL divergence", {"kl": "kl"}),
    ("clipped share", {"positive": "clipped_positive", "negative": "clipped_negative"}),
    ("ratio", {"1 %": "ratio_p1", "median": "ratio_p50", "99 %": "ratio_p99"}),
    ("gap between engine and trainer", {"mean": "gap_mean", "largest": "gap_max"}),
    ("gradient norm", {"norm": "gradient_norm"}),
    ("seconds", {"step": "seconds", "trainer": "trainer_seconds"}),
)


class StepRow(Struct, frozen=True):
    """One step of one consumer."""

    step: int
    trained: list[LedgerEntry]
    dismissed: list[LedgerEntry]
    reward: float | None
    numbers: dict[str, float]


class TrainingView(Struct, frozen=True):
    """The data that the page of a training shows."""

    reports: list[ConsumerReport]
    steps: dict[str, list[StepRow]]
    """The steps of each consumer, the newest first."""
    undecided: dict[str, list[LedgerEntry]]
    """The dismissed groups that belong to no step, by consumer."""
    metrics: Metrics
    metrics_file: str
    """The path of the metrics. "" if the run does not record where its training writes."""
    curves: list[tuple[str, dict[str, Line]]]
    restarts: list[Mark]


async def training_of(journal: Journal, run: Run, digest: RunDigest) -> TrainingView:
    collector = await open_collector(journal, run)
    for entry in digest.entries():
        key = TrajectoryKey(run.spec.name, entry.task, entry.sample)
        state = (entry.status, entry.settled, 0, entry.records, entry.owner)
        row = TrajectoryRow(key, entry.id, entry.ordinal, *state)
        collector.take(row, Summary(reward=entry.reward, versions=entry.versions))
    reports, metrics, folder = collector.reports(), metrics_of(run), folder_of(run)
    steps, undecided = {}, {}
    for report in reports:
        ledger = await journal.ledger(run, report.consumer)
        steps[report.consumer] = _steps(ledger, dict(report.rewards), metrics)
        undecided[report.consumer] = [
            entry for entry in ledger if entry.end is GroupEnd.DISMISSED and entry.step is None
        ]
    return TrainingView(
        reports=reports,
        steps=steps,
        undecided=undecided,
        metrics=metrics,
        metrics_file="" if folder is None else str(folder / FILE),
        curves=_curves(metrics, reports),
        restarts=await _restarts(journal, digest, next(iter(steps.values()), [])),
    )


def _steps(
    ledger: Sequence[LedgerEntry], rewards: dict[int, float], metrics: Metrics
) -> list[StepRow]:
    numbers = {entry.step for entry in ledger if entry.step is not None}
    rows = {
        step: StepRow(step, [], [], rewards.get(step), metrics.get(step, {})) for step in numbers
    }
    for entry in ledger:
        if entry.step is not None and entry.end is not GroupEnd.OPEN:
            row = rows[entry.step]
            (row.trained if entry.end is GroupEnd.TRAINED else row.dismissed).append(entry)
    return [rows[step] for step in sorted(rows, reverse=True)]


def _curves(
    metrics: Metrics, reports: Sequence[ConsumerReport]
) -> list[tuple[str, dict[str, Line]]]:
    curves = []
    for title, names in CHARTS:
        lines: dict[str, Line] = {
            label: [(float(step), row[name]) for step, row in metrics.items() if name in row]
            for label, name in names.items()
        }
        if title == "reward" and reports and not any(lines.values()):
            lines = {"training": _line(reports[0].rewards), "held out": _line(reports[0].held_out)}
        drawn = {label: line for label, line in lines.items() if line}
        if drawn:
            curves.append((title, drawn))
    stale: dict[str, Line] = {r.consumer: _line(r.stale) for r in reports if len(r.stale) > 1}
    return [*curves, ("staleness, in versions", stale)] if stale else curves


def _line(curve: Sequence[tuple[int, float]]) -> Line:
    return [(float(step), value) for step, value in curve]


async def _restarts(journal: Journal, digest: RunDigest, steps: Sequence[StepRow]) -> list[Mark]:
    """Returns a mark for each step that another process sampled than the step before. Reads one log
    for each step."""
    marks: list[Mark] = []
    before = ""
    for row in sorted(steps, key=lambda row: row.step)[-MAX_PROBED:]:
        group = digest.groups.get(row.trained[0].ordinal) if row.trained else None
        worker = await _worker(journal, group[0]) if group else ""
        if before and worker and worker != before:
            text = f"step {row.step} was sampled by {worker}, and the one before by {before}"
            marks.append(Mark(float(row.step), text))
        before = worker or before
    return marks


async def _worker(journal: Journal, entry: Entry) -> str:
    try:
        records = await journal.history(entry.id)
    except JournalCorrupt:
        return ""
    attempts = [record for record in records if isinstance(record, AttemptStarted)]
    return attempts[-1].worker if attempts else ""
