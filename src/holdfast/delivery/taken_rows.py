"""Tracks rows that an asynchronous trainer has taken: which were trained, and in which step.

TRL takes rows off a queue one by one, leaves out rows that are too old, packs the others into
micro-batches, and forms one micro-batch ahead of the one that it trains. So a row that was taken is
not trained yet. Micro-batches are trained in the order in which they are formed, and their rows are
in the order in which they were taken. A row was therefore left out if it is in no micro-batch but a
row that was taken after it is in one.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct


class TakenRow(Struct, frozen=True):
    """One row of a group."""

    task: str
    number: int
    """The row's place in its group, which is the same after every restart."""


class TakenRows:
    """The rows that one trainer took. A group has ended when each of its rows was trained or left
    out. Not safe for several threads."""

    def __init__(self, split: Mapping[str, Iterable[int]] | None = None):
        """`split` is the result of `split()` that was saved in the restored checkpoint."""
        self._restored = {task: set(rows) for task, rows in (split or {}).items()}
        self._waiting: dict[str, set[int]] = {}
        self._trained: dict[str, set[int]] = {}
        self._taken: deque[TakenRow] = deque()
        self._formed: deque[list[TakenRow]] = deque()
        self._ended: list[tuple[str, int]] = []

    def take(self, row: TakenRow, *, group: Iterable[int]) -> None:
        """Records that the trainer took `row`. `group` has the numbers of those rows of the same
        group that are on the queue."""
        if row.task not in self._waiting:
            self._waiting[row.task] = set(group)
            self._trained[row.task] = self._restored.pop(row.task, set())
        self._taken.append(row)

    def form(self, rows: Sequence[TakenRow], *, step: int) -> list[str]:
        """Records the next micro-batch and the rows that were left out before it. Returns the tasks
        of groups that ended without a trained row. A group that ends here with trained rows is
        recorded with `step`, the next step."""
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
        """Records that the oldest micro-batch was trained in `step`."""
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
        """Returns the groups that have ended with trained rows, each with its step, in the order of
        steps."""
        return list(self._ended)

    def forget(self, ended: Sequence[tuple[str, int]]) -> None:
        """Drops ended groups that the ledger has recorded."""
        done = set(ended)
        self._ended = [pair for pair in self._ended if pair not in done]

    def split(self) -> dict[str, list[int]]:
        """Returns the trained rows of each group that has not ended."""
        restoreds = self._restored | self._trained
        return {task: sorted(rows) for task, rows in restoreds.items() if rows}
