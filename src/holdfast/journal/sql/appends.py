"""Which appends of a batch are written: each whole or not at all, and only where its log ends."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from holdfast.journal.entries import AppendEntry, Row, refusal
from holdfast.journal.sql.store import Refuse
from holdfast.records.errors import JournalError
from holdfast.records.trajectory import Status


class Head(Struct, array_like=True, gc=False):
    """The end of a trajectory's log while a batch is written."""

    trajectory: int
    epoch: int
    length: int
    position: int = 0
    """Of its last record, where records have one; 0 before the first."""


def place(
    appends: Sequence[Sequence[AppendEntry]], heads: Mapping[int, Head], refuse: Refuse
) -> tuple[list[Row], dict[int, Status | None]]:
    """Moves the heads on past all that is not refused. Returns its rows, and each trajectory that
    it touches, with its new status if it has one."""
    rows: list[Row] = []
    touched: dict[int, Status | None] = {}
    for number, entries in enumerate(appends):
        error = _take_places(entries, heads)
        if error is not None:
            refuse(number, error)
            continue
        for entry in entries:
            rows += entry.rows
            if entry.status is not None or entry.lease.id not in touched:
                touched[entry.lease.id] = entry.status
    return rows, touched


def _take_places(entries: Sequence[AppendEntry], heads: Mapping[int, Head]) -> JournalError | None:
    """Moves the heads past `entries`; or says why the entries are refused, and moves none."""
    if len(entries) == 1:
        entry = entries[0]
        head = heads.get(entry.lease.id)
        if head is None or head.epoch != entry.lease.epoch or head.length != entry.first:
            return refusal(entry.lease, None if head is None else head.epoch)
        head.length += len(entry.rows)
        return None
    for number, entry in enumerate(entries):
        error = _take_places([entry], heads)
        if error is not None:
            for taken in reversed(entries[:number]):
                heads[taken.lease.id].length = taken.first
            return error
    return None
