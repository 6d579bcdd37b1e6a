"""Results hold the numbers of each row of a run, without conversations and tokens.

They are read from the journal with one trajectory in memory at a time. Only final scores count: a
row that failed for good, or is not settled yet, has no score (I5).
"""

from collections import Counter

from msgspec import Struct

from holdfast.engine.export.prices import Cost, Prices
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import TrajectoryRow
from holdfast.records.errors import JournalCorrupt
from holdfast.records.history import History
from holdfast.records.run import Run, RunSpec
from holdfast.records.samples.summary import FailureSummary, Summary
from holdfast.records.sampling import Sampling
from holdfast.records.trajectory import Status
from holdfast.records.usage import UsageByModel, add_usages


class RowResult(Struct, frozen=True, omit_defaults=True):
    """The result of one trajectory: a row of the data set, sampled once."""

    task: str
    sample: int = 0
    status: str = Status.COMPLETED.name
    reason: str = ""
    """Why the trajectory was truncated or failed."""
    score: float | None = None
    metrics: dict[str, float] = {}
    cause: str = ""
    """The cause of a permanent failure: infrastructure, environment or code. "" without one."""
    root: str = ""
    """The failure's message without its numbers, so that similar failures have equal roots."""
    disturbed: bool = False
    """Whether an attempt failed (and was retried or refilled), a tool call was interrupted, or an
    environment was not the same after it was restored. Such a row should score like any other."""
    turns: int = 0
    sampled_tokens: int = 0
    seconds: float = 0.0
    """Seconds spent in generations, tools and environments, over all attempts that count."""
    settled: bool = True
    model: str = ""
    """The model, if it differs between rows."""
    used: UsageByModel = {}
    """All tokens that were ever sampled for the row, by model."""
    uncounted_turns: int = 0
    """The number of turns from engines that do not report the number of tokens."""

    @property
    def name(self) -> str:
        return f"{self.task}/{self.sample}"


class Root(Struct, omit_defaults=True):
    """All failures with the same root."""

    root: str
    cause: str
    phase: str
    example: str
    """`task/sample` of the first row that failed for good with this root. If there is none, of the
    first row with this root."""
    message: str
    traceback: str
    failures: int = 0
    permanent: int = 0
    """The number of rows that failed for good because of this root."""


class TaskQuestion(Struct, frozen=True):
    """What a task asks, to compare it with the task of the same id in another run."""

    digest: str
    text: str
    """The user's first message, shortened."""


class Results(Struct, frozen=True, omit_defaults=True):
    """All rows of a run, in (task, sample) order, with tasks in the order of the data set."""

    run: str
    rows: tuple[RowResult, ...]
    model: str = ""
    sampling: Sampling | None = None
    samples: int = 1
    """The samples of each task, over all runs together."""
    num_runs: int = 1
    """The number of runs. Sample i belongs to run i // (samples / num_runs)."""
    created: float = 0.0
    reused: dict[str, int] = {}
    """The number of rows that other runs sampled, by the name of the other run."""
    roots: tuple[Root, ...] = ()
    """The roots of all failures. Roots with the most permanent failures come first."""
    spec: RunSpec | None = None
    """The run's spec, or None for results that are not from a journal."""
    source: str = ""
    """The journal or the file of the results."""
    prices: Prices | None = None
    """The prices of the tokens."""
    questions: dict[str, TaskQuestion] = {}
    """Each task's question, by the task's id. It is empty if the questions are unknown."""

    @property
    def used(self) -> UsageByModel:
        """The tokens of all rows, by model."""
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
        """Returns the scores (or the values of one metric) by task, as clusters for the estimates.
        Tasks without any value are left out."""
        scores: dict[str, list[float]] = {}
        for row in self.rows:
            value = row.score if metric is None else row.metrics.get(metric)
            if value is not None:
                scores.setdefault(row.task, []).append(value)
        return scores

    def by_run(self) -> list[dict[str, list[float]]]:
        """Returns the scores of each task, for each of the runs."""
        size = max(1, self.samples // self.num_runs)
        runs: list[dict[str, list[float]]] = [{} for _ in range(self.num_runs)]
        for row in self.scored:
            assert row.score is not None, "it is scored"
            runs[min(row.sample // size, self.num_runs - 1)].setdefault(row.task, []).append(
                row.score
            )
        return runs


class Collector:
    """Collects results from trajectories, without keeping the trajectories."""

    def __init__(
        self, run: Run, *, num_runs: int = 1, source: str = "", prices: Prices | None = None
    ):
        self._run = run
        self._prices = prices
        self._num_runs = num_runs
        self._source = source
        self._rows: list[RowResult] = []
        self._reused: Counter[str] = Counter()
        self._roots: dict[tuple[str, str], Root] = {}
        self._examples: dict[tuple[str, str], int] = {}

    def take(self, listed: TrajectoryRow, summary: Summary) -> None:
        self._rows.append(_row(listed, summary))
        self._reused.update([summary.reused] if summary.reused else [])
        for failure in summary.failures:
            if not failure.closing:
                self._add_root(listed, failure)

    def _add_root(self, row: TrajectoryRow, failure: FailureSummary) -> None:
        """Counts a failure of the trajectory, even if a retry repaired it."""
        key = (failure.phase, failure.root)
        root = self._roots.get(key)
        if root is None or (failure.permanent and not root.permanent):
            self._examples[key] = row.id
            self._roots[key] = Root(
                root=failure.root,
                cause=failure.cause,
                phase=failure.phase,
                example=f"{row.key.task}/{row.key.sample}",
                message=failure.line,
                traceback="",
                failures=root.failures if root else 0,
                permanent=root.permanent if root else 0,
            )
        self._roots[key].failures += 1
        self._roots[key].permanent += failure.permanent

    async def read_tracebacks(self, journal: Journal) -> None:
        """Reads the tracebacks of the examples from their logs."""
        for key, root in self._roots.items():
            history = History(await journal.history(self._examples[key]))
            failures = (*history.failures, *history.scoring_failures)
            alike = [each for each in failures if (each.phase, each.root) == key]
            # The last failure is the one that ended the trajectory.
            shown = alike[-1 if root.permanent else 0]
            root.message, root.traceback = shown.line, shown.traceback

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
            reused=dict(self._reused),
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
    prices: Prices | None = None,
) -> Results:
    """Reads the run once. Raises `JournalCorrupt`, with the trajectory's name, for a bad record.

    `source` is the journal's path, as a user would type it.
    """
    collector = Collector(run, num_runs=num_runs, source=source, prices=prices)
    async for listed, summary in journal.summaries(run):
        if isinstance(summary, JournalCorrupt):
            raise JournalCorrupt(f"{listed.key} is corrupt: {summary}") from summary
        if not listed.resting:
            collector.take(listed, summary)
    await collector.read_tracebacks(journal)
    return collector.results()


def _row(listed: TrajectoryRow, summary: Summary) -> RowResult:
    final = next((failure for failure in summary.failures if failure.permanent), None)
    return RowResult(
        task=listed.key.task,
        sample=listed.key.sample,
        status=listed.status.name,
        reason=summary.reason if listed.status in (Status.TRUNCATED, Status.FAILED) else "",
        score=summary.reward if listed.settled else None,
        metrics=summary.metrics if listed.settled else {},
        cause=final.cause if final else "",
        root=final.root if final else "",
        disturbed=_is_disturbed(summary),
        turns=summary.turns,
        sampled_tokens=summary.sampled_tokens,
        seconds=summary.seconds,
        settled=listed.settled,
        used=summary.used,
        uncounted_turns=summary.uncounted_turns,
    )


def _is_disturbed(summary: Summary) -> bool:
    """Returns whether the row was disturbed. The final failure does not count, because no work
    followed it."""
    return bool(
        summary.retried_attempts
        or summary.refills
        or summary.interrupted_calls
        or summary.environments_changed
    )


def _root_order(root: Root) -> tuple[int, int, str, str]:
    return -root.permanent, -root.failures, root.phase, root.root
