"""Reads the columns of a run's data set. Readers can filter trajectories by the values in a column,
and compare the results of tasks with different values."""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from holdfast.journal.sql.journal import Journal
from holdfast.records.run import Run
from holdfast.records.task import Task
from holdfast.records.trajectory import Status
from holdfast.view.reading.digest import Entry

MAX_TASKS = 20_000
"""The largest number of tasks whose columns are read."""
MAX_VALUES = 20
"""A column with more distinct values than this is left out."""
MAX_COLUMNS = 12
MAX_LENGTH = 80


class Share(Struct, frozen=True):
    """The results of the tasks that have the same value in a column."""

    value: str
    trajectories: int
    mean: float | None
    failed: int
    truncated: int


class Columns:
    """Reads the columns of a run's data set, and keeps them until other tasks are read."""

    def __init__(self) -> None:
        self._read: tuple[int, int, Sequence[int]] = (-1, -1, ())
        self.by_name: dict[str, dict[int, str]] = {}
        """The value of each task, by the name of the column and the task's ordinal."""
        self.is_cut = False

    async def read(self, journal: Journal, run: Run, ordinals: Sequence[int]) -> None:
        """Reads the columns of these tasks, or of the first of many. Does nothing if the last call
        was for the same tasks, and the run did not change."""
        some = ordinals[:MAX_TASKS]
        key = (run.id, len(run.changes), some)
        if key != self._read:
            tasks = await journal.tasks(run, ordinals=some)
            self.by_name = _columns_of(list(zip(some, tasks, strict=True)))
            self._read = key
        self.is_cut = len(ordinals) > MAX_TASKS

    def breakdown(self, column: str, entries: Iterable[Entry]) -> list[Share]:
        values = self.by_name.get(column, {})
        groups: dict[str, list[Entry]] = {}
        for entry in entries:
            if entry.ordinal in values:
                groups.setdefault(values[entry.ordinal], []).append(entry)
        return [_share(value, groups[value]) for value in sorted(groups)]


def _share(value: str, entries: list[Entry]) -> Share:
    rewards = [entry.reward for entry in entries if entry.reward is not None]
    states = Counter(entry.status for entry in entries)
    mean = sum(rewards) / len(rewards) if rewards else None
    return Share(value, len(entries), mean, states[Status.FAILED], states[Status.TRUNCATED])


def _columns_of(tasks: Sequence[tuple[int, Task]]) -> dict[str, dict[int, str]]:
    columns: dict[str, dict[int, str]] = {}
    for ordinal, task in tasks:
        for name, value in task.metadata.items():
            if isinstance(value, str | int | float | bool):
                columns.setdefault(name, {})[ordinal] = _text(value)
    distinct = {name: len(set(values.values())) for name, values in columns.items()}
    useful = [name for name in columns if 1 < distinct[name] <= MAX_VALUES]
    return {name: columns[name] for name in useful[:MAX_COLUMNS]}


def _text(value: object) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text[:MAX_LENGTH]
