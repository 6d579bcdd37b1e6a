"""A run's trajectories in a short form, made from the summaries that the journal stores.

A log is read only if its trajectory is settled and the journal has no summary of it. After the
first reading, only the groups that are being worked on are read again. If the number of settled
trajectories then differs from the journal's, everything is read again.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import RunProgress, TrajectoryRow
from holdfast.records.run import Run
from holdfast.records.samples.summary import FailureSummary, Summary
from holdfast.records.trajectory import Status
from holdfast.records.usage import UsageByModel

CHUNK = 256
"""The number of tasks that are read at once."""
MAX_ENTRIES = 400_000
"""The largest number of trajectories in memory. Pages of a larger run say that they know only its
beginning."""
WINDOW_SECONDS = 60.0
"""The length of the recent window, in seconds. A run's speed is measured in this window."""
REREAD_SECONDS = 20.0
"""The shortest time between two readings of the whole run."""


class Entry(Struct, frozen=True, gc=False):
    """The short form of one trajectory."""

    id: int
    ordinal: int
    task: str
    sample: int
    status: Status
    settled: bool
    records: int
    owner: str
    reward: float | None = None
    reason: str = ""
    turns: int = 0
    tokens: int = 0
    seconds: float = 0.0
    retries: int = 0
    """The number of retried calls and attempts."""
    forks: int = 0
    failures: tuple[FailureSummary, ...] = ()
    used: UsageByModel = {}
    versions: tuple[str, ...] | None = ()

    @property
    def name(self) -> str:
        return f"{self.task}/{self.sample}"

    @property
    def is_begun(self) -> bool:
        return self.records > 0

    @property
    def is_running(self) -> bool:
        return self.status is Status.RUNNING and not self.settled


class RecentPace(Struct, frozen=True):
    """The speed of a run within the recent window, measured by its digest."""

    settled_per_second: float
    tokens_per_second: float
    seconds: float
    """The length of the window."""


def entry_of(row: TrajectoryRow, summary: Summary | None) -> Entry:
    begin = (row.id, row.ordinal, row.key.task, row.key.sample)
    state = (row.status, row.settled, row.records, row.owner)
    if summary is None:
        return Entry(*begin, *state)
    return Entry(
        *begin,
        *state,
        reward=summary.reward,
        reason=summary.reason,
        turns=summary.turns,
        tokens=summary.sampled_tokens,
        seconds=summary.seconds,
        retries=summary.call_retries + summary.retried_attempts,
        forks=summary.forks + summary.refills,
        failures=summary.failures,
        used=summary.used,
        versions=summary.versions,
    )


class RunDigest:
    """The short form of all trajectories of a run. `refresh` reads what may have changed."""

    def __init__(self) -> None:
        self.groups: dict[int, list[Entry]] = {}
        self.version = 0
        """Grows with every change."""
        self.is_whole = False
        """Whether every trajectory was read at least once."""
        self.count = 0
        self._next = 0
        self._settled = 0
        self._full_reading = 0.0
        self._seen: deque[tuple[float, int, int]] = deque(maxlen=600)

    @property
    def is_cut(self) -> bool:
        """Returns whether the run has more trajectories than the digest keeps."""
        return self.count >= MAX_ENTRIES

    def entries(self) -> Iterator[Entry]:
        for ordinal in sorted(self.groups):
            yield from self.groups[ordinal]

    async def refresh(self, journal: Journal, run: Run) -> None:
        progress = await journal.progress(run)
        if self.is_whole and self._contradicts(progress):
            self._begin_again()
        await self._read_working(journal, run)
        await self._read_rest(journal, run)
        self._note(progress)

    def _contradicts(self, progress: RunProgress) -> bool:
        """Returns whether everything has to be read again. This is so if the journal counts fewer
        settled trajectories than the digest, or another number although no group is being worked
        on. Returns False for some seconds after everything was read."""
        now = time.monotonic()
        differs = not self.is_cut and progress.settled < self._settled
        late = progress.settled != self._settled and not self._working()
        return (differs or late) and now - self._full_reading > REREAD_SECONDS

    def _begin_again(self) -> None:
        self._next, self._full_reading = 0, time.monotonic()

    def _working(self) -> list[int]:
        """Returns the groups that may change next: those that were begun and are not settled, and
        some groups after the last one that was begun. Groups are begun in order."""
        begun = [
            ordinal
            for ordinal, group in self.groups.items()
            if any(entry.is_begun for entry in group) and not all(entry.settled for entry in group)
        ]
        last = max((o for o, group in self.groups.items() if group[0].is_begun), default=-1)
        ahead = range(last + 1, min(last + 1 + CHUNK, self._next))
        waiting = [o for o in ahead if o in self.groups and not self.groups[o][0].settled]
        return sorted({*begun, *waiting})

    async def _read_working(self, journal: Journal, run: Run) -> None:
        ordinals = self._working()
        for at in range(0, len(ordinals), CHUNK):
            await self._read(journal, run, ordinals[at : at + CHUNK])

    async def _read_rest(self, journal: Journal, run: Run) -> None:
        while not self.is_cut:
            some = range(self._next, self._next + CHUNK)
            read = await self._read(journal, run, some)
            if read:
                self._next = read
            if read < some.stop:
                break
        self.is_whole = True

    async def _read(self, journal: Journal, run: Run, ordinals: Iterable[int]) -> int:
        """Reads these groups. Returns the ordinal after the last group that exists."""
        groups: dict[int, list[Entry]] = {}
        last = 0
        rows = await journal.stored_summaries(run, list(ordinals))
        missing = await _summarize(journal, run, rows)
        for row, summary in rows:
            last = max(last, row.ordinal + 1)
            if not row.resting:
                entry = entry_of(row, summary or missing.get(row.id))
                groups.setdefault(row.ordinal, []).append(entry)
        for ordinal, group in groups.items():
            before = self.groups.get(ordinal, [])
            if group != before:
                self.groups[ordinal] = group
                self.version += 1
                self.count += len(group) - len(before)
                self._settled += _settled(group) - _settled(before)
        return last

    def _note(self, progress: RunProgress) -> None:
        now, tokens = time.monotonic(), 0
        if self._working():
            tokens = sum(entry.tokens for entry in self.entries())
        if not self._seen or self._seen[-1][1:] != (progress.settled, tokens):
            self._seen.append((now, progress.settled, tokens))
        while len(self._seen) > 2 and now - self._seen[0][0] > WINDOW_SECONDS:
            self._seen.popleft()

    @property
    def pace(self) -> RecentPace | None:
        """Returns the run's speed in the recent window, or None if nothing was settled in that
        time."""
        if len(self._seen) < 2:
            return None
        (start, settled, tokens), (_, last_settled, last_tokens) = self._seen[0], self._seen[-1]
        seconds = time.monotonic() - start
        if seconds <= 0 or last_settled <= settled:
            return None
        return RecentPace(
            (last_settled - settled) / seconds, (last_tokens - tokens) / seconds, seconds
        )


async def _summarize(
    journal: Journal, run: Run, rows: Sequence[tuple[TrajectoryRow, Summary | None]]
) -> dict[int, Summary]:
    """Reads the logs of settled trajectories for which the journal has no summary, and returns
    their summaries. There are few such trajectories."""
    ordinals = {row.ordinal for row, summary in rows if row.settled and summary is None}
    if not ordinals:
        return {}
    return {
        row.id: summary
        async for row, summary in journal.summaries(run, ordinals=ordinals)
        if isinstance(summary, Summary) and row.settled
    }


def _settled(group: Iterable[Entry]) -> int:
    return sum(entry.settled for entry in group)
