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
from holdfast.journal.writer import Ticket
from holdfast.records.codec import MAX_RECORD, checksum, encode
from holdfast.records.errors import JournalError, LeaseLost
from holdfast.records.step import Record
from holdfast.records.trajectory import Status

_CHUNKS = (128, 32, 8, 1)
_COLUMNS = "INSERT INTO records(trajectory, seq, epoch, crc, body) VALUES "
_INSERTS = {size: _COLUMNS + ",".join(["(?,?,?,?,?)"] * size) for size in _CHUNKS}
_EPOCHS = """SELECT json_group_array(json_array(id, epoch)) FROM trajectories
             WHERE id IN (SELECT value FROM json_each(?))"""

Row = tuple[int, int, int, int, bytes]


class Entry(Struct):
    """What one lease appends, and what becomes of its trajectory with it."""

    lease: Lease
    rows: list[Row]
    status: Status | None
    settled: bool | None


class Append:
    """One or more entries that are written together or not at all."""

    __slots__ = ("entries", "rows", "size")

    def __init__(self, entries: list[Entry]):
        self.entries = entries
        self.rows = sum(len(entry.rows) for entry in entries)
        self.size = sum(len(row[4]) for entry in entries for row in entry.rows)

    def run(self, connection: sqlite3.Connection) -> None:
        """By itself, for the rare batch whose rows collide."""
        refused = _check(self.entries, epochs_of(connection, [self]))
        if refused is not None:
            raise refused
        for entry in self.entries:
            connection.executemany(_INSERTS[1], entry.rows)
            _mark(connection, entry)


def entry_of(
    lease: Lease, records: Sequence[Record], status: Status | None, settled: bool | None
) -> Entry:
    """Encodes, and takes the lease's next places. From here on the order is fixed."""
    if lease.broken is not None:
        raise lease.broken
    trajectory, epoch, seq = lease.id, lease.epoch, lease.next_seq
    rows: list[Row] = []
    for offset, record in enumerate(records):
        body = encode(record)
        if len(body) > MAX_RECORD:
            raise JournalError(
                f"a record of {len(body):,} bytes is too large; the limit is {MAX_RECORD:,}"
            )
        crc = checksum(body, trajectory=trajectory, seq=seq + offset, epoch=epoch)
        rows.append((trajectory, seq + offset, epoch, crc, body))
    lease.next_seq = seq + len(rows)
    return Entry(lease, rows, status, settled)


def run_batch(connection: sqlite3.Connection, batch: list[Ticket]) -> None:
    """Runs tickets in their order: appends in bulk, everything else one by one in between."""
    appends: list[Ticket] = []
    for ticket in batch:
        if isinstance(ticket.operation, Append):
            appends.append(ticket)
            continue
        _append_all(connection, appends)
        appends = []
        _run_alone(connection, ticket)
    _append_all(connection, appends)


def _run_alone(connection: sqlite3.Connection, ticket: Ticket) -> None:
    try:
        ticket.result = ticket.operation.run(connection)
    except sqlite3.OperationalError:
        raise
    except Exception as error:
        ticket.error = error


def _append_all(connection: sqlite3.Connection, tickets: list[Ticket]) -> None:
    if not tickets:
        return
    appends = [ticket.operation for ticket in tickets if isinstance(ticket.operation, Append)]
    epochs = epochs_of(connection, appends)
    rows: list[Row] = []
    marked: list[Entry] = []
    for ticket, append in zip(tickets, appends, strict=True):
        ticket.error = _check(append.entries, epochs)
        if ticket.error is None:
            for entry in append.entries:
                rows += entry.rows
                if entry.status is not None or entry.settled is not None:
                    marked.append(entry)
    connection.execute("SAVEPOINT bulk")
    try:
        _insert(connection, rows)
    except sqlite3.IntegrityError:
        # Some row is there already. Find out whose, so that only that caller fails.
        connection.execute("ROLLBACK TO bulk")
        _one_by_one(connection, tickets)
    else:
        for entry in marked:
            _mark(connection, entry)
    connection.execute("RELEASE bulk")


def _one_by_one(connection: sqlite3.Connection, tickets: list[Ticket]) -> None:
    for ticket in tickets:
        ticket.error = None
        connection.execute("SAVEPOINT one")
        try:
            ticket.operation.run(connection)
        except LeaseLost as error:
            ticket.error = error
        except sqlite3.IntegrityError as error:
            connection.execute("ROLLBACK TO one")
            ticket.error = JournalError(f"a record is already there: {error}")
        connection.execute("RELEASE one")


def epochs_of(connection: sqlite3.Connection, appends: list[Append]) -> dict[int, int]:
    ids = json.dumps([entry.lease.id for append in appends for entry in append.entries])
    (found,) = connection.execute(_EPOCHS, (ids,)).fetchone()
    return dict(json.loads(found))


def _check(entries: list[Entry], epochs: dict[int, int]) -> LeaseLost | None:
    for entry in entries:
        lease = entry.lease
        if epochs.get(lease.id) != lease.epoch:
            return LeaseLost(
                f"another worker has claimed {lease.key} (its epoch is {epochs.get(lease.id)}, "
                f"ours {lease.epoch}); nothing was written"
            )
    return None


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
