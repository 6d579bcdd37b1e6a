"""Appending: fencing and insertion for a whole batch in a handful of statements.

Every statement that SQLite steps gives up the interpreter lock and has to win it back, so a batch
of 256 rows that took 512 statements would crawl while the event loop is busy. Here it takes one to
read the epochs and a few multi-row inserts.
"""

import json
import sqlite3
from collections.abc import Sequence

from msgspec import Struct

from holdfast.journal.journal import Lease
from holdfast.journal.writer import Operation
from holdfast.records.codec import MAX_RECORD, checksum, encode
from holdfast.records.errors import JournalError, LeaseLost
from holdfast.records.step import Record
from holdfast.records.trajectory import Status

_CHUNKS = (128, 32, 8, 1)
_COLUMNS = "INSERT INTO records(trajectory, seq, epoch, crc, body) VALUES "
_INSERTS = {size: _COLUMNS + ",".join(["(?,?,?,?,?)"] * size) for size in _CHUNKS}
_HEADS = """SELECT json_group_array(json_array(t.id, t.epoch, (
                SELECT coalesce(max(r.seq) + 1, 0) FROM records r WHERE r.trajectory = t.id)))
            FROM trajectories t WHERE t.id IN (SELECT value FROM json_each(?))"""

Row = tuple[int, int, int, int, bytes]


class Head(Struct):
    """Where a trajectory's log stands while a batch is written."""

    epoch: int
    next_seq: int


class Entry(Struct):
    """What one lease appends, and what becomes of its trajectory with it."""

    lease: Lease
    first: int
    """The place that its first row takes. It is only written there: a log has no gaps."""
    rows: list[Row]
    status: Status | None
    settled: bool | None


class Append(Operation):
    """One or more entries that are written together or not at all."""

    __slots__ = ("entries",)

    def __init__(self, entries: list[Entry], rows: int, size: int):
        super().__init__(rows, size)
        self.entries = entries

    def run(self, connection: sqlite3.Connection) -> None:
        """By itself; `run_batch` writes many at once."""
        refused = _take_places(self.entries, _heads(connection, [self]))
        if refused is not None:
            raise refused
        _insert(connection, [row for entry in self.entries for row in entry.rows])
        for entry in self.entries:
            _mark(connection, entry)


def append_of(
    entries: Sequence[tuple[Lease, Sequence[Record], Status | None]], settled: bool | None
) -> Append:
    """Encodes everything, and only then takes places: a record that cannot be encoded takes none.

    From here on the order is fixed.
    """
    encoded: list[list[bytes]] = []
    rows = size = 0
    for lease, records, _ in entries:
        if lease.broken is not None:
            raise lease.broken
        bodies = [encode(record) for record in records]
        for body in bodies:
            size += len(body)
            if len(body) > MAX_RECORD:
                raise JournalError(
                    f"a record of {len(body):,} bytes is too large; the limit is {MAX_RECORD:,}"
                )
        rows += len(bodies)
        encoded.append(bodies)
    taken = [
        _entry(lease, bodies, status, settled)
        for (lease, _, status), bodies in zip(entries, encoded, strict=True)
    ]
    return Append(taken, rows, size)


def _entry(lease: Lease, bodies: list[bytes], status: Status | None, settled: bool | None) -> Entry:
    trajectory, epoch, first = lease.id, lease.epoch, lease.next_seq
    rows: list[Row] = []
    seq = first
    for body in bodies:
        rows.append((trajectory, seq, epoch, checksum(body, trajectory, seq, epoch), body))
        seq += 1
    lease.next_seq = seq
    return Entry(lease, first, rows, status, settled)


def run_batch(connection: sqlite3.Connection, batch: list[Operation]) -> None:
    """Runs operations in their order: appends in bulk, everything else one by one in between."""
    appends: list[Append] = []
    for operation in batch:
        if isinstance(operation, Append):
            appends.append(operation)
            continue
        _append_all(connection, appends)
        appends = []
        _run_alone(connection, operation)
    _append_all(connection, appends)


def _run_alone(connection: sqlite3.Connection, operation: Operation) -> None:
    try:
        operation.result = operation.run(connection)
    except sqlite3.OperationalError:
        raise
    except Exception as error:
        operation.error = error


def _append_all(connection: sqlite3.Connection, appends: list[Append]) -> None:
    if not appends:
        return
    heads = _heads(connection, appends)
    rows: list[Row] = []
    marked: list[Entry] = []
    for append in appends:
        append.error = _take_places(append.entries, heads)
        if append.error is None:
            for entry in append.entries:
                rows += entry.rows
                if entry.status is not None or entry.settled is not None:
                    marked.append(entry)
    _insert(connection, rows)
    for entry in marked:
        _mark(connection, entry)


def _heads(connection: sqlite3.Connection, appends: list[Append]) -> dict[int, Head]:
    ids = json.dumps([entry.lease.id for append in appends for entry in append.entries])
    (found,) = connection.execute(_HEADS, (ids,)).fetchone()
    return {trajectory: Head(epoch, seq) for trajectory, epoch, seq in json.loads(found)}


def _take_places(entries: list[Entry], heads: dict[int, Head]) -> JournalError | None:
    """Moves the heads on past `entries`, or says why they are refused and moves none."""
    moved: dict[int, int] = {}
    for entry in entries:
        lease, known = entry.lease, heads.get(entry.lease.id)
        if known is None or known.epoch != lease.epoch:
            return lost(lease, None if known is None else known.epoch)
        if moved.get(lease.id, known.next_seq) != entry.first:
            # An earlier append of this lease failed while this one was already queued. Written,
            # it would leave a gap, and everything after a gap is lost.
            return JournalError(
                f"an earlier append to {lease.key} failed, so this one cannot follow it; nothing "
                "was written"
            )
        moved[lease.id] = entry.first + len(entry.rows)
    for trajectory, seq in moved.items():
        heads[trajectory].next_seq = seq
    return None


def lost(lease: Lease, epoch: int | None) -> LeaseLost:
    return LeaseLost(
        f"another worker has claimed {lease.key} (its epoch is {epoch}, ours {lease.epoch}); "
        "nothing was written"
    )


def _insert(connection: sqlite3.Connection, rows: list[Row]) -> None:
    at = 0
    for size in _CHUNKS:
        while len(rows) - at >= size:
            flat = [value for row in rows[at : at + size] for value in row]
            connection.execute(_INSERTS[size], flat)
            at += size


def _mark(connection: sqlite3.Connection, entry: Entry) -> None:
    if entry.status is not None:
        connection.execute(
            "UPDATE trajectories SET status = ? WHERE id = ?", (int(entry.status), entry.lease.id)
        )
    if entry.settled:
        (place,) = connection.execute(
            "UPDATE counters SET value = value + 1 WHERE name = 'settled' RETURNING value"
        ).fetchone()
        connection.execute(
            "UPDATE trajectories SET settled = ?, owner = NULL WHERE id = ?",
            (place, entry.lease.id),
        )
