"""A batch of appends as arrays, for one statement.

The statement moves the heads of all trajectories of the batch, each under the condition that its
epoch and its length are what the append was made for, and writes all rows; or nothing, and says
which appends are fenced. Those fail their own callers, and the rest is sent again.
"""

from collections.abc import Sequence

from msgspec import Struct

from holdfast.journal.entries import AppendEntry, Row, refusal
from holdfast.journal.journal import Lease
from holdfast.records.errors import JournalError
from holdfast.records.trajectory import Status

APPEND = "SELECT holdfast.append($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)"


class Move(Struct):
    """How far the head of one trajectory goes in a batch."""

    lease: Lease
    first: int
    rows: int
    status: Status | None = None
    place: int | None = None
    """Among those that are settled in the batch."""


class AppendBatch:
    """Appends in their order, as one statement. Those that leave a gap are refused before."""

    def __init__(self, appends: Sequence[list[AppendEntry]]):
        self.refused: dict[int, JournalError] = {}
        """By number of the append."""
        self._moves: dict[tuple[int, int], Move] = {}
        self._rows: list[Row] = []
        self._settled = 0
        self._users: dict[tuple[int, int], list[int]] = {}
        for number, entries in enumerate(appends):
            self._add(number, entries)

    def _add(self, number: int, entries: list[AppendEntry]) -> None:
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
        if entry.settled:
            self._settled += 1
            move.place = self._settled
        self._users.setdefault(key, []).append(number)

    @property
    def is_empty(self) -> bool:
        return not self._moves

    def arguments(self) -> tuple[list[object], ...]:
        """For `APPEND`, behind the writer's name and the number of its batch."""
        moves = list(self._moves.values())
        places = {move.place for move in moves if move.place is not None}
        ranks = {place: rank for rank, place in enumerate(sorted(places), 1)}
        ids, seqs, epochs, crcs, bodies = zip(*self._rows, strict=True) if self._rows else ((),) * 5
        return (
            [move.lease.id for move in moves],
            [move.lease.epoch for move in moves],
            [move.first for move in moves],
            [move.rows for move in moves],
            [None if move.status is None else int(move.status) for move in moves],
            [None if move.place is None else ranks[move.place] for move in moves],
            list(ids),
            list(seqs),
            list(epochs),
            list(crcs),
            list(bodies),
        )

    def fence(self, detail: str) -> dict[int, JournalError]:
        """The appends that the server refused, by its detail: `number:epoch` of each move."""
        keys = list(self._moves)
        found: dict[int, JournalError] = {}
        for part in detail.split():
            number, epoch = (int(word) for word in part.split(":"))
            lease = self._moves[keys[number - 1]].lease
            for user in self._users[keys[number - 1]]:
                found.setdefault(user, refusal(lease, None if epoch < 0 else epoch))
        return found
