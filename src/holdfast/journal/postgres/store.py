"""Uses PostgreSQL as a store, with its own SQL dialect and its own layout of records."""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from holdfast.journal.entries import AppendEntry, BadRecord, Head, Refuse, place
from holdfast.journal.lease_clock import Instant
from holdfast.journal.postgres.connection import ServerConnection
from holdfast.journal.sql.store import LogRow, Row, Store
from holdfast.records.errors import JournalError, UsageError

CHANNEL = "holdfast"
INSERT_VALUES = 10_000
"""The maximum number of values that one statement inserts, because the number of parameters has a
limit."""
_TABLES = (
    "runs|streams|totals|tasks|task_groups|workers|trajectories|cuts|blobs|versions|replicas|worlds|"
    "consumers|deliveries|counters|records"
)
_TABLE = re.compile(rf"\b(FROM|JOIN|INTO|UPDATE)(\s+)({_TABLES})\b")
# PostgreSQL needs no index hints.
_HINT = re.compile(r"\s+(?:NOT INDEXED|INDEXED BY \w+)")
_EACH = re.compile(r"\bEACH\(:(\w+)\)")
_PARAMETER = re.compile(r"(?<![:\w]):(\w+)")
NOW = """extract(epoch FROM clock_timestamp())::double precision,
    extract(epoch FROM pg_postmaster_start_time())::double precision"""
"""The SQL for `PostgresStore.moment`."""
_NOTIFY = "SELECT pg_notify(%s, message) FROM unnest(%s::text[]) message; COMMIT"
_LOGS = """SELECT t.id, t.length, r.seq, r.epoch, r.crc, r.body FROM holdfast.trajectories t
    LEFT JOIN holdfast.records r ON r.trajectory = t.id
    WHERE t.id = ANY(%b::bigint[]) ORDER BY t.id, r.seq"""
_CUT = """WITH cut AS (DELETE FROM holdfast.records WHERE trajectory = %b AND seq >= %b
        RETURNING trajectory, seq, epoch, crc, body)
    INSERT INTO holdfast.cuts(trajectory, seq, epoch, crc, body, reason)
    SELECT trajectory, seq, epoch, crc, body, %b FROM cut ORDER BY seq"""
_APPEND = (
    "SELECT holdfast.append(%b::text, %b::bigint, %b::bigint[], %b::bigint[], %b::integer[], "
    "%b::integer[], %b::smallint[], %b::bigint[], %b::integer[], %b::bigint[], %b::bigint[], "
    "%b::bytea[])"
)
_OF_RUN = "trajectory {} (SELECT id FROM holdfast.trajectories WHERE run = %b)"


@lru_cache(maxsize=512)
def dialect(statement: str) -> str:
    """Returns the statement in the driver's form, with our schema before each table, so that search
    paths do not matter."""
    statement = _HINT.sub("", statement).replace("%", "%%")
    statement = _EACH.sub(
        r"unnest(:\1::bigint[]) WITH ORDINALITY AS each(value, number)", statement
    )
    statement = _TABLE.sub(r"\1\2holdfast.\3", statement)
    return _PARAMETER.sub(r"%(\1)s", statement)


class PostgresStore(Store):
    """A store on PostgreSQL (see `Store`), for one transaction."""

    def __init__(self, connection: ServerConnection):
        self.connection = connection
        self.batch: tuple[str, int] | None = None
        """The writer whose row the next append must move, and the number to which it moves the row;
        None if another statement of the transaction moves the row."""
        self.moment: Row | None = None
        """The time of the transaction, as the server gave it at the first question; None before
        that."""
        self._messages: list[str] = []

    def execute(self, statement: str, values: dict[str, object]) -> Any:
        _check(values.values())
        query = dialect(statement)
        if any(isinstance(value, bytes) for value in values.values()):
            return self.connection.send(query, values)
        return self.connection.execute(query, values)

    def stream(self, statement: str, **values: object) -> Iterator[Row]:
        if not self.connection.is_in_transaction:
            yield from self.rows(statement, **values)
            return
        with self.connection.stream(dialect(statement), values) as rows:
            yield from rows

    def together(self, *statements: str, **values: object) -> list[list[Row]]:
        _check(values.values())
        return self.connection.results(dialect("; ".join(statements)), values)

    def run_many(self, statement: str, values: Sequence[dict[str, object]]) -> None:
        if values:
            self.connection.send_many(dialect(statement), values)

    def insert(
        self, table: str, columns: str, rows: Collection[Row], *, conflict: str = ""
    ) -> None:
        width, on_conflict = columns.count(",") + 1, f" ON CONFLICT{conflict}" if conflict else ""
        places, all_rows = f"({', '.join(['%s'] * width)})", list(rows)
        some = INSERT_VALUES // width
        for at in range(0, len(all_rows), some):
            chunk = all_rows[at : at + some]
            values = [value for row in chunk for value in row]
            _check(values)
            self.connection.send(
                f"INSERT INTO holdfast.{table}({columns}) VALUES "  # noqa: S608 - ours
                f"{', '.join([places] * len(chunk))}{on_conflict}",
                values,
            )

    def now(self) -> Instant:
        if self.moment is None:
            self.moment = self.connection.execute(f"SELECT {NOW}").fetchone()
        wall, since = self.moment or (0.0, 0.0)
        return Instant("", 0.0, wall, since)

    def notify(self, run: int, *what: str) -> None:
        """Queues notifications, which other processes hear only when the transaction is
        committed."""
        self._messages += [f"{run} {each}" for each in what]

    def commit(self) -> None:
        if self._messages:
            self.connection.execute(_NOTIFY, (CHANNEL, self._messages))
        else:
            self.connection.execute("COMMIT")

    # --- records

    def append(self, appends: Sequence[Sequence[AppendEntry]], refuse: Refuse) -> None:
        """Appends with one statement.

        If all heads are where the leases expect them, the statement moves the heads and writes all
        rows. Otherwise it writes nothing and returns the heads, and this method sends the valid
        appends again.
        """
        left, ends = list(appends), _ends(appends)

        def refuse_for_good(number: int, error: JournalError) -> None:
            left[number] = ()
            refuse(number, error)

        while True:
            heads = {each: Head(each, *end) for each, end in ends.items()}
            rows, touched = place(left, heads, refuse_for_good)
            moves = [
                (each, *ends[each], heads[each].length - ends[each][1], status)
                for each, status in touched.items()
            ]
            fenced = self._send(moves, rows)
            if not fenced:
                return
            for trajectory, epoch, length in fenced:
                ends[trajectory] = (epoch, length)
                if epoch < 0:
                    del ends[trajectory]

    def _send(self, moves: list[Row], rows: Sequence[Row]) -> list[tuple[int, int, int]]:
        """Sends the append. Returns [] if it is written. Otherwise returns the trajectory, epoch
        and length of each head that differs; the epoch is -1 if the trajectory is gone."""
        if not moves and self.batch is None:
            return []
        *columns, statuses = zip(*moves, strict=True) if moves else ((),) * 5
        *numbers, bodies = zip(*rows, strict=True) if rows else ((),) * 5
        arguments = (
            *map(_array, columns),
            _array("NULL" if status is None else int(status) for status in statuses),
            *map(_array, numbers),
            list(bodies),
        )
        values = (*(self.batch or (None, None)), *arguments)
        row = self.connection.send(_APPEND, values).fetchone()
        parts = (row[0] or "").split() if row else []
        return [tuple(map(int, part.split(":"))) for part in parts]  # type: ignore[misc]

    def logs(self, trajectories: Sequence[int]) -> Iterator[tuple[int, Iterable[LogRow]]]:
        for trajectory, (length, rows) in self._logs(trajectories).items():
            yield trajectory, _whole(trajectory, length, rows)

    def logs_to_check(self, trajectories: Sequence[int]) -> Iterator[tuple[int, Iterable[LogRow]]]:
        for trajectory, (_, rows) in self._logs(trajectories).items():
            yield trajectory, rows

    def _logs(self, trajectories: Sequence[int]) -> dict[int, tuple[int | None, list[LogRow]]]:
        """Returns, for each log, its length according to its head, and its rows. One statement
        reads both, so that they are of the same moment."""
        logs: dict[int, tuple[int | None, list[LogRow]]] = {
            each: (None, []) for each in trajectories
        }
        for trajectory, length, *row in self.connection.send(_LOGS, (list(trajectories),)):
            rows = logs[trajectory][1]
            logs[trajectory] = (length, rows)
            if row[0] is not None:
                rows.append((row[0], *row))
        return logs

    def head_of(self, trajectory: int, positions: Sequence[int]) -> tuple[int, bool]:
        row = self.row("SELECT length FROM trajectories WHERE id = :id", id=trajectory)
        return (row[0] if row else 0), True

    def cut_log(self, trajectory: int, seq: int, *, reason: str) -> int:
        count = self.connection.send(_CUT, (trajectory, seq, reason)).rowcount
        self.run("UPDATE trajectories SET length = :seq WHERE id = :id", seq=seq, id=trajectory)
        return count

    def delete_records(self, run: int) -> int:
        where = _OF_RUN.format("IN")
        return self.connection.send(f"DELETE FROM holdfast.records WHERE {where}", (run,)).rowcount  # noqa: S608 - ours

    def bodies(self, run: int, *, of_others: bool) -> Iterator[bytes]:
        where = _OF_RUN.format("NOT IN" if of_others else "IN")
        query = f"SELECT body FROM holdfast.records WHERE {where}"  # noqa: S608 - ours
        with self.connection.stream(query, (run,)) as rows:
            for (body,) in rows:
                yield body


def _whole(trajectory: int, length: int | None, rows: list[LogRow]) -> Iterator[LogRow]:
    """Yields the rows. Raises `BadRecord` at the end if the head counts another number of rows."""
    yield from rows
    if length is not None and length != len(rows):
        reason = f"is where the log ends, but its head counts {length} records"
        raise BadRecord(trajectory, min(len(rows), length), len(rows), reason)


def _ends(appends: Sequence[Sequence[AppendEntry]]) -> dict[int, tuple[int, int]]:
    """Returns the epoch and length of each log according to the newest of its leases in the batch.
    Appends under older leases are stale."""
    ends: dict[int, tuple[int, int]] = {}
    for entries in appends:
        for entry in entries:
            lease = entry.lease
            if lease.id not in ends or ends[lease.id][0] < lease.epoch:
                ends[lease.id] = (lease.epoch, entry.first)
    return ends


def _array(numbers: Iterable[object]) -> str:
    """Returns numbers as the text of an array. The driver's own encoding would be slower."""
    return f"{{{','.join(map(str, numbers))}}}"


def _check(values: Iterable[object]) -> None:
    """Raises `UsageError` for text with NUL, which PostgreSQL cannot store."""
    for value in values:
        if isinstance(value, str) and "\0" in value:
            raise UsageError(
                f"the text {value!r:.100} has a NUL in it, which PostgreSQL cannot keep"
            )
