"""Encodes the entries of a log for a database, and reserves their places in the log.

Each append of a batch is written whole or not at all, and only at the end of its log.
"""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from holdfast.journal.rows import summary_body
from holdfast.journal.types import Entries, Lease
from holdfast.records.encoding.codec import checksum, encode
from holdfast.records.errors import JournalCorrupt, JournalError, LeaseLost
from holdfast.records.step import Record
from holdfast.records.trajectory import Status

Row = tuple[int, int, int, int, bytes]
"""Trajectory, seq, epoch, checksum, body."""
Refuse = Callable[[int, JournalError], None]
"""A function that is called for each append that is not written, with the append's index in the
batch and the reason."""


class AppendEntry(Struct):
    """The records that one lease appends, and the trajectory's new state."""

    lease: Lease
    first: int
    """The place of the first row. The entry is written only at this place, because a log has no
    gaps."""
    rows: list[Row]
    size: int
    status: Status | None
    settled: bool | None
    summary: bytes | None = None
    """The summary, if the entry settles the trajectory."""


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
    """Encodes the records and reserves their places at the end of the lease's log. If a record
    cannot be encoded, reserves no place.

    The order of the records is fixed when this function returns.
    """
    # One function with few objects, because nothing runs more often on the event loop.
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
    """Encodes entries that are written together or not at all. If one of them cannot be encoded,
    frees all reserved places."""
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
    """Returns the reason why an entry is not written. `epoch` is the trajectory's epoch; None if
    the trajectory is gone."""
    if epoch != lease.epoch:
        return lost(lease, epoch)
    # An earlier append of this lease failed when this one was already queued. Writing this one
    # would leave a gap, and everything after a gap is lost.
    return JournalError(
        f"an earlier append to {lease.key} failed, so this one cannot follow it; nothing "
        "was written"
    )


def lost(lease: Lease, epoch: int | None) -> LeaseLost:
    return LeaseLost(
        f"another worker has claimed {lease.key} (its epoch is {epoch}, ours {lease.epoch}); "
        "nothing was written"
    )


# --- which appends of a batch are written


class Head(Struct, array_like=True, gc=False):
    """The end of a trajectory's log while a batch is written."""

    trajectory: int
    epoch: int
    length: int
    position: int = 0
    """The position of the last record, in journals whose records have positions; 0 before the first
    record."""


def place(
    appends: Sequence[Sequence[AppendEntry]], heads: Mapping[int, Head], refuse: Refuse
) -> tuple[list[Row], dict[int, Status | None]]:
    """Moves the heads of the logs past the accepted appends, and calls `refuse` for each other
    append. Returns the rows to write, and the new status of each trajectory that gets rows; None if
    it keeps its status."""
    rows: list[Row] = []
    touched: dict[int, Status | None] = {}
    for number, entries in enumerate(appends):
        error = _take_places(entries, heads)
        if error is not None:
            refuse(number, error)
            continue
        for entry in entries:
            rows += entry.rows
            if entry.status is not None or entry.lease.id not in touched:
                touched[entry.lease.id] = entry.status
    return rows, touched


def _take_places(entries: Sequence[AppendEntry], heads: Mapping[int, Head]) -> JournalError | None:
    """Moves the heads past `entries`. If an entry is refused, moves no head and returns the
    error."""
    if len(entries) == 1:
        entry = entries[0]
        head = heads.get(entry.lease.id)
        if head is None or head.epoch != entry.lease.epoch or head.length != entry.first:
            return refusal(entry.lease, None if head is None else head.epoch)
        head.length += len(entry.rows)
        return None
    for number, entry in enumerate(entries):
        error = _take_places([entry], heads)
        if error is not None:
            for taken in reversed(entries[:number]):
                heads[taken.lease.id].length = taken.first
            return error
    return None
