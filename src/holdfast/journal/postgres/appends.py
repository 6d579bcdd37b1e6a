"""A batch of appends as arrays, for one statement.

The statement moves the heads of all trajectories of the batch and writes all rows, if the epoch and
the length of each are what the append was made for; or it writes nothing, and says which appends
are fenced. Those fail their own callers, and the rest is sent again.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from holdfast.journal.entries import AppendEntry, Row, refusal
from holdfast.journal.journal import Lease
from holdfast.records.errors import JournalError
from holdfast.records.trajectory import Status

APPEND = (
    "SELECT holdfast.append(%b::text, %b::bigint, %b::bigint[], %b::bigint[], %b::integer[], "
    "%b::integer[], %b::smallint[], %b::bigint[], %b::integer[], %b::bigint[], %b::bigint[], "
    "%b::bytea[])"
)


class Move(Struct):
    """How far the head of one trajectory goes in a batch."""

    lease: Lease
    first: int
    rows: int
    status: Status | None = None


class AppendBatch:
    """Appends in their order, as one statement. Those that leave a gap are refused before."""

    def __init__(self, appends: Sequence[Sequence[AppendEntry]]):
        self.refused: dict[int, JournalError] = {}
        """By number of the append."""
        self._moves: dict[tuple[int, int], Move] = {}
        self._rows: list[Row] = []
        self._users: dict[tuple[int, int], list[int]] = {}
        for number, entries in enumerate(appends):
            self._add(number, entries)

    def _add(self, number: int, entries: Sequence[AppendEntry]) -> None:
        at: dict[tuple[int, int], int] = {}
        for entry in entries:
            key = (entry.lease.id, entry.lease.epoch)
            move = self._moves.get(key)
            expected = at.get(key, move.first + move.rows if move is not None else entry.first)
            if entry.first != expected:
                self.refused[number] = refusal(entry.lease, entry.lease.epoch)
                return
            at[key] = expected + len(entry.rows)
        for entry in entries:
            self._take(number, entry)

    def _take(self, number: int, entry: AppendEntry) -> None:
        key = (entry.lease.id, entry.lease.epoch)
        move = self._moves.get(key)
        if move is None:
            move = self._moves[key] = Move(entry.lease, entry.first, 0)
        move.rows += len(entry.rows)
        self._rows += entry.rows
        if entry.status is not None:
            move.status = entry.status
        self._users.setdefault(key, []).append(number)

    @property
    def is_empty(self) -> bool:
        return not self._moves

    def arguments(self) -> tuple[str | list[bytes], ...]:
        """For `APPEND`, behind the writer's name and the number of its batch."""
        moves = list(self._moves.values())
        ids, seqs, epochs, crcs, bodies = zip(*self._rows, strict=True) if self._rows else ((),) * 5
        return (
            _array([move.lease.id for move in moves]),
            _array([move.lease.epoch for move in moves]),
            _array([move.first for move in moves]),
            _array([move.rows for move in moves]),
            _array(["NULL" if move.status is None else int(move.status) for move in moves]),
            _array(ids),
            _array(seqs),
            _array(epochs),
            _array(crcs),
            list(bodies),
        )

    def fence(self, fenced: str) -> dict[int, JournalError]:
        """The appends that the server refused: `number:epoch` of each move."""
        keys = list(self._moves)
        refused: dict[int, JournalError] = {}
        for part in fenced.split():
            number, epoch = (int(word) for word in part.split(":"))
            lease = self._moves[keys[number - 1]].lease
            for user in self._users[keys[number - 1]]:
                refused.setdefault(user, refusal(lease, None if epoch < 0 else epoch))
        return refused


def _array(numbers: Iterable[int | str]) -> str:
    """As the server reads it: the driver would take longer for its own way to write it."""
    return f"{{{','.join(map(str, numbers))}}}"
