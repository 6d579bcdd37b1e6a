"""Reading a log with its checksums, and cutting it where it is torn.

A bad record is never skipped: everything from it on is set aside (table `cuts`), the position is
reported, and the trajectory goes on from the last good record.
"""

import sqlite3

from holdfast.journal.journal import Cut, Lease
from holdfast.journal.runs import NOW
from holdfast.records.codec import checksum, decode, encode
from holdfast.records.errors import JournalCorrupt
from holdfast.records.run import Run
from holdfast.records.step import Record, Reopened
from holdfast.records.trajectory import Status

_ROWS = """SELECT position, seq, epoch, crc, body FROM records
           WHERE trajectory = ? ORDER BY seq"""


class BadRecord(JournalCorrupt):
    """The first bad record of a log."""

    def __init__(self, trajectory: int, seq: int, position: int, reason: str):
        super().__init__(f"record {seq} of trajectory {trajectory} (position {position}): {reason}")
        self.seq = seq
        self.position = position
        self.reason = reason


def decode_rows(connection: sqlite3.Connection, trajectory: int) -> list[Record]:
    rows = connection.execute(_ROWS, (trajectory,)).fetchall()
    return [check_row(trajectory, expected, *row) for expected, row in enumerate(rows)]


def check_row(
    trajectory: int, expected: int, position: int, seq: int, epoch: int, crc: int, body: bytes
) -> Record:
    if seq != expected:
        raise BadRecord(trajectory, expected, position, f"is missing (found {seq} instead)")
    if not isinstance(body, bytes) or crc != checksum(
        body, trajectory=trajectory, seq=seq, epoch=epoch
    ):
        raise BadRecord(trajectory, seq, position, "fails its checksum")
    try:
        return decode(body)
    except JournalCorrupt as error:
        raise BadRecord(trajectory, seq, position, str(error)) from error


def cut_to_last_good(connection: sqlite3.Connection, lease: Lease) -> Cut | None:
    try:
        decode_rows(connection, lease.id)
    except BadRecord as bad:
        return cut_at(connection, lease.id, bad, name=str(lease.key))
    return None


def cut_at(connection: sqlite3.Connection, trajectory: int, bad: BadRecord, *, name: str) -> Cut:
    """Sets the bad record and all after it aside; the trajectory is open again."""
    where = (bad.reason, trajectory, bad.seq)
    lost = connection.execute(
        "INSERT INTO cuts SELECT NULL, trajectory, seq, epoch, crc, body, ? FROM records "
        "WHERE trajectory = ? AND seq >= ?",
        where,
    ).rowcount
    connection.execute("DELETE FROM records WHERE trajectory = ? AND seq >= ?", where[1:])
    connection.execute(
        "UPDATE trajectories SET settled = NULL, status = ? WHERE id = ?",
        (int(Status.RUNNING), trajectory),
    )
    return Cut(name, trajectory, bad.seq, bad.position, lost, bad.reason)


def reopen_failed(connection: sqlite3.Connection, run: Run, reason: str) -> int:
    (now,) = connection.execute(f"SELECT {NOW}").fetchone()
    body = encode(Reopened(reason, now))
    failed = connection.execute(
        "SELECT t.id, t.epoch + 1, (SELECT coalesce(max(seq) + 1, 0) FROM records r "
        "WHERE r.trajectory = t.id) FROM trajectories t "
        "WHERE t.run = ? AND t.status = ? AND t.settled IS NOT NULL",
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
