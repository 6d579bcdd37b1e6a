"""Entries of a log on their way into a database: encoded, and with the places that they take."""

from collections.abc import Sequence

from msgspec import Struct

from holdfast.journal.journal import Entries, Lease
from holdfast.journal.rows import summary_body
from holdfast.records.encoding.codec import checksum, encode
from holdfast.records.errors import JournalCorrupt, JournalError, LeaseLost
from holdfast.records.step import Record
from holdfast.records.trajectory import Status

Row = tuple[int, int, int, int, bytes]
"""Trajectory, seq, epoch, checksum, body."""


class AppendEntry(Struct):
    """What one lease appends, and what becomes of its trajectory with it."""

    lease: Lease
    first: int
    """The place that its first row takes. It is only written there: a log has no gaps."""
    rows: list[Row]
    size: int
    status: Status | None
    settled: bool | None
    summary: bytes | None = None
    """The summary of a trajectory that the entry settles."""


class BadRecord(JournalCorrupt):
    """The first bad record of a log."""

    def __init__(self, trajectory: int, seq: int, position: int, reason: str):
        super().__init__(f"record {seq} of trajectory {trajectory} (position {position}): {reason}")
        self.seq = seq
        self.position = position
        self.reason = reason


def entry_of(
    lease: Lease, records: Sequence[Record], status: Status | None, settled: bool | None
) -> AppendEntry:
    """Encodes everything, and only then takes places: a record that cannot be encoded takes none.

    From here on the order is fixed.
    """
    # In one piece and with few objects: the event loop does nothing as often as this.
    if lease.broken is not None:
        raise lease.broken
    trajectory, epoch, first = lease.id, lease.epoch, lease.next_seq
    rows: list[Row] = []
    seq, total = first, 0
    for record in records:
        body = encode(record)
        rows.append((trajectory, seq, epoch, checksum(body, trajectory, seq, epoch), body))
        seq += 1
        total += len(body)
    lease.next_seq = seq
    entry = AppendEntry(lease, first, rows, total, status, settled)
    if settled and lease.summary is not None:
        entry.summary = summary_body(lease.summary, trajectory)
    return entry


def entries_of(entries: Entries, settled: bool | None) -> list[AppendEntry]:
    """Written together or not at all; none keeps a place unless all are encoded."""
    made: list[AppendEntry] = []
    try:
        for lease, records, status in entries:
            made.append(entry_of(lease, records, status, settled))
    except BaseException:
        for entry in reversed(made):
            entry.lease.next_seq = entry.first
        raise
    return made


def refusal(lease: Lease, epoch: int | None) -> JournalError:
    """Why an entry is not written. `epoch` is the trajectory's; None if the trajectory is gone."""
    if epoch != lease.epoch:
        return lost(lease, epoch)
    # An earlier append of this lease failed while this one was already queued. Written, it would
    # leave a gap, and everything after a gap is lost.
    return JournalError(
        f"an earlier append to {lease.key} failed, so this one cannot follow it; nothing "
        "was written"
    )


def lost(lease: Lease, epoch: int | None) -> LeaseLost:
    return LeaseLost(
        f"another worker has claimed {lease.key} (its epoch is {epoch}, ours {lease.epoch}); "
        "nothing was written"
    )
