"""The chain: how the records of one trajectory are found among everybody's.

Records lie in the order of their commits, so a batch only writes the end of the table. An index by
trajectory would be written in as many places as a batch has trajectories, and measured half of
the whole cost of an append. Instead, each record has a link to the one before it in its
trajectory, and each trajectory has a head: the place of its last record, and how many there are.

Within a trajectory positions grow with the sequence, so links only lead back. They say nothing that
the records do not say themselves: a reader that they lead astray finds the records without them,
`relink` makes them anew, and the check holds them against the records.

A log without a head is empty, unless its trajectory was begun: then the head may be lost, and only
a pass over all records finds it. Beginning sets the status, in the transaction of the first record.
"""

import sqlite3
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager

from msgspec import json

from holdfast.journal.entries import BadRecord

Row = tuple[int, int, int, int, bytes]
"""Position, seq, epoch, checksum, body: as they were read, whatever damage made of them."""

_CHAIN = """WITH RECURSIVE chain(position) AS (
    SELECT position FROM heads WHERE trajectory = ?1
    UNION ALL SELECT l.previous FROM chain c JOIN links l ON l.position = c.position
    WHERE l.previous < c.position) """

# The cast: damage can turn a body into text, and text that is no UTF-8 could not even be read.
COLUMNS = "r.position, r.seq, r.epoch, r.crc, CAST(r.body AS BLOB)"
_BY_CHAIN = f"""{_CHAIN} SELECT trajectory, (SELECT length FROM heads WHERE trajectory = ?1),
    {COLUMNS} FROM records r WHERE r.position IN chain ORDER BY r.position"""  # noqa: S608 - ours
# Numbers that no log has come last: before the others, they would move all of them. Not `IS NULL`:
# SQLite takes the schema's word for it that none is.
_NO_NUMBER = "(typeof(seq) = 'null' OR seq < 0)"
_BY_SCAN = f"""SELECT {COLUMNS} FROM records r WHERE trajectory = ? AND (seq >= ? OR {_NO_NUMBER})
    ORDER BY {_NO_NUMBER}, seq, position"""  # noqa: S608 - ours
_POSITIONS = f"{_CHAIN} SELECT position FROM chain WHERE position > 0 ORDER BY position"  # noqa: S608 - ours
_FOUND = f"""SELECT position FROM records WHERE trajectory = ?
    ORDER BY {_NO_NUMBER}, seq, position"""  # noqa: S608 - ours
_COUNTED = """SELECT trajectory, count(*) FROM records
    WHERE trajectory IN (SELECT value FROM json_each(?)) GROUP BY trajectory"""


def length(connection: sqlite3.Connection, trajectory: int) -> int:
    """How many records the trajectory has, by its head; so the next one is number `length`.

    0 without a head, and -1, which no log has, where damage made something else of the number.
    """
    row = connection.execute(
        "SELECT length FROM heads WHERE trajectory = ?", (trajectory,)
    ).fetchone()
    if row is None:
        return 0
    return row[0] if isinstance(row[0], int) else -1


def lengths_without_heads(
    connection: sqlite3.Connection, trajectories: Sequence[int]
) -> dict[int, int]:
    """How many records those have that have any: one pass over all records, if any are asked."""
    if not trajectories:
        return {}
    ids = json.encode(trajectories).decode()
    return dict(connection.execute(_COUNTED, (ids,)).fetchall())


def rows(connection: sqlite3.Connection, trajectory: int) -> Generator[Row, None, None]:
    """The rows of a log in their order. Takes time in proportion to it, unless links are damaged.

    A head that is lost, counts records that are not there, or too few, ends in a `BadRecord`.
    """
    done, counted = 0, None
    with closing(connection.execute(_BY_CHAIN, (trajectory,))) as led:
        for owner, counted, *row in led:  # noqa: B007 - the same in every row
            if owner != trajectory or row[1] != done:
                break
            yield (row[0], row[1], row[2], row[3], row[4])
            done += 1
    if counted is None:
        counted = length(connection, trajectory)
    if done != counted or (not counted and _has_started(connection, trajectory)):
        yield from rows_without_links(connection, trajectory, done)


def _has_started(connection: sqlite3.Connection, trajectory: int) -> bool:
    """Whether something was recorded of it, as its own row has it."""
    row = connection.execute(
        "SELECT status != 0 FROM trajectories WHERE id = ?", (trajectory,)
    ).fetchone()
    return row is not None and bool(row[0])


def rows_without_links(
    connection: sqlite3.Connection, trajectory: int, done: int = 0
) -> Generator[Row, None, None]:
    """All that claim to be of this log, from number `done` on: a pass over all records."""
    with _snapshot(connection):
        position = 0
        with closing(connection.execute(_BY_SCAN, (trajectory, done))) as rest:
            for row in rest:
                yield row
                position = row[0]
                done += 1
        counted = length(connection, trajectory)
        if done != counted:
            what = f"its head counts {counted} records" if counted else "its head is lost"
            reason = f"is where the log ends, but {what}"
            raise BadRecord(trajectory, done, position, reason)


@contextmanager
def _snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    """Several reads of one state, whatever others commit meanwhile."""
    if connection.in_transaction:
        yield
        return
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")


def positions(connection: sqlite3.Connection, trajectory: int) -> list[int]:
    """Where the chain leads, in the order of the log."""
    return [position for (position,) in connection.execute(_POSITIONS, (trajectory,))]


def found(connection: sqlite3.Connection, trajectory: int) -> list[int]:
    """Where the records of the log are, in its order: a pass over all records."""
    return [position for (position,) in connection.execute(_FOUND, (trajectory,))]


def relink(connection: sqlite3.Connection, trajectory: int) -> bool:
    """Makes links and head say what the records say; whether they did not."""
    there = found(connection, trajectory)
    if positions(connection, trajectory) == there and length(connection, trajectory) == len(there):
        return False
    connection.executemany(
        "INSERT OR REPLACE INTO links(position, previous) VALUES (?, ?)",
        zip(there, [0, *there], strict=False),
    )
    connection.execute("DELETE FROM heads WHERE trajectory = ?", (trajectory,))
    if there:
        connection.execute(
            "INSERT INTO heads(trajectory, position, length) VALUES (?, ?, ?)",
            (trajectory, there[-1], len(there)),
        )
    return True
