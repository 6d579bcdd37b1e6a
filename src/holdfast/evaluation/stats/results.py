"""Results: the result of each row of a run, in numbers, without conversations and tokens.

Read from the journal with one trajectory in memory at a time. Only final scores count: a row that
failed for good, or is not settled yet, has none (I5).
"""

import math

from msgspec import Struct

from holdfast.engine.export.prices import Cost, Prices
from holdfast.engine.export.row_status import last_failure
from holdfast.journal.journal import Journal, TrajectoryRow
from holdfast.journal.rows import history_of_row
from holdfast.records.errors import JournalCorrupt
from holdfast.records.failure import Failure
from holdfast.records.history import CAME_BACK_DIFFERENT, History
from holdfast.records.run import Run, RunSpec
from holdfast.records.sampling import Sampling
from holdfast.records.step import EnvironmentStepped, Generated, Record
from holdfast.records.trajectory import Status, TrajectoryKey
from holdfast.records.usage import UsageByModel, add_usages


class RowResult(Struct, frozen=True, omit_defaults=True):
    """One trajectory: a row of the data set, sampled once."""

    task: str
    sample: int = 0
    status: str = Status.COMPLETED.name
    reason: str = ""
    """Why it was truncated or failed."""
    score: float | None = None
    metrics: dict[str, float] = {}
    cause: str = ""
    """Of a permanent failure: infrastructure, environment or code; else ""."""
    root: str = ""
    """The failure's message without its numbers, so that like failures are equal."""
    disturbed: bool = False
    """An attempt failed (and was retried or refilled), a tool call was interrupted, or an
    environment came back different. Its score should be like that of a clean row."""
    turns: int = 0
    sampled_tokens: int = 0
    seconds: float = 0.0
    """Spent in generations, tools and environments, over all attempts that count."""
    settled: bool = True
    model: str = ""
    """The model, where it differs from row to row."""
    used: UsageByModel = {}
    """All that was ever sampled for it, by model."""
    uncounted_turns: int = 0
    """Turns of an engine that does not say how many tokens they had."""

    @property
    def name(self) -> str:
        return f"{self.task}/{self.sample}"


class Root(Struct, omit_defaults=True):
    """All failures with the same root."""

    root: str
    cause: str
    phase: str
    example: str
    """`task/sample` of the first row with it; of one that failed for good, if there is one."""
    message: str
    traceback: str
    failures: int = 0
    permanent: int = 0
    """Rows that failed for good because of it."""


class Results(Struct, frozen=True, omit_defaults=True):
    """All rows of a run, in (task, sample) order; tasks in the order of the data set."""

    run: str
    rows: tuple[RowResult, ...]
    model: str = ""
    sampling: Sampling | None = None
    samples: int = 1
    """Per task, those of all runs together."""
    num_runs: int = 1
    """Sample i belongs to run i // (samples / num_runs)."""
    created: float = 0.0
    roots: tuple[Root, ...] = ()
    """Causes of permanent failures come first."""
    spec: RunSpec | None = None
    """None for results that are not from a journal."""
    source: str = ""
    """The journal or the file of the results."""
    prices: Prices | None = None
    """What its tokens cost."""
    questions: dict[str, str] = {}
    """The digest of what each task asks, by its id; empty where that is not known."""

    @property
    def used(self) -> UsageByModel:
        """By all rows, model by model."""
        used: UsageByModel = {}
        for row in self.rows:
            used = add_usages(used, row.used)
        return used

    @property
    def cost(self) -> Cost | None:
        return None if self.prices is None else self.prices.cost_of(self.used)

    @property
    def scored(self) -> list[RowResult]:
        return [row for row in self.rows if row.score is not None]

    @property
    def failed(self) -> list[RowResult]:
        return [row for row in self.rows if row.status == Status.FAILED.name]

    @property
    def unsettled(self) -> int:
        return sum(not row.settled for row in self.rows)

    @property
    def metrics(self) -> list[str]:
        """The names of all metrics, sorted."""
        return sorted({name for row in self.rows for name in row.metrics})

    def by_task(self, metric: str | None = None) -> dict[str, list[float]]:
        """The scores (or one metric) of each task with any: the clusters of the estimates."""
        found: dict[str, list[float]] = {}
        for row in self.rows:
            value = row.score if metric is None else row.metrics.get(metric)
            if value is not None:
                found.setdefault(row.task, []).append(value)
        return found

    def by_run(self) -> list[dict[str, list[float]]]:
        """The scores of each task, for each of the runs."""
        size = max(1, self.samples // self.num_runs)
        runs: list[dict[str, list[float]]] = [{} for _ in range(self.num_runs)]
        for row in self.scored:
            assert row.score is not None, "it is scored"
            runs[min(row.sample // size, self.num_runs - 1)].setdefault(row.task, []).append(
                row.score
            )
        return runs


class SettledRows:
    """Rows settled in this process, which need not be read again from the journal."""

    def __init__(self) -> None:
        self._rows: dict[TrajectoryKey, tuple[int, RowResult]] = {}

    def note(self, key: TrajectoryKey, history: History) -> None:
        """Keeps a trajectory without failures. Its last record has to be durable."""
        if not (history.failures or history.scoring_failures):
            listed = TrajectoryRow(key, 0, 0, history.status, True, 0, history.records, "")
            self._rows[key] = (history.records, _row(listed, history))

    def row(self, listed: TrajectoryRow) -> RowResult | None:
        """None if the journal has another number of records, or another process settled it."""
        records, row = self._rows.get(listed.key, (-1, None))
        return row if listed.settled and listed.records == records else None


class Collector:
    """Collects results from trajectories, and keeps nothing else of them."""

    def __init__(
        self, run: Run, *, num_runs: int = 1, source: str = "", prices: Prices | None = None
    ):
        self._run = run
        self._prices = prices
        self._num_runs = num_runs
        self._source = source
        self._rows: list[RowResult] = []
        self._roots: dict[tuple[str, str], Root] = {}

    def take(self, listed: TrajectoryRow, history: History) -> None:
        self.take_row(_row(listed, history))
        _add_roots(self._roots, listed, history)

    def take_row(self, row: RowResult) -> None:
        """The row of a trajectory without failures."""
        self._rows.append(row)

    def results(self) -> Results:
        spec = self._run.spec
        return Results(
            run=spec.name,
            rows=tuple(self._rows),
            model=spec.model,
            sampling=spec.sampling,
            samples=spec.samples,
            num_runs=self._num_runs,
            created=self._run.created,
            roots=tuple(sorted(self._roots.values(), key=_root_order)),
            spec=spec,
            source=self._source,
            prices=self._prices,
        )


async def results_of(
    journal: Journal,
    run: Run,
    *,
    num_runs: int = 1,
    source: str = "",
    settled: SettledRows | None = None,
    prices: Prices | None = None,
) -> Results:
    """Reads the run once. Raises `JournalCorrupt`, with the trajectory's name, for a bad record.

    `source` is the journal's path, as a user would type it. If `settled` has all rows, no record is
    read.
    """
    collector = Collector(run, num_runs=num_runs, source=source, prices=prices)
    if settled is not None:
        listing = [row for row in await journal.trajectories(run) if not row.resting]
        known = [row for row in map(settled.row, listing) if row is not None]
        if len(known) == len(listing):
            for row in known:
                collector.take_row(row)
            return collector.results()
    async for listed, records in journal.histories(run):
        if not listed.resting:
            collector.take(listed, _history_of(listed, records))
    return collector.results()


def _history_of(listed: TrajectoryRow, records: list[Record]) -> History:
    try:
        return history_of_row(listed, records)
    except JournalCorrupt as error:
        raise JournalCorrupt(f"{listed.key} is corrupt: {error}") from error


def _row(listed: TrajectoryRow, history: History) -> RowResult:
    failure = last_failure(history) if listed.status is Status.FAILED else None
    # Not `history.generations`, which sorts: here the order does not matter, and time does.
    replies = [step for step in history.steps.values() if isinstance(step, Generated)]
    return RowResult(
        task=listed.key.task,
        sample=listed.key.sample,
        status=listed.status.name,
        reason=_reason(listed, history, failure),
        score=history.reward if listed.settled else None,
        metrics=_metrics(listed, history),
        cause=failure.cause.value if failure else "",
        root=failure.root if failure else "",
        disturbed=_is_disturbed(history, failure),
        turns=len(replies),
        sampled_tokens=sum(step.counted.completion_tokens for step in replies),
        seconds=_seconds(history),
        settled=listed.settled,
        used=history.used,
        uncounted_turns=history.uncounted_turns,
    )


def _metrics(listed: TrajectoryRow, history: History) -> dict[str, float]:
    is_final = listed.settled and listed.status.is_outcome
    return dict(history.scored.metrics) if history.scored and is_final else {}


def _reason(listed: TrajectoryRow, history: History, failure: Failure | None) -> str:
    """The failure's full message, if there is one: its root lacks the numbers."""
    if failure is not None:
        return failure.line
    reason = history.finished.reason if history.finished else ""
    return reason if listed.status in (Status.TRUNCATED, Status.FAILED) else ""


def _is_disturbed(history: History, final: Failure | None) -> bool:
    """The final failure does not count: nothing came after it."""
    retried = any(failure is not final for failure in history.failures)
    changed = any(fork.reason == CAME_BACK_DIFFERENT for fork in history.forks)
    return bool(retried or history.life or history.interrupted_calls or changed)


def _seconds(history: History) -> float:
    """The time of its steps, without the time between a kill and the resume."""
    spent = [result.seconds for result in history.results.values()]
    spent += [
        step.seconds
        for step in history.steps.values()
        if isinstance(step, Generated | EnvironmentStepped)
    ]
    return round(math.fsum(spent), 6)


def _add_roots(roots: dict[tuple[str, str], Root], row: TrajectoryRow, history: History) -> None:
    """Counts every failure of the trajectory, also those that a retry repaired."""
    final = last_failure(history) if row.status is Status.FAILED else None
    name = f"{row.key.task}/{row.key.sample}"
    for failure in (*history.failures, *history.scoring_failures):
        key = (failure.phase, failure.root)
        found = roots.get(key)
        if found is None or (failure is final and not found.permanent):
            roots[key] = Root(
                root=failure.root,
                cause=failure.cause.value,
                phase=failure.phase,
                example=name,
                message=failure.line,
                traceback=failure.traceback,
                failures=found.failures if found else 0,
                permanent=found.permanent if found else 0,
            )
        roots[key].failures += 1
        roots[key].permanent += failure is final


def _root_order(root: Root) -> tuple[int, int, str, str]:
    return -root.permanent, -root.failures, root.phase, root.root
