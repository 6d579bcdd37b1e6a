"""Rebuilds data that a journal holds twice: indexes, names of tasks, counts.

The data follows from rows that still exist, so nothing is lost. Data that cannot be rebuilt stays
as it is, and the check continues to report it.

The damage is searched before the transaction that repairs it. After SQLite has met a broken page in
a transaction, this transaction can create no more indexes.
"""

import sqlite3

from msgspec import Struct

from holdfast.journal.damage import pages, tables
from holdfast.journal.rows import MisnamedTask, task_of
from holdfast.journal.sql.runs import run_of
from holdfast.journal.sqlite.store import SqliteStore
from holdfast.records.errors import JournalCorrupt

_ALL = 1_000_000


class Damage(Struct, frozen=True):
    """The data that must be rebuilt."""

    indexes: list[str]
    """The tables whose indexes are broken."""
    names: list[tuple[str, int]]
    """Tasks whose rows have wrong names: the right name, which is in the checked text of the task,
    and the number of the row."""
    counts: bool = False
    """Whether stored counts are wrong."""
    has_whole_rows: bool = False
    """Whether no row is lost, so that tasks and samples can be numbered again."""


def is_beyond_repair(connection: sqlite3.Connection) -> bool:
    """Returns whether a repair could do more damage: a table has a wrong schema, a page belongs to
    two tables, or a page belongs to no table.

    A write to a page of two tables damages one of them. If pages of the table of records are lost,
    logs seem to end too early.
    """
    if any(pages.schema(connection)):
        return True
    lines = _wrong_pages(connection) or []
    return any("2nd reference" in line or "never used" in line for line in lines)


def _wrong_pages(connection: sqlite3.Connection) -> list[str] | None:
    """Returns SQLite's complaints about pages; None if they cannot be read."""
    try:
        lines = connection.execute(f"PRAGMA quick_check({_ALL})").fetchall()
    except sqlite3.DatabaseError:
        return None
    return [line for (line,) in lines if line != "ok"]


def damage_of(store: SqliteStore) -> Damage:
    """Returns the damage that can be repaired by rebuilding. Call it outside a transaction."""
    connection = store.connection
    if _wrong_pages(connection) is None:
        return Damage([], [])
    broken = {finding.where.removeprefix(tables.FILE) for finding in pages.indexes(connection)}
    counts = bool(broken & tables.COUNTS.keys()) or any(tables.wrong_counts(store))
    if not _has_whole_rows(store):  # In that case, only an index may still have the right values.
        return Damage([], [], counts)
    return Damage(sorted(broken & pages.INDEXED), _misnamed(connection), counts, True)


def _has_whole_rows(store: SqliteStore) -> bool:
    try:
        for row in store.rows("SELECT name, id, spec, changes, created FROM runs NOT INDEXED"):
            run_of(row)
        return tables.has_whole_rows(store)
    except (sqlite3.DatabaseError, JournalCorrupt):
        return False


def _misnamed(connection: sqlite3.Connection) -> list[tuple[str, int]]:
    names: list[tuple[str, int]] = []
    for place, *row in connection.execute(
        "SELECT rowid, ordinal, id, body, crc FROM tasks NOT INDEXED"
    ):
        try:
            task_of(*row)
        except MisnamedTask as error:
            names.append((error.task.id, place))
        except JournalCorrupt:
            continue  # Only its name is left.
    return names


def mend_tables(store: SqliteStore, damage: Damage) -> None:
    """Rebuilds the damaged data. Call it within a transaction, before logs are mended."""
    connection = store.connection
    if damage.has_whole_rows:  # Before the indexes: two rows of one number have no index.
        tables.number_samples_again(store)
    for table in damage.indexes:
        _reindex(connection, table)
    connection.executemany("UPDATE tasks SET id = ? WHERE rowid = ?", damage.names)
    if damage.has_whole_rows:
        tables.put_tasks_back(store)
    if damage.counts:
        tables.count_anew(store)


def _reindex(connection: sqlite3.Connection, table: str) -> None:
    connection.execute("SAVEPOINT reindex")
    try:
        connection.execute(f"REINDEX {table}")
    except sqlite3.IntegrityError:
        # Two rows are equal now, so one of them was changed by the damage.
        connection.execute("ROLLBACK TO reindex")
    connection.execute("RELEASE reindex")
