"""Rows of tasks and trajectories, in whichever database: what has to be true of them.

A task's row has a checksum of its text and of its place among the run's tasks: its trajectories
know the task by that place, so a task at another one is as wrong as a flipped bit.

A trajectory's status and its summary follow from its log. Its row keeps them, so that a listing
reads no log; where the two differ, the log is right.
"""

import struct
import zlib
from collections.abc import Iterable, Iterator

import msgspec

from holdfast.journal.journal import TrajectoryRow
from holdfast.records.errors import JournalCorrupt
from holdfast.records.history import History
from holdfast.records.samples.summary import Summary, summarize
from holdfast.records.step import Record
from holdfast.records.task import Task
from holdfast.records.trajectory import Status

_place = struct.Struct("<q")
_crc = struct.Struct("<I")
_CRC = 0xFFFFFFFF
_summary = msgspec.msgpack.Decoder(Summary)
_STATUSES = frozenset(int(status) for status in Status)


# --- tasks


def task_body(task: Task, ordinal: int) -> tuple[bytes, int]:
    """Its text, and the checksum of that at this place."""
    body = msgspec.msgpack.encode(task)
    return body, task_checksum(body, ordinal)


def task_checksum(body: bytes, ordinal: int) -> int:
    return zlib.crc32(body, zlib.crc32(_place.pack(ordinal)))


class MisnamedTask(JournalCorrupt):
    """A task is whole, but its row has another name for it."""

    def __init__(self, name: object, task: Task):
        super().__init__(f"task {shown(name)!r} is named {task.id!r} in its own text")
        self.task = task


def task_of(ordinal: object, name: object, body: object, crc: object) -> Task:
    """The task in a row. A damaged one raises `JournalCorrupt`."""
    if not isinstance(body, bytes) or not _is_good(ordinal, body, crc):
        raise JournalCorrupt(f"task {shown(name)!r} fails its checksum")
    try:
        task = msgspec.msgpack.decode(body, type=Task)
    except ValueError as error:
        raise JournalCorrupt(f"task {shown(name)!r} does not decode: {error}") from error
    if name != task.id:
        raise MisnamedTask(name, task)
    return task


def _is_good(ordinal: object, body: bytes, crc: object) -> bool:
    return isinstance(ordinal, int) and abs(ordinal) < 2**63 and crc == task_checksum(body, ordinal)


def places_of_moved(rows: Iterable[tuple[int, bytes, int]]) -> dict[int, int]:
    """Of a run's tasks (ordinal, text, checksum) that are not at their places, those places: each
    of them is another's that is not at its own. {} where that is not all."""
    moved = [row for row in rows if not _is_good(*row)]
    places = {
        ordinal: place
        for ordinal, body, crc in moved
        for place, _, _ in moved
        if crc == task_checksum(body, place)
    }
    return places if set(places) == set(places.values()) else {}


def shown(name: object) -> str:
    """A name for messages, whatever damage has done to it."""
    return str(name).encode(errors="surrogateescape").decode(errors="replace")


# --- trajectories


def contradictions(history: History, status: int, *, settled: bool) -> Iterator[str]:
    """How the row differs from its log."""
    if status not in _STATUSES:
        yield f"has status {status}, which does not exist"
    elif history.finished is not None and status != history.status:
        yield f"is marked {Status(status).name}; its log says {history.status.name}"
    elif history.finished is None and Status(status).is_over:
        yield f"is marked {Status(status).name}, but its log does not end"
    elif status == Status.PENDING and history.attempts:
        yield f"is marked PENDING; its log says {history.status.name}"
    if settled and history.finished is None:
        yield "is settled, but its log does not end"


def summary_body(summary: Summary, trajectory: int) -> bytes:
    """As it is kept: behind its checksum."""
    body = msgspec.msgpack.encode(summary)
    return _crc.pack(zlib.crc32(body, trajectory & _CRC)) + body


def kept_summary(body: object, trajectory: int) -> Summary | None:
    """The stored summary; None without one, or if it is damaged."""
    if not isinstance(body, bytes):
        return None
    content = body[_crc.size :]
    if body[: _crc.size] != _crc.pack(zlib.crc32(content, trajectory & _CRC)):
        return None
    try:
        return _summary.decode(content)
    except ValueError:
        return None


def summary_of_row(row: TrajectoryRow, body: object) -> Summary | None:
    """The stored summary of a trajectory; None if it does not cover the whole log."""
    summary = kept_summary(body, row.id) if row.settled else None
    if summary is None or (summary.records, summary.status) != (row.records, row.status):
        return None
    return summary


def has_other_summary(history: History, body: object, trajectory: int) -> bool:
    """Whether what is kept is not what follows from the log."""
    if body is None:
        return False
    summary = kept_summary(body, trajectory)
    if summary is not None and summary.records < history.records:
        return False  # It was appended to since: nobody uses it.
    return summary != summarize(history)


def history_of_row(row: TrajectoryRow, records: list[Record]) -> History:
    """The history of a log; `JournalCorrupt` where the row of a settled one says something else.

    A log that was written to since the row was read is not held against it.
    """
    history = History(records, settled=row.settled)
    if row.settled and len(records) == row.records:
        for what in contradictions(history, row.status, settled=True):
            raise JournalCorrupt(f"it {what}")
    return history
