"""Appending: fencing and insertion for a whole batch in a handful of statements.

Every statement that SQLite steps gives up the interpreter lock and has to win it back, so a batch
of 256 rows that took 512 statements would crawl while the event loop is busy. Here it takes one to
read epochs and heads, and one for each table that is written.
"""

import sqlite3
from collections.abc import Sequence

from msgspec import Struct, json

from holdfast.journal.entries import AppendEntry, Row, refusal
from holdfast.journal.sql.store import Refuse
from holdfast.records.errors import JournalError

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


class LogEnds:
    """Remembers between batches where the logs stand that a connection appends to.

    While only this connection writes, every batch would read what the last one wrote. SQLite counts
    the commits of all others (`data_version`); a look at that count under the write lock shows
    whether what is remembered still holds, epochs included.
    """

    def __init__(self, connection: sqlite3.Connection):
        self._connection = connection
        self._foreign_commits = -1
        self._log_end: LogEnd | None = None

    def look(self) -> None:
        """At the beginning of a transaction."""
        (foreign_commits,) = self._connection.execute("PRAGMA data_version").fetchone()
        if foreign_commits != self._foreign_commits:
            self._foreign_commits, self._log_end = foreign_commits, None

    def forget(self) -> None:
        self._log_end = None

    def write(self, appends: Sequence[Sequence[AppendEntry]], refuse: Refuse) -> None:
        """See `Store.append`."""
        # Unless it is written to the end, it is not what stands in the journal.
        log_end, self._log_end = self._log_end, None
        log_end = _extended(self._connection, log_end, appends)
        write(self._connection, appends, log_end, refuse=refuse)
        self._log_end = log_end


def _extended(
    connection: sqlite3.Connection,
    log_end: LogEnd | None,
    appends: Sequence[Sequence[AppendEntry]],
) -> LogEnd:
    """With the heads of all that these append to."""
    if log_end is None or len(log_end.heads) > MAX_HEADS:
        log_end = LogEnd(-1, {})
    heads = log_end.heads
    unknown = [
        entry.lease.id for entries in appends for entry in entries if entry.lease.id not in heads
    ]
    if unknown or log_end.position < 0:
        read = read_log_end(connection, unknown)
        heads |= read.heads
        log_end.position = read.position
    return log_end


def write(
    connection: sqlite3.Connection,
    appends: Sequence[Sequence[AppendEntry]],
    log_end: LogEnd,
    *,
    refuse: Refuse,
) -> None:
    """Those that are not refused."""
    rows: list[Row] = []
    statuses: list[tuple[int, int]] = []
    for number, entries in enumerate(appends):
        error = _take_places(entries, log_end.heads)
        if error is not None:
            refuse(number, error)
            continue
        for entry in entries:
            rows += entry.rows
            if entry.status is not None:
                statuses.append((int(entry.status), entry.lease.id))
    insert(connection, rows, log_end)
    if statuses:
        connection.executemany("UPDATE trajectories SET status = ? WHERE id = ?", statuses)


def read_log_end(connection: sqlite3.Connection, trajectories: list[int]) -> LogEnd:
    ids = json.encode(trajectories).decode()
    position, found = connection.execute(_LOG_ENDS, (ids,)).fetchone()
    return LogEnd(position, {head.trajectory: head for head in _heads.decode(found)})


def _take_places(entries: Sequence[AppendEntry], heads: dict[int, Head]) -> JournalError | None:
    """Moves the heads on past `entries`, or says why they are refused and moves none."""
    if len(entries) == 1:
        entry = entries[0]
        head = heads.get(entry.lease.id)
        if head is None or head.epoch != entry.lease.epoch or head.length != entry.first:
            return refusal(entry.lease, None if head is None else head.epoch)
        head.length += len(entry.rows)
        return None
    return _take_all_places(entries, heads)


def _take_all_places(entries: Sequence[AppendEntry], heads: dict[int, Head]) -> JournalError | None:
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
