"""Reading a log with its checksums, and cutting it where it is torn.

A bad record is never skipped: everything from it on is set aside (table `cuts`), the position is
reported, and the trajectory goes on from the last good record.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing

from holdfast.journal.appends import lost
from holdfast.journal.journal import Cut, Lease
from holdfast.journal.runs import NOW
from holdfast.records.codec import checksum, decode, encode
from holdfast.records.errors import JournalCorrupt
from holdfast.records.history import History
from holdfast.records.run import Run
from holdfast.records.step import Record, Reopened
from holdfast.records.trajectory import Status

# The cast: damage can turn a body into text, and text that is no UTF-8 could not even be read.
ROWS = """SELECT position, seq, epoch, crc, CAST(body AS BLOB) FROM records
          WHERE trajectory = ? ORDER BY seq"""


class BadRecord(JournalCorrupt):
    """The first bad record of a log."""

    def __init__(self, trajectory: int, seq: int, position: int, reason: str):
        super().__init__(f"record {seq} of trajectory {trajectory} (position {position}): {reason}")
        self.seq = seq
        self.position = position
        self.reason = reason


def decode_rows(connection: sqlite3.Connection, trajectory: int) -> list[Record]:
    return list(rows_of(connection, trajectory))


def rows_of(connection: sqlite3.Connection, trajectory: int) -> Iterator[Record]:
    """The good records in order; at the first bad one it raises `BadRecord`."""
    with closing(connection.execute(ROWS, (trajectory,))) as rows:  # An error would keep it open.
        for expected, row in enumerate(rows):
            yield check_row(trajectory, expected, *row)


def check_row(
    trajectory: int, expected: int, position: int, seq: int, epoch: object, crc: int, body: object
) -> Record:
    if seq != expected:
        raise BadRecord(trajectory, expected, position, f"is missing (found {seq} instead)")
    # A damaged page can turn a column into one of another type.
    if (
        not isinstance(body, bytes)
        or not isinstance(epoch, int)
        or crc != checksum(body, trajectory=trajectory, seq=seq, epoch=epoch)
    ):
        raise BadRecord(trajectory, seq, position, "fails its checksum")
    try:
        return decode(body)
    except JournalCorrupt as error:
        raise BadRecord(trajectory, seq, position, str(error)) from error


def cut_to_last_good(connection: sqlite3.Connection, lease: Lease) -> Cut | None:
    (epoch,) = connection.execute(
        "SELECT epoch FROM trajectories WHERE id = ?", (lease.id,)
    ).fetchone()
    if epoch != lease.epoch:
        raise lost(lease, epoch)
    return cut_if_torn(connection, lease.id, name=str(lease.key))


def cut_if_torn(connection: sqlite3.Connection, trajectory: int, *, name: str) -> Cut | None:
    history = History()
    try:
        for record in rows_of(connection, trajectory):
            history.take(record)
    except BadRecord as bad:
        return cut_at(connection, trajectory, bad, name=name, status=history.status)
    return None


def cut_at(
    connection: sqlite3.Connection, trajectory: int, bad: BadRecord, *, name: str, status: Status
) -> Cut:
    """Sets the bad record and all after it aside; the trajectory is open again."""
    where = (bad.reason, trajectory, bad.seq)
    given_up = connection.execute(
        "INSERT INTO cuts SELECT NULL, trajectory, seq, epoch, crc, body, ? FROM records "
        "WHERE trajectory = ? AND seq >= ?",
        where,
    ).rowcount
    connection.execute("DELETE FROM records WHERE trajectory = ? AND seq >= ?", where[1:])
    connection.execute(
        "UPDATE trajectories SET settled = NULL, status = ? WHERE id = ?",
        (int(status), trajectory),
    )
    return Cut(name, trajectory, bad.seq, bad.position, given_up, bad.reason, status)


def reopen_failed(connection: sqlite3.Connection, run: Run, reason: str) -> int:
    """Groups that a consumer has are left alone: its batches stay what they were."""
    (now,) = connection.execute(f"SELECT {NOW}").fetchone()
    body = encode(Reopened(reason, now))
    failed = connection.execute(
        "SELECT t.id, t.epoch + 1, (SELECT coalesce(max(seq) + 1, 0) FROM records r "
        "WHERE r.trajectory = t.id) FROM trajectories t "
        "WHERE t.run = ? AND t.status = ? AND t.settled IS NOT NULL AND NOT EXISTS "
        "(SELECT 1 FROM deliveries d WHERE d.run = t.run AND d.task = t.task)",
        (run.id, int(Status.FAILED)),
    ).fetchall()
    for trajectory, epoch, seq in failed:
        crc = checksum(body, trajectory=trajectory, seq=seq, epoch=epoch)
        connection.execute(
            "INSERT INTO records(trajectory, seq, epoch, crc, body) VALUES (?, ?, ?, ?, ?)",
            (trajectory, seq, epoch, crc, body),
        )
        connection.execute(
            "UPDATE trajectories SET settled = NULL, status = ?, epoch = ? WHERE id = ?",
            (int(Status.RUNNING), epoch, trajectory),
        )
    return len(failed)
