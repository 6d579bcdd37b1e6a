"""Appends records, and finds the records of one trajectory by a chain of links.

Records lie in the order of their commits, so a batch writes only to the end of the table. An index
by trajectory would be written in as many places as a batch has trajectories; when measured, this
took half of the whole cost of an append. Instead, each record has a link (`previous`) to the record
before it in its trajectory. Each trajectory's row has a head: the position of the `last` record,
and the number of records (`length`).

Within a trajectory, positions grow with the sequence, so links only lead back. Links only repeat
what the records say. If links are wrong, a reader finds the records without them, `relink` writes
the links again, and the check compares them with the records.

A log with length 0 is empty unless its trajectory was begun. If it was begun, the head may be lost,
and only a pass over all records can tell. The transaction of the first record sets the status that
says that the trajectory was begun.
"""

import sqlite3
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager

from msgspec import json

from holdfast.journal.entries import AppendEntry, BadRecord, Head, Refuse, place
from holdfast.journal.entries import Row as RecordRow
from holdfast.journal.sql.store import LogRow
from holdfast.records.trajectory import Status

_CHAIN = """WITH RECURSIVE chain(position) AS (
    SELECT last FROM trajectories WHERE id = ?1
    UNION ALL SELECT r.previous FROM chain c JOIN records r ON r.position = c.position
    WHERE r.previous < c.position) """

# Cast, because damage can turn a body into text, and text that is not UTF-8 cannot be read.
COLUMNS = "r.position, r.seq, r.epoch, r.crc, CAST(r.body AS BLOB)"
_BY_CHAIN = f"""{_CHAIN} SELECT trajectory, (SELECT length FROM trajectories WHERE id = ?1),
    {COLUMNS} FROM records r WHERE r.position IN chain ORDER BY r.position"""  # noqa: S608 - ours
# Impossible numbers come last, because at the front they would move all others. `IS NULL` would not
# work: SQLite trusts the schema that the column has no nulls.
_NO_NUMBER = "(typeof(seq) = 'null' OR seq < 0)"
_BY_SCAN = f"""SELECT {COLUMNS} FROM records r WHERE trajectory = ? AND (seq >= ? OR {_NO_NUMBER})
    ORDER BY {_NO_NUMBER}, seq, position"""  # noqa: S608 - ours
_POSITIONS = f"{_CHAIN} SELECT position FROM chain WHERE position > 0 ORDER BY position"  # noqa: S608 - ours
_FOUND = f"""SELECT position FROM records WHERE trajectory = ?
    ORDER BY {_NO_NUMBER}, seq, position"""  # noqa: S608 - ours


def head(connection: sqlite3.Connection, trajectory: int) -> tuple[int, bool]:
    """Returns the number of records of the trajectory, and whether the trajectory's status says
    that it was begun.

    The number is -1 if damage changed its type. No log has this number.
    """
    row = connection.execute(
        "SELECT length, status != 0 FROM trajectories WHERE id = ?", (trajectory,)
    ).fetchone()
    length, has_begun = row or (0, False)
    return length if isinstance(length, int) else -1, bool(has_begun)


def rows(connection: sqlite3.Connection, trajectory: int) -> Generator[LogRow, None, None]:
    """Yields the rows of a log in their order. The time grows with the length of the log; if links
    are damaged, with the number of all records.

    Raises `BadRecord` at the end if the head is lost or counts another number of records.
    """
    done, counted = 0, None
    with closing(connection.execute(_BY_CHAIN, (trajectory,))) as led:
        for owner, counted, *row in led:  # noqa: B007 - the same in every row
            if owner != trajectory or row[1] != done:
                break
            yield (row[0], row[1], row[2], row[3], row[4])
            done += 1
    has_begun = True
    if counted is None:
        counted, has_begun = head(connection, trajectory)
    if done != counted or (not counted and has_begun):
        yield from rows_without_links(connection, trajectory, done)


def rows_without_links(
    connection: sqlite3.Connection, trajectory: int, done: int = 0
) -> Generator[LogRow, None, None]:
    """Yields all rows that claim to belong to this log, from record number `done` on. Reads all
    records of the journal. Raises `BadRecord` at the end if the head counts another number."""
    with _snapshot(connection):
        position = 0
        with closing(connection.execute(_BY_SCAN, (trajectory, done))) as rest:
            for row in rest:
                yield row
                position = row[0]
                done += 1
        counted, _ = head(connection, trajectory)
        if done != counted:
            what = f"its head counts {counted} records" if counted else "its head is lost"
            reason = f"is where the log ends, but {what}"
            raise BadRecord(trajectory, done, position, reason)


@contextmanager
def _snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    """Makes all reads inside the block see the same state, even if other connections commit
    meanwhile."""
    if connection.in_transaction:
        yield
        return
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")


def positions(connection: sqlite3.Connection, trajectory: int) -> list[int]:
    """Returns the positions to which the chain leads, in the order of the log."""
    return [position for (position,) in connection.execute(_POSITIONS, (trajectory,))]


def found(connection: sqlite3.Connection, trajectory: int) -> list[int]:
    """Returns the positions of the log's records, in the order of the log. Reads all records of the
    journal."""
    return [position for (position,) in connection.execute(_FOUND, (trajectory,))]


def relink(connection: sqlite3.Connection, trajectory: int) -> bool:
    """Corrects the links and the head of a log so that they agree with its records. Returns whether
    they were wrong."""
    there = found(connection, trajectory)
    if positions(connection, trajectory) == there and head(connection, trajectory)[0] == len(there):
        return False
    connection.executemany(
        "UPDATE records SET previous = ? WHERE position = ?",
        zip([0, *there], there, strict=False),
    )
    connection.execute(
        "UPDATE trajectories SET last = ?, length = ? WHERE id = ?",
        (there[-1] if there else 0, len(there), trajectory),
    )
    return True


# --- appending
#
# Every statement that SQLite steps gives up the interpreter lock and has to win it back, so a batch
# of 256 rows that took 512 statements would crawl while the event loop is busy. Here it takes one
# to read epochs and heads, and one for each table that is written.

_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def _sized(statement: str, columns: int) -> dict[int, str]:
    """Returns, for each size of `_SIZES`, the statement with that many rows of parameters."""
    row = f"({','.join('?' * columns)})"
    return {size: statement.format(f"VALUES {','.join([row] * size)}") for size in _SIZES}


_RECORDS = _sized(
    "INSERT OR ABORT INTO records(position, trajectory, seq, epoch, crc, previous, body) "
    "SELECT * FROM ({}) WHERE column1 IS NOT NULL",
    7,
)
_HEADS = _sized(
    "UPDATE trajectories SET last = e.column2, length = e.column3, "
    "status = coalesce(e.column4, status) FROM ({}) e WHERE id = e.column1",
    4,
)
_LOG_ENDS = """SELECT (SELECT coalesce(max(position), 0) FROM records), json_group_array(json_array(
        id, epoch, coalesce(length, 0), coalesce(last, 0)))
    FROM trajectories WHERE id IN (SELECT value FROM json_each(?))"""


_heads: json.Decoder[list[Head]] = json.Decoder(list[Head])


def append(
    connection: sqlite3.Connection, appends: Sequence[Sequence[AppendEntry]], refuse: Refuse
) -> None:
    """Writes appends as `Store.append` describes."""
    ids = {entry.lease.id for entries in appends for entry in entries}
    position, heads = log_ends(connection, ids)
    rows, touched = place(appends, heads, refuse)
    _write(connection, rows, touched, heads, position)


def log_ends(
    connection: sqlite3.Connection, trajectories: Collection[int]
) -> tuple[int, dict[int, Head]]:
    """Returns the last position that is taken, and the head of each of these logs."""
    ids = json.encode(trajectories).decode()
    position, heads = connection.execute(_LOG_ENDS, (ids,)).fetchone()
    return position, {head.trajectory: head for head in _heads.decode(heads)}


def _write(
    connection: sqlite3.Connection,
    rows: list[RecordRow],
    touched: Mapping[int, Status | None],
    heads: Mapping[int, Head],
    position: int,
) -> None:
    """Writes rows after `position`, the last position that is taken. Links each row to the previous
    record of its log.

    The heads already count these rows; this function sets their positions.
    """
    records: list[object] = []
    for trajectory, seq, epoch, crc, body in rows:
        position += 1
        head = heads[trajectory]
        records += (position, trajectory, seq, epoch, crc, head.position, body)
        head.position = position
    moved: list[object] = []
    for trajectory, status in touched.items():
        head = heads[trajectory]
        moved += (trajectory, head.position, head.length, status)
    _execute(connection, _RECORDS, records, 7)
    _execute(connection, _HEADS, moved, 4)


def _execute(
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
    """Returns the size of `_SIZES` that `rows` rows fill completely or nearly. If there is none,
    returns the largest size that the rows fill completely. The rest of a statement is filled with
    rows of NULLs, each of which costs as much as any other row."""
    return next((size for size in _SIZES if rows <= size <= rows * 4 / 3), 0) or max(
        size for size in _SIZES if size <= rows
    )
