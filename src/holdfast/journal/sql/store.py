"""The interface between the journal and a database is one connection inside one transaction.

The journal's SQL is written once, in the words that SQLite and PostgreSQL share, and each store
translates it to its dialect. The SQL uses these forms:

- `:run` is a named parameter.
- `= ANY(:tasks)` compares with a list.
- `EACH(:ids)` is a table of a list with the columns `each.value` and `each.number`, which counts
  from 1.
- `FOR UPDATE` or `FOR SHARE` keeps rows as they are until the transaction ends.
- `INDEXED BY` or `NOT INDEXED` tells SQLite which index to use.

Databases really differ in how records lie on the disk, so this part has its own methods here.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, Protocol

from holdfast.journal.entries import AppendEntry, Refuse
from holdfast.journal.lease_clock import Instant
from holdfast.records.errors import JournalError

Row = tuple[Any, ...]
LogRow = tuple[int, Any, Any, Any, Any]
"""Position, seq, epoch, checksum and body as they were read, even if they are damaged."""


class Store(Protocol):
    """One connection of a journal. Only one thread uses it."""

    def execute(self, statement: str, values: dict[str, object]) -> Any:
        """Runs a statement and returns the driver's cursor."""
        ...

    def row(self, statement: str, **values: object) -> Row | None:
        with closing(self.execute(statement, values)) as cursor:
            row: Row | None = cursor.fetchone()
            return row

    def rows(self, statement: str, **values: object) -> list[Row]:
        with closing(self.execute(statement, values)) as cursor:
            rows: list[Row] = cursor.fetchall()
            return rows

    def stream(self, statement: str, **values: object) -> Iterator[Row]:
        """Yields the rows of a statement, with a few in memory at a time."""
        with closing(self.execute(statement, values)) as cursor:
            yield from cursor

    def run(self, statement: str, **values: object) -> int:
        """Runs a statement and returns the number of changed rows."""
        count: int = self.execute(statement, values).rowcount
        return count

    def together(self, *statements: str, **values: object) -> list[list[Row]]:
        """Runs the statements one after the other, in one message if possible. Returns the rows of
        each statement."""
        return [self.rows(statement, **values) for statement in statements]

    def run_many(self, statement: str, values: Sequence[dict[str, object]]) -> None: ...
    def insert(
        self, table: str, columns: str, rows: Collection[Row], *, conflict: str = ""
    ) -> None:
        """Inserts rows. `conflict` is the text after `ON CONFLICT`."""
        ...

    def now(self) -> Instant: ...
    def notify(self, run: int, *what: str) -> None:
        """Wakes everyone in other processes who waits for `what` ("work" or "ready") of the run."""
        ...

    # --- records
    def append(self, appends: Sequence[Sequence[AppendEntry]], refuse: Refuse) -> None:
        """Writes the rows and statuses of the appends that are not fenced, each append whole or not
        at all. Calls `refuse` for the other appends before it writes anything."""
        ...

    def logs(self, trajectories: Sequence[int]) -> Iterator[tuple[int, Iterable[LogRow]]]:
        """Yields the rows of each log in their order. If the log's head contradicts the rows, the
        rows end with a `BadRecord` error."""
        ...

    def logs_to_check(self, trajectories: Sequence[int]) -> Iterator[tuple[int, Iterable[LogRow]]]:
        """Yields all rows that claim to belong to each log, in their order, without regard to its
        head."""
        ...

    def head_of(self, trajectory: int, positions: Sequence[int]) -> tuple[int, bool]:
        """Returns the number of records according to the log's head, and whether following the head
        leads to exactly these positions."""
        ...

    def cut_log(self, trajectory: int, seq: int, *, reason: str) -> int:
        """Sets the record with this number and all later records aside. Returns the number of these
        records."""
        ...

    def delete_records(self, run: int) -> int: ...
    def bodies(self, run: int, *, of_others: bool) -> Iterator[bytes]:
        """Yields the bodies of the run's records, or with `of_others` the bodies of the records of
        all other runs."""
        ...


def refuse_none(number: int, error: JournalError) -> None:
    """Raises the error. Pass it as `refuse` for appends whose epochs the same transaction has read:
    no such append can be refused."""
    raise error


def values_of(rows: Iterable[Row]) -> list[Any]:
    """Returns the first column of the rows."""
    return [row[0] for row in rows]
