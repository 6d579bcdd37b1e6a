"""Sends the spans of a run: all that the journal has, or those that are new since the last call.

If the collector does not accept a batch, its spans are made again at the next call, with the same
ids. So only numbers are kept in memory between calls.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from opentelemetry.sdk.trace import ReadableSpan

from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import GroupEnd, TrajectoryRow
from holdfast.records.errors import JournalCorrupt
from holdfast.records.run import Run
from holdfast.tracing.collector import OtlpCollector
from holdfast.tracing.spans import TrajectorySpans, run_span, step_span
from holdfast.training.run.recorded import metrics_of

BATCH_SPANS = 256
BATCH_CHARACTERS = 2_000_000
MAX_FAILURES = 3
"""`send` gives up after this many failed batches in a row."""
Key = tuple[object, ...]
"""What a span describes: a trajectory, a training step, or () for the run."""


class TracedRun:
    """A run, and a note of the spans that its collector has. `send` sends the other spans."""

    def __init__(self, run: Run, collector: OtlpCollector):
        self._run = run
        self._collector = collector
        self._sent: dict[Key, int] = {}
        """What the collector has. The number grows with each record and when the trajectory is
        settled."""
        self._ends: dict[int, float] = {}
        """The time at which the last trajectory of each task ended."""
        self._batch: list[ReadableSpan] = []
        self._characters = 0
        self._parts: set[Key] = set()
        """The keys of everything that has a span in the batch."""
        self._whole: dict[Key, int] = {}
        """The keys of everything whose last span is in the batch."""
        self._failed: set[Key] = set()
        self._failures = 0
        self._new: list[TrajectoryRow] = []
        """The trajectories that were new at the last call of `send`."""

    @property
    def left(self) -> int:
        """Returns the number of trajectories with spans that the collector does not have."""
        return sum(map(self._is_new, self._new))

    async def send(self, journal: Journal) -> bool:
        """Sends the spans that the collector does not have. Returns whether it has all spans
        now."""
        self._failures = 0
        self._failed.clear()
        rows = [row for row in await journal.trajectories(self._run) if not row.resting]
        self._new = [row for row in rows if self._is_new(row)]
        for start in range(0, len(self._new), BATCH_SPANS):
            await self._send_rows(journal, self._new[start : start + BATCH_SPANS])
            if self._failures >= MAX_FAILURES:
                return False
        await self._send_steps(journal)
        if (await journal.progress(self._run)).is_over and () not in self._sent:
            counts = Counter(row.status.name.lower() for row in rows)
            end = max(self._ends.values(), default=self._run.created)
            await self._add((), 1, [run_span(self._run, counts, end=end)])
        await self._flush()
        return not (self.left or self._failed)

    def _is_new(self, row: TrajectoryRow) -> bool:
        return 2 * row.records + row.settled > self._sent.get((row.id,), 0)

    async def _send_rows(self, journal: Journal, rows: Sequence[TrajectoryRow]) -> None:
        ordinals = list(dict.fromkeys(row.ordinal for row in rows))
        tasks = await journal.tasks(self._run, ordinals=ordinals)
        task_of = dict(zip(ordinals, tasks, strict=True))
        for row in rows:
            try:
                records = await journal.history(row.id)
            except JournalCorrupt:
                continue  # It stays among what is left.
            trajectory = TrajectorySpans(self._run, row, task_of[row.ordinal])
            spans = [trajectory.take(record) for record in records]
            new = [span for span in spans[self._sent.get((row.id,), 0) // 2 :] if span is not None]
            own = [trajectory.own_span()] if row.settled else []
            self._ends[row.ordinal] = max(self._ends.get(row.ordinal, 0.0), trajectory.end)
            await self._add((row.id,), 2 * len(records) + row.settled, [*new, *own])
            if self._failures >= MAX_FAILURES:
                return

    async def _send_steps(self, journal: Journal) -> None:
        """Sends the spans of new training steps. A step's span begins when the last trajectory of
        the step ended."""
        metrics = metrics_of(self._run)
        for consumer in await journal.consumers(self._run):
            begins: dict[int, float] = {}
            for entry in await journal.ledger(self._run, consumer):
                if entry.end is GroupEnd.TRAINED and entry.step is not None:
                    end = self._ends.get(entry.ordinal, self._run.created)
                    begins[entry.step] = max(begins.get(entry.step, 0.0), end)
            for step, start in begins.items():
                if (consumer, step) not in self._sent:
                    numbers = metrics.get(step, {})
                    span = step_span(self._run, consumer, step, numbers, start=start)
                    await self._add((consumer, step), 1, [span])

    # --- batches

    async def _add(self, key: Key, number: int, spans: Iterable[ReadableSpan]) -> None:
        for span in spans:
            texts = (value for value in (span.attributes or {}).values() if isinstance(value, str))
            self._batch.append(span)
            self._parts.add(key)
            self._characters += sum(map(len, texts))
            if len(self._batch) >= BATCH_SPANS or self._characters >= BATCH_CHARACTERS:
                await self._flush()
        self._whole[key] = number
        self._parts.add(key)

    async def _flush(self) -> None:
        batch, parts, whole = self._batch, self._parts, self._whole
        self._batch, self._parts, self._whole, self._characters = [], set(), {}, 0
        if batch and not await self._collector.send(batch):
            self._failures += 1
            self._failed |= parts
            return
        self._failures = 0
        self._sent |= {key: number for key, number in whole.items() if key not in self._failed}
