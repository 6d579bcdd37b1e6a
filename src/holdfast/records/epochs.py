"""Turns a data set into an endless sequence of tasks, without stored state.

The order of the rows is a pure function of (seed, epoch). The n-th task of a training run therefore
needs no saved position: any restart can compute it. If a later epoch draws a row again, the row
becomes another task (`sum-1@2`) with other seeds.
"""

import hashlib
import re
from collections.abc import Sequence

from msgspec import structs

from holdfast.records.encoding.bounds import check_whole
from holdfast.records.errors import UsageError
from holdfast.records.task import MAX_ID, Task

_EPOCH = re.compile(r"(.*)@[1-9][0-9]*", re.DOTALL)


def row_order(rows: int, *, seed: int, epoch: int) -> list[int]:
    """Returns a permutation of `range(rows)`, which is the same in every process, version and
    machine."""
    return sorted(range(rows), key=lambda row: (_rank(seed, epoch, row), row))


def _rank(seed: int, epoch: int, row: int) -> bytes:
    return hashlib.blake2b(f"{seed}\0{epoch}\0{row}".encode(), digest_size=8).digest()


def task_in_epoch(task: Task, epoch: int) -> Task:
    """Returns the task with its name in that epoch. Epochs count from 1, and the first epoch keeps
    the id. Raises `UsageError` if the name becomes too long."""
    if epoch == 1:
        return task
    name = f"{task.id}@{epoch}"
    if len(name) > MAX_ID:
        raise UsageError(f"task {task.id!r}: {name!r} is longer than {MAX_ID}; shorten its id")
    return structs.replace(task, id=name)


class EpochStream:
    """The tasks of a data set, epoch after epoch. The stream keeps no position."""

    def __init__(self, tasks: Sequence[Task], *, seed: int, shuffle: bool = True):
        """Raises `UsageError` for an empty data set, and for ids that clash with names of a later
        epoch."""
        if not tasks:
            raise UsageError("a data set without rows has no epochs; give at least one task")
        names = {task.id for task in tasks}
        for task in tasks:
            if (match := _EPOCH.fullmatch(task.id)) and match[1] in names:
                raise UsageError(
                    f"task {task.id!r} is named like a later epoch of task {match[1]!r}; rename it"
                )
        self._tasks = list(tasks)
        self._seed = seed
        self._shuffle = shuffle
        self._order: tuple[int, list[int]] = (0, [])

    def draw(self, start: int, count: int) -> list[Task]:
        """Returns the tasks with the numbers `start` to `start + count` (exclusive), counted from
        0."""
        check_whole("start", start, least=0)
        check_whole("count", count, least=0)
        return [self._task(number) for number in range(start, start + count)]

    def _task(self, number: int) -> Task:
        before, place = divmod(number, len(self._tasks))
        return task_in_epoch(self._tasks[self._row(before + 1, place)], before + 1)

    def _row(self, epoch: int, place: int) -> int:
        if not self._shuffle:
            return place
        if self._order[0] != epoch:  # Only a cache: the order can be computed again.
            order = row_order(len(self._tasks), seed=self._seed, epoch=epoch)
            self._order = (epoch, order)
        return self._order[1][place]
