"""Makes anew what a journal holds twice: indexes, names of tasks, heads and links.

Each follows from rows that are still there, so nothing is lost. What cannot be made anew stays
as it is, and the check goes on naming it.

What is broken is looked for before the transaction that mends it: after SQLite has come upon a
broken page, a transaction makes no more indexes.
"""

import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby
from operator import itemgetter

from msgspec import Struct

from holdfast.journal.damage import tables
from holdfast.journal.rows import MisnamedTask, places_of_moved, task_of
from holdfast.journal.sqlite.runs import TASK
from holdfast.records.errors import JournalCorrupt

_ALL = 1_000_000


class Damage(Struct, frozen=True):
    """What has to be made anew."""

    links: bool
    heads: list[tuple[int, int, int]] | None
    """Those that can be read, if the table is broken: they count, and where records are lost, that
    is how it shows."""
    indexes: list[str]
    """The tables that they are of."""
    names: list[tuple[str, int]]
    """Of tasks, as their own texts have them, which a checksum covers; and their rows."""
    counts: bool = False
    """What is kept as a count of other rows."""
    places: Sequence[tuple[int, int, int]] = ()
    """Right place, run and place of tasks that are at each other's."""


def is_beyond_repair(connection: sqlite3.Connection) -> bool:
    """Whether a table is another than it was, or lies in other pages than its own.

    What is written to a page of two tables is lost to one; what lies in a page of none is no log
    that ends there.
    """
    if any(tables.schema(connection)):
        return True
    lines = _wrong_pages(connection) or []
    return any("2nd reference" in line or "never used" in line for line in lines)


def _wrong_pages(connection: sqlite3.Connection) -> list[str] | None:
    """None where that cannot be known."""
    try:
        lines = connection.execute(f"PRAGMA quick_check({_ALL})").fetchall()
    except sqlite3.DatabaseError:
        return None
    return [line for (line,) in lines if line != "ok"]


def damage_of(connection: sqlite3.Connection) -> Damage:
    """Outside of a transaction: heads that count too few, as others write, are made anew."""
    if _wrong_pages(connection) is None:
        return Damage(False, None, [], [])
    found = tables.indexes(connection)
    broken = {finding.where.removeprefix(tables.FILE) for finding in found}
    heads = _readable_heads(connection) if "heads" in broken else None
    links = "links" in broken
    counts = bool(broken & tables.COUNTED.keys()) or any(tables.counts(connection))
    if not _has_whole_rows(connection):  # Then an index may be all that knows better.
        return Damage(links, heads, [], [], counts)
    indexes = sorted(broken & tables.INDEXED)
    return Damage(links, heads, indexes, _misnamed(connection), counts, _moved(connection))


def _has_whole_rows(connection: sqlite3.Connection) -> bool:
    try:
        return not any((*tables.numbers(connection), *tables.runs(connection)))
    except sqlite3.DatabaseError:
        return False


def _readable_heads(connection: sqlite3.Connection) -> list[tuple[int, int, int]]:
    heads: list[tuple[int, int, int]] = []
    with suppress(sqlite3.DatabaseError):  # What comes after it is made from the records.
        rows = connection.execute("SELECT trajectory, position, length FROM heads")
        heads.extend(row for row in rows if all(isinstance(value, int) for value in row))
    return heads


def _misnamed(connection: sqlite3.Connection) -> list[tuple[str, int]]:
    names: list[tuple[str, int]] = []
    for place, *row in connection.execute(
        f"SELECT k.rowid, {TASK} FROM tasks k NOT INDEXED"  # noqa: S608 - TASK is ours
    ):
        try:
            task_of(*row)
        except MisnamedTask as error:
            names.append((error.task.id, place))
        except JournalCorrupt:
            continue  # Its name is all that is left of it.
    return names


def _moved(connection: sqlite3.Connection) -> list[tuple[int, int, int]]:
    rows = connection.execute(
        "SELECT run, ordinal, CAST(body AS BLOB), crc FROM tasks NOT INDEXED ORDER BY run"
    ).fetchall()
    return [
        (right, run, place)
        for run, tasks in groupby(rows, key=itemgetter(0))
        for place, right in places_of_moved(task[1:] for task in tasks).items()
    ]


def mend_tables(connection: sqlite3.Connection, damage: Damage) -> None:
    """Within a transaction; logs are mended after it, by what it leaves of heads and links."""
    # Without a condition: SQLite gives the pages back, and looks for no row by its damaged key.
    if damage.links:
        connection.execute("DELETE FROM links")
    if damage.heads is not None:
        connection.execute("DELETE FROM heads")
        connection.executemany("INSERT OR REPLACE INTO heads VALUES (?, ?, ?)", damage.heads)
    stray = connection.execute(tables.STRAY_HEADS).fetchall()
    connection.executemany("DELETE FROM heads WHERE trajectory = ?", stray)
    for table in damage.indexes:
        _reindex(connection, table)
    connection.executemany("UPDATE tasks SET id = ? WHERE rowid = ?", damage.names)
    # By way of places that nobody has.
    connection.executemany(
        "UPDATE tasks SET ordinal = -1 - ? WHERE run = ? AND ordinal = ?", damage.places
    )
    connection.execute("UPDATE tasks SET ordinal = -1 - ordinal WHERE ordinal < 0")
    if damage.counts:
        _count_anew(connection)


def _reindex(connection: sqlite3.Connection, table: str) -> None:
    connection.execute("SAVEPOINT reindex")
    try:
        connection.execute(f"REINDEX {table}")
    except sqlite3.IntegrityError:  # Two rows are the same now: one of them is not what it was.
        connection.execute("ROLLBACK TO reindex")
    connection.execute("RELEASE reindex")


def _count_anew(connection: sqlite3.Connection) -> None:
    for table, select in tables.COUNTED.items():
        connection.execute(f"DELETE FROM {table}")  # noqa: S608 - ours
        connection.execute(f"INSERT INTO {table} {select}")
