"""Uses SQLite as a store, with its own SQL dialect and its own layout of records."""

import re
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from functools import lru_cache

from msgspec import json

from holdfast.journal.entries import AppendEntry, Refuse
from holdfast.journal.lease_clock import Instant
from holdfast.journal.sql import logs
from holdfast.journal.sql.store import LogRow, Row, Store
from holdfast.journal.sqlite import chain
from holdfast.journal.types import Cut

_LIST = re.compile(r"= ANY\(:(\w+)\)")
_EACH = re.compile(r"\bEACH\(:(\w+)\)")
# SQLite has one writer at a time, which has locked everything, so row locks are dropped.
_LOCK = re.compile(r"\s+FOR (?:UPDATE|SHARE)(?: SKIP LOCKED)?\s*$")
# The positions of the run's records, found by their links.
_LINKED = """INSERT INTO temp.doomed
    WITH RECURSIVE log(position, trajectory) AS (
        SELECT last, id FROM trajectories WHERE run = :run
        UNION ALL SELECT r.previous, c.trajectory FROM log c
            JOIN records r ON r.position = c.position
            WHERE r.previous < c.position AND r.previous > 0)
    SELECT r.position FROM log c JOIN records r ON r.position = c.position
        AND r.trajectory = c.trajectory"""
# Compares with the lengths, to find out whether the links lead to all records.
_COUNTED = """SELECT coalesce(sum(length), 0), sum(status != 0 AND length = 0) FROM trajectories
    WHERE run = :run"""
_SCANNED = """INSERT OR IGNORE INTO temp.doomed SELECT position FROM records
    WHERE trajectory IN (SELECT id FROM trajectories WHERE run = :run)"""
_BODIES = "SELECT CAST(body AS BLOB) FROM records WHERE position {} (SELECT position FROM doomed)"


_SORTED = (
    """CREATE TEMP TABLE sorted AS SELECT trajectory, position,
        CASE WHEN seq >= 0 THEN seq ELSE 'none' END seq FROM records ORDER BY 1, 3, 2""",
    """CREATE INDEX temp.sorted_log ON sorted(trajectory, seq, position)""",
)
_LOG = f"""SELECT {chain.COLUMNS} FROM sorted f CROSS JOIN records r ON r.position = f.position
    WHERE f.trajectory = ? ORDER BY f.seq, f.position"""  # noqa: S608 - ours


@lru_cache(maxsize=512)
def dialect(statement: str) -> tuple[str, tuple[str, ...]]:
    """Returns the statement in SQLite's dialect, and the names of its list parameters."""
    lists = tuple(set(_LIST.findall(statement) + _EACH.findall(statement)))
    # One parameter for any length of the list, because the number of parameters is limited.
    statement = _LIST.sub(r"IN (SELECT value FROM json_each(:\1))", statement)
    statement = _EACH.sub(r"(SELECT value, key + 1 AS number FROM json_each(:\1)) each", statement)
    return _LOCK.sub("", statement), lists


def _text(raw: bytes) -> str:
    """Decodes text without raising an error. Keeps damaged bytes as surrogate characters; the
    caller has to check the text."""
    return raw.decode(errors="surrogateescape")


class SqliteStore(Store):
    """A store on SQLite (see `Store`)."""

    def __init__(self, connection: sqlite3.Connection, clock: Callable[[], Instant]):
        connection.text_factory = _text
        self.connection = connection
        self._clock = clock

    def execute(self, statement: str, values: dict[str, object]) -> sqlite3.Cursor:
        sql, lists = dialect(statement)
        for name in lists:
            values[name] = json.encode(values[name]).decode()
        return self.connection.execute(sql, values)

    def now(self) -> Instant:
        return self._clock()

    def run_many(self, statement: str, values: Sequence[dict[str, object]]) -> None:
        self.connection.executemany(dialect(statement)[0], values)

    def insert(
        self, table: str, columns: str, rows: Collection[Row], *, conflict: str = ""
    ) -> None:
        places = ", ".join("?" * (columns.count(",") + 1))
        on_conflict = f" ON CONFLICT{conflict}" if conflict else ""
        self.connection.executemany(
            f"INSERT INTO {table}({columns}) VALUES ({places}){on_conflict}",  # noqa: S608 - ours
            rows,
        )

    def notify(self, run: int, *what: str) -> None:
        """Does nothing, because SQLite cannot wake other processes. They look again after a
        while."""

    # --- records

    def append(self, appends: Sequence[Sequence[AppendEntry]], refuse: Refuse) -> None:
        chain.append(self.connection, appends, refuse)

    def logs(self, trajectories: Sequence[int]) -> Iterator[tuple[int, Iterable[LogRow]]]:
        for trajectory in trajectories:
            with closing(chain.rows(self.connection, trajectory)) as rows:
                yield trajectory, rows

    def index_records(self) -> None:
        """Indexes the records for `logs_to_check`. Call it before other reads, because SQLite
        creates no more tables after it has met an error in any table."""
        for statement in _SORTED:
            self.connection.execute(statement)

    def logs_to_check(self, trajectories: Sequence[int]) -> Iterator[tuple[int, Iterable[LogRow]]]:
        """Yields the rows of each log. If `index_records` was called, finds the rows without the
        links, so that the links can be compared with the rows. Otherwise follows the links."""
        is_indexed = self.row("SELECT 1 FROM sqlite_temp_schema WHERE name = 'sorted'")
        for trajectory in trajectories:
            rows = (
                self.connection.execute(_LOG, (trajectory,))
                if is_indexed
                else chain.rows(self.connection, trajectory)
            )
            with closing(rows):
                yield trajectory, rows

    def head_of(self, trajectory: int, positions: Sequence[int]) -> tuple[int, bool]:
        linked = chain.positions(self.connection, trajectory)
        return chain.head(self.connection, trajectory)[0], linked == list(positions)

    def cut_log(self, trajectory: int, seq: int, *, reason: str) -> int:
        cut = chain.found(self.connection, trajectory)[seq:]
        self.connection.executemany(
            # Damage can also turn a column into a null.
            "INSERT INTO cuts(trajectory, seq, epoch, crc, body, reason) "
            "SELECT trajectory, coalesce(seq, -1), coalesce(epoch, -1), coalesce(crc, -1), "
            "coalesce(body, x''), ? FROM records WHERE position = ?",
            [(reason, position) for position in cut],
        )
        self.connection.executemany(
            "DELETE FROM records WHERE position = ?", [(position,) for position in cut]
        )
        chain.relink(self.connection, trajectory)
        return len(cut)

    def mend_log(self, trajectory: int, *, name: str) -> Cut | None:
        """Cuts the log if it is torn. Otherwise corrects its links and its status if they are
        wrong.

        First corrects a head that is lost or counts too few records, so that the records that the
        head does not count are kept. Reads without links, so call it for many logs only after
        `index_records`.
        """
        positions = chain.found(self.connection, trajectory)
        if chain.head(self.connection, trajectory)[0] < len(positions):
            chain.relink(self.connection, trajectory)
        rows = chain.rows_without_links(self.connection, trajectory)
        cut = logs.mend(self, trajectory, rows, name=name)
        if cut is None:
            chain.relink(self.connection, trajectory)
        return cut

    def delete_records(self, run: int) -> int:
        count = self._doom(run)
        self.connection.execute(
            "DELETE FROM records WHERE position IN (SELECT position FROM doomed)"
        )
        self.connection.execute("DROP TABLE temp.doomed")
        return count

    def bodies(self, run: int, *, of_others: bool) -> Iterator[bytes]:
        self._doom(run)
        with closing(
            self.connection.execute(_BODIES.format("NOT IN" if of_others else "IN"))
        ) as rows:
            for (body,) in rows:
                yield body

    def _doom(self, run: int) -> int:
        """Collects the positions of the run's records in a temporary table, and returns their
        number. The time grows with the run; if links are damaged, with the number of all
        records."""
        execute = self.connection.execute
        execute("DROP TABLE IF EXISTS temp.doomed")
        execute("CREATE TEMP TABLE doomed(position INTEGER PRIMARY KEY)")
        count = execute(_LINKED, {"run": run}).rowcount
        counted, looks_empty = execute(_COUNTED, {"run": run}).fetchone()
        if counted != count or looks_empty:
            count += execute(_SCANNED, {"run": run}).rowcount
        return count
