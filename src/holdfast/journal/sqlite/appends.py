"""Appending: fencing and insertion for a whole batch in a handful of statements.

Every statement that SQLite steps gives up the interpreter lock and has to win it back, so a batch
of 256 rows that took 512 statements would crawl while the event loop is busy. Here it takes one to
read epochs and heads, and one for each table that is written.
"""

import sqlite3
from collections.abc import Sequence

from msgspec import Struct, json

from holdfast.journal.entries import AppendEntry, Row, entries_of, entry_of, refusal
from holdfast.journal.journal import Entries, Lease
from holdfast.journal.sqlite.writer import Operation
from holdfast.records.errors import JournalError
from holdfast.records.step import Record
from holdfast.records.trajectory import Status

MAX_HEADS = 50_000
"""As many are remembered: a hundred bytes each."""
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def _inserts(into: str, columns: int) -> dict[int, str]:
    """One statement for each size; rows of NULLs, which fill it up, are left out."""
    row = f"({','.join('?' * columns)})"
    return {
        size: f"INSERT OR {into} SELECT * FROM (VALUES {','.join([row] * size)}) "  # noqa: S608 - ours
        "WHERE column1 IS NOT NULL"
        for size in _SIZES
    }


_RECORDS = _inserts("ABORT INTO records(position, trajectory, seq, epoch, crc, body)", 6)
# The records are what counts: a link or a head that damage left behind is no reason to refuse them.
_LINKS = _inserts("REPLACE INTO links(position, previous)", 2)
_HEADS = _inserts("REPLACE INTO heads(trajectory, position, length)", 3)
_LOG_ENDS = """SELECT (SELECT coalesce(max(position), 0) FROM records), json_group_array(json_array(
        t.id, t.epoch, coalesce(h.position, 0), coalesce(h.length, 0)))
    FROM trajectories t LEFT JOIN heads h ON h.trajectory = t.id
    WHERE t.id IN (SELECT value FROM json_each(?))"""


class Head(Struct, array_like=True, gc=False):
    """Where a trajectory's log stands while a batch is written."""

    trajectory: int
    epoch: int
    position: int
    """Of its last record; 0 before the first."""
    length: int


class LogEnd(Struct):
    """Where everything stands while a batch is written."""

    position: int
    """The last one that is taken."""
    heads: dict[int, Head]


_heads: json.Decoder[list[Head]] = json.Decoder(list[Head])


class Append(Operation):
    """One or more entries that are written together or not at all."""

    __slots__ = ("entries",)
    brief = True

    def __init__(self, entries: list[AppendEntry], rows: int, size: int):
        # Not by `super()`: this is the hottest path that there is.
        self.rows = rows
        self.size = size
        self.result = self.error = None
        self.entries = entries

    def run(self, connection: sqlite3.Connection) -> None:
        """By itself; an `Appender` writes many at once."""
        write(connection, [self], _extended(connection, None, [self]))
        if self.error is not None:
            raise self.error


def append_of(
    lease: Lease, records: Sequence[Record], status: Status | None, settled: bool | None
) -> Append:
    """See `entry_of`: from here on the order is fixed."""
    entry = entry_of(lease, records, status, settled)
    return Append([entry], len(entry.rows), entry.size)


def append_of_all(entries: Entries, settled: bool | None) -> Append:
    """The same for several leases: none keeps a place unless all are encoded."""
    made = entries_of(entries, settled)
    rows = sum([len(entry.rows) for entry in made])
    return Append(made, rows, sum([entry.size for entry in made]))


class Appender:
    """Runs batches, and remembers between them where the logs of its connection stand.

    While only this connection writes, every batch would read what the last one wrote. SQLite counts
    the commits of all others (`data_version`); a look at that count under the write lock shows
    whether what is remembered still holds, epochs included.
    """

    def __init__(self) -> None:
        self._connection: sqlite3.Connection | None = None
        self._foreign_commits = -1
        self._log_end: LogEnd | None = None

    def run_batch(self, connection: sqlite3.Connection, batch: list[Operation]) -> None:
        """Runs operations in their order: appends in bulk, everything else one by one in between.

        Within a transaction. One that does not become durable ends its connection, and what is
        remembered ends with that.
        """
        self._look(connection)
        appends: list[Append] = []
        for operation in batch:
            if isinstance(operation, Append):
                appends.append(operation)
                continue
            self._append_all(connection, appends)
            appends = []
            self._log_end = None  # It may change whatever it likes.
            _run_alone(connection, operation)
        self._append_all(connection, appends)

    def _look(self, connection: sqlite3.Connection) -> None:
        (foreign_commits,) = connection.execute("PRAGMA data_version").fetchone()
        if connection is not self._connection or foreign_commits != self._foreign_commits:
            self._connection, self._foreign_commits, self._log_end = (
                connection,
                foreign_commits,
                None,
            )

    def _append_all(self, connection: sqlite3.Connection, appends: list[Append]) -> None:
        if not appends:
            return
        # Unless it is written to the end, it is not what stands in the journal.
        log_end, self._log_end = self._log_end, None
        log_end = _extended(connection, log_end, appends)
        write(connection, appends, log_end)
        self._log_end = log_end


def _run_alone(connection: sqlite3.Connection, operation: Operation) -> None:
    try:
        operation.result = operation.run(connection)
    except sqlite3.OperationalError:
        raise
    except Exception as error:
        operation.error = error


def _extended(
    connection: sqlite3.Connection, log_end: LogEnd | None, appends: list[Append]
) -> LogEnd:
    """With the heads of all that these append to."""
    if log_end is None or len(log_end.heads) > MAX_HEADS:
        log_end = LogEnd(-1, {})
    heads = log_end.heads
    unknown = [
        entry.lease.id
        for append in appends
        for entry in append.entries
        if entry.lease.id not in heads
    ]
    if unknown or log_end.position < 0:
        found = read_log_end(connection, unknown)
        heads |= found.heads
        log_end.position = found.position
    return log_end


def write(connection: sqlite3.Connection, appends: list[Append], log_end: LogEnd) -> None:
    """Those that are not refused."""
    rows: list[Row] = []
    marked: list[AppendEntry] = []
    for append in appends:
        append.error = _take_places(append.entries, log_end.heads)
        if append.error is None:
            for entry in append.entries:
                rows += entry.rows
                if entry.status is not None or entry.settled is not None:
                    marked.append(entry)
    insert(connection, rows, log_end)
    for entry in marked:
        _mark(connection, entry)


def read_log_end(connection: sqlite3.Connection, trajectories: list[int]) -> LogEnd:
    ids = json.encode(trajectories).decode()
    position, found = connection.execute(_LOG_ENDS, (ids,)).fetchone()
    return LogEnd(position, {head.trajectory: head for head in _heads.decode(found)})


def _take_places(entries: list[AppendEntry], heads: dict[int, Head]) -> JournalError | None:
    """Moves the heads on past `entries`, or says why they are refused and moves none."""
    if len(entries) == 1:
        entry = entries[0]
        head = heads.get(entry.lease.id)
        if head is None or head.epoch != entry.lease.epoch or head.length != entry.first:
            return refusal(entry.lease, None if head is None else head.epoch)
        head.length += len(entry.rows)
        return None
    return _take_all_places(entries, heads)


def _take_all_places(entries: list[AppendEntry], heads: dict[int, Head]) -> JournalError | None:
    for number, entry in enumerate(entries):
        error = _take_places([entry], heads)
        if error is not None:
            for taken in reversed(entries[:number]):
                heads[taken.lease.id].length = taken.first
            return error
    return None


def insert(connection: sqlite3.Connection, rows: list[Row], log_end: LogEnd) -> None:
    """Writes rows behind the last position, each linked to the one before it in its log.

    Their heads have taken their places already; here they learn the positions.
    """
    position, heads = log_end.position, log_end.heads
    records: list[object] = []
    links: list[object] = []
    touched: dict[int, Head] = {}
    for trajectory, seq, epoch, crc, body in rows:
        position += 1
        head = touched[trajectory] = heads[trajectory]
        records += (position, trajectory, seq, epoch, crc, body)
        links += (position, head.position)
        head.position = position
    moved: list[object] = []
    for trajectory, head in touched.items():
        moved += (trajectory, head.position, head.length)
    log_end.position = position
    _insert(connection, _RECORDS, records, 6)
    _insert(connection, _LINKS, links, 2)
    _insert(connection, _HEADS, moved, 3)


def _insert(
    connection: sqlite3.Connection, statements: dict[int, str], values: list[object], columns: int
) -> None:
    at, left = 0, len(values) // columns
    while left > 0:
        size = _size_for(left)
        some = values[at : at + size * columns]
        some += [None] * (size * columns - len(some))
        connection.execute(statements[size], some)
        at += size * columns
        left -= size


def _size_for(rows: int) -> int:
    """A size that `rows` nearly fill, or else one that they fill: a NULL costs as much as a row."""
    return next((size for size in _SIZES if rows <= size <= rows * 4 / 3), 0) or max(
        size for size in _SIZES if size <= rows
    )


def _mark(connection: sqlite3.Connection, entry: AppendEntry) -> None:
    if not entry.settled:
        if entry.status is not None:
            connection.execute(
                "UPDATE trajectories SET status = ? WHERE id = ?",
                (int(entry.status), entry.lease.id),
            )
        return
    (place,) = connection.execute(
        "UPDATE counters SET value = value + 1 WHERE name = 'settled' RETURNING value"
    ).fetchone()
    status = None if entry.status is None else int(entry.status)
    connection.execute(
        "UPDATE trajectories SET status = coalesce(?, status), settled = ?, owner = NULL "
        "WHERE id = ?",
        (status, place, entry.lease.id),
    )
