"""The rules for the rows of tasks and trajectories in every database.

A task's row has a checksum of its text and of its place among the run's tasks. Trajectories find
their task by this place, so a task at a wrong place is as bad as a flipped bit.

A trajectory's status and summary follow from its log. The row repeats them, so that a listing reads
no log. If the row and the log differ, the log is right.
"""

import struct
import zlib
from collections.abc import Iterable, Iterator

import msgspec

from holdfast.journal.types import TrajectoryRow
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
    """Returns the encoded task, and the checksum of the text and the place."""
    body = msgspec.msgpack.encode(task)
    return body, task_checksum(body, ordinal)


def task_checksum(body: bytes, ordinal: int) -> int:
    return zlib.crc32(body, zlib.crc32(_place.pack(ordinal)))


class MisnamedTask(JournalCorrupt):
    """The error for an intact task whose row has another name."""

    def __init__(self, name: object, task: Task):
        super().__init__(f"task {shown(name)!r} is named {task.id!r} in its own text")
        self.task = task


def task_of(ordinal: object, name: object, body: object, crc: object) -> Task:
    """Decodes the task of a row. Raises `JournalCorrupt` if the row is damaged."""
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
    """Returns the right place of each misplaced task, if the tasks only swapped places among
    themselves.

    `rows` are the run's tasks: ordinal, text and checksum. Returns {} if other damage is possible.
    """
    moved = [row for row in rows if not _is_good(*row)]
    places = {
        ordinal: place
        for ordinal, body, crc in moved
        for place, _, _ in moved
        if crc == task_checksum(body, place)
    }
    return places if set(places) == set(places.values()) else {}


def shown(name: object) -> str:
    """Returns a name as printable text, even if the name is damaged."""
    return str(name).encode(errors="surrogateescape").decode(errors="replace")


# --- trajectories


def contradictions(history: History, status: int, *, settled: bool) -> Iterator[str]:
    """Yields each way in which the row differs from its log."""
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
    """Encodes a summary with its checksum in front."""
    body = msgspec.msgpack.encode(summary)
    return _crc.pack(zlib.crc32(body, trajectory & _CRC)) + body


def kept_summary(body: object, trajectory: int) -> Summary | None:
    """Returns the stored summary; None if there is no summary or if it is damaged."""
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
    """Returns the stored summary of a settled trajectory; None if the summary does not cover the
    whole log."""
    summary = kept_summary(body, row.id) if row.settled else None
    if summary is None or (summary.records, summary.status) != (row.records, row.status):
        return None
    return summary


def has_other_summary(history: History, body: object, trajectory: int) -> bool:
    """Returns whether the stored summary differs from the summary of the log."""
    if body is None:
        return False
    summary = kept_summary(body, trajectory)
    if summary is not None and summary.records < history.records:
        return False  # Somebody appended to it since, so its summary is not used.
    return summary != summarize(history)


def history_of_row(row: TrajectoryRow, records: list[Record]) -> History:
    """Returns the history of a log. Raises `JournalCorrupt` if the trajectory is settled and its
    row contradicts the log.

    If the log has grown since the row was read, the row is not checked.
    """
    history = History(records, settled=row.settled)
    if row.settled and len(records) == row.records:
        for what in contradictions(history, row.status, settled=True):
            raise JournalCorrupt(f"it {what}")
    return history
