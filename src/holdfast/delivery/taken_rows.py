"""Rows on their way through an asynchronous trainer: which of them were trained, and in which step.

TRL takes rows off a queue one by one, leaves out those that are too old, packs the others into
micro-batches, and forms one micro-batch ahead of the one that it trains. So a row that was taken
was not trained yet. Micro-batches are trained in the order in which they are formed, and rows are
in them in the order in which they were taken: what was taken before a row of a micro-batch, and is
in none, was left out.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct


class TakenRow(Struct, frozen=True):
    """One row of a group."""

    task: str
    number: int
    """Its place among the rows of its group, which is the same after every restart."""


class TakenRows:
    """For one thread. A group has ended when each of its rows was trained or left out."""

    def __init__(self, split: Mapping[str, Iterable[int]] | None = None):
        """`split`: of the restored checkpoint."""
        self._restored = {task: set(rows) for task, rows in (split or {}).items()}
        self._waiting: dict[str, set[int]] = {}
        self._trained: dict[str, set[int]] = {}
        self._taken: deque[TakenRow] = deque()
        self._formed: deque[list[TakenRow]] = deque()
        self._ended: list[tuple[str, int]] = []

    def take(self, row: TakenRow, *, group: Iterable[int]) -> None:
        """The trainer took it. `group`: the rows that its group has on the queue."""
        if row.task not in self._waiting:
            self._waiting[row.task] = set(group)
            self._trained[row.task] = self._restored.pop(row.task, set())
        self._taken.append(row)

    def form(self, rows: Sequence[TakenRow], *, step: int) -> list[str]:
        """The next micro-batch. Groups (by task) that have ended without one trained row; those
        with some have ended in `step`, the next one."""
        inside = set(rows)
        self._formed.append(list(rows))
        left_out = []
        while inside:
            row = self._taken.popleft()
            if row in inside:
                inside.remove(row)
            else:
                left_out.append(row)
        return [task for row in left_out for task in self._end(row, step=step)]

    def train(self, *, step: int) -> None:
        """The oldest micro-batch was trained, in this step."""
        for row in self._formed.popleft():
            self._trained[row.task].add(row.number)
            self._end(row, step=step)

    def _end(self, row: TakenRow, *, step: int) -> list[str]:
        waiting = self._waiting[row.task]
        waiting.discard(row.number)
        if waiting:
            return []
        del self._waiting[row.task]
        if not self._trained.pop(row.task):
            return [row.task]
        self._ended.append((row.task, step))
        return []

    def ended(self) -> list[tuple[str, int]]:
        """Groups that were trained to the end, each with its step, in the order of steps."""
        return list(self._ended)

    def forget(self, ended: Sequence[tuple[str, int]]) -> None:
        """The ledger has them."""
        done = set(ended)
        self._ended = [pair for pair in self._ended if pair not in done]

    def split(self) -> dict[str, list[int]]:
        """The trained rows of groups of which others are not."""
        restoreds = self._restored | self._trained
        return {task: sorted(rows) for task, rows in restoreds.items() if rows}
