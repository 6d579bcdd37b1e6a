"""What the journal asks of a database: one connection, inside one transaction.

The journal's SQL is written once, in the words that SQLite and PostgreSQL share, with named
parameters (`:run`), `= ANY(:tasks)` for lists, `EACH(:ids)` for a table of a list (`each.value` and
`each.number`, from 1), `FOR UPDATE` or `FOR SHARE` where rows must stay as
they are until the transaction ends, and `INDEXED BY` or `NOT INDEXED` where SQLite has to be told
which way to go. Each store turns that into its own dialect. What really
differs between databases, which is how records lie on the disk, is a method here.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Protocol

from holdfast.journal.entries import AppendEntry, Refuse
from holdfast.journal.lease_clock import Instant
from holdfast.records.errors import JournalError

Row = tuple[Any, ...]
LogRow = tuple[int, Any, Any, Any, Any]
"""Position, seq, epoch, checksum, body: as they were read, whatever damage made of them."""


class Store(Protocol):
    """One connection of a journal, used by one thread."""

    def row(self, statement: str, **values: object) -> Row | None: ...
    def rows(self, statement: str, **values: object) -> list[Row]: ...
    def stream(self, statement: str, **values: object) -> Iterator[Row]:
        """The same, a few in memory at a time."""
        ...

    def run(self, statement: str, **values: object) -> int:
        """How many rows it changed."""
        ...

    def together(self, *statements: str, **values: object) -> list[list[Row]]:
        """Runs them one after the other, in one message; the rows of each."""
        ...

    def run_many(self, statement: str, values: Sequence[dict[str, object]]) -> None: ...
    def insert(
        self, table: str, columns: str, rows: Collection[Row], *, conflict: str = ""
    ) -> None:
        """`conflict`: what follows `ON CONFLICT`."""
        ...

    def now(self) -> Instant: ...
    def notify(self, run: int, *what: str) -> None:
        """Wakes whoever waits for `what` ("work" or "ready") of the run in another process."""
        ...

    # --- records
    def append(self, appends: Sequence[Sequence[AppendEntry]], refuse: Refuse) -> None:
        """Writes rows and statuses of those appends that are not fenced, each whole or not at all.
        `refuse` is told of the others before anything is written."""
        ...

    def logs(self, trajectories: Sequence[int]) -> Iterator[tuple[int, Iterable[LogRow]]]:
        """The rows of each log in their order. A log whose head does not fit to it ends in a
        `BadRecord`."""
        ...

    def logs_to_check(self, trajectories: Sequence[int]) -> Iterator[tuple[int, Iterable[LogRow]]]:
        """All rows that claim to belong to each log, in their order, whatever its head says."""
        ...

    def head_of(self, trajectory: int, positions: Sequence[int]) -> tuple[int, bool]:
        """How many records the log's head counts, and whether it leads to these."""
        ...

    def cut_log(self, trajectory: int, seq: int, *, reason: str) -> int:
        """Sets the record with that number and all after it aside; how many there were."""
        ...

    def delete_records(self, run: int) -> int: ...
    def bodies(self, run: int, *, of_others: bool) -> Iterator[bytes]:
        """The records of the run, or those of all others."""
        ...


def refuse_none(number: int, error: JournalError) -> None:
    """For appends under epochs that the same transaction has read."""
    raise error


def values_of(rows: Iterable[Row], at: int = 0) -> list[Any]:
    """One column."""
    return [row[at] for row in rows]
