"""Checks the schema, pages and indexes of a SQLite file, and the types of its columns."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing

from holdfast.journal.damage.report import Finding, Report
from holdfast.journal.damage.tables import COUNTS, FILE, ROWS
from holdfast.journal.sql.store import Store
from holdfast.journal.sqlite.schema import SALVAGE, VERSION, prepare
from holdfast.journal.sqlite.store import SqliteStore

_SCHEMA = "SELECT name, CAST(sql AS BLOB) FROM sqlite_schema"
INDEXED = frozenset({"batches", "blobs", "counters", "runs", "tasks", "trajectories"})
"""Tables whose indexes can be rebuilt, because another check finds their damaged rows. The table of
deliveries is not listed: if its index and a row differ, the index may be right and the row
damaged."""
_TYPED = ("consumers", "deliveries", "task_groups", "tasks", "totals", "trajectories", "versions")


def _schema(store: Store, report: Report) -> None:
    report.findings += schema(_connection(store))


def _indexes(store: Store, report: Report) -> None:
    report.findings += indexes(_connection(store), report.anew, report.salvage)


def _pages(store: Store, report: Report) -> None:
    """Checks the pages of all tables. Leaves out what the check of indexes has already reported."""
    known = {"ok", *(finding.what for finding in report.findings)}
    for (line,) in _connection(store).execute("PRAGMA quick_check"):
        if line not in known:
            report.add("file", line, SALVAGE)


def _connection(store: Store) -> sqlite3.Connection:
    assert isinstance(store, SqliteStore), "only a file has pages"
    return store.connection


def schema(connection: sqlite3.Connection) -> Iterator[Finding]:
    """Yields a finding for each table or index that differs from a new journal's."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != VERSION:
        return
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as new:
        prepare(new, ":memory:")
        expected = new.execute(_SCHEMA).fetchall()
    there = set(connection.execute(_SCHEMA).fetchall())
    for name, _ in (each for each in expected if each not in there):
        yield Finding(f"{FILE}schema", f"{name} is not what it was made as", SALVAGE)


def indexes(connection: sqlite3.Connection, anew: str = "", salvage: str = "") -> Iterator[Finding]:
    """Yields a finding for each broken index. Checks the indexes of one table at a time, so that an
    unreadable index does not hide damage in other tables. The large table of records has no index
    and is not read here."""
    tables = connection.execute(
        "SELECT DISTINCT tbl_name FROM sqlite_schema WHERE type = 'index' "
        "OR tbl_name IN ('task_groups', 'totals') ORDER BY 1"
    ).fetchall()
    for (table,) in tables:
        remedy = anew if table in INDEXED | COUNTS.keys() else salvage
        try:
            for (line,) in connection.execute(f"PRAGMA integrity_check('{table}')"):
                if line != "ok":
                    yield Finding(f"{FILE}{table}", line, remedy)
        except sqlite3.Error as error:
            yield Finding(f"{FILE}{table}", f"its indexes cannot be read: {error}", remedy)


def _types(store: Store, report: Report) -> None:
    """Checks that columns of numbers contain numbers. A damaged page can turn a number into text,
    which SQLite sorts after every number."""
    connection = _connection(store)
    for table in _TYPED:
        for _, column, kind, *_ in connection.execute(f"PRAGMA table_info({table})").fetchall():
            if "int" not in kind:
                continue
            (wrong,) = connection.execute(
                f"SELECT count(*) FROM {table} NOT INDEXED "  # noqa: S608 - ours
                f"WHERE typeof({column}) NOT IN ('integer', 'null')"
            ).fetchone()
            if wrong:
                what = f"its column {column} has {wrong} values that are not numbers"
                report.add(f"{FILE}{table}", what, report.anew if table in COUNTS else ROWS)


PARTS = (_schema, _indexes, _pages, _types)
"""The checks that run before the checks of tables."""
