"""Keeps the records of the last weight updates of each replica, in their order."""

import msgspec

from holdfast.journal.sql.delivery import begin
from holdfast.journal.sql.runs import lock
from holdfast.journal.sql.store import Store
from holdfast.journal.types import Consumer
from holdfast.records.run import Run
from holdfast.records.samples.replica_weights import ReplicaWeights, WeightState

KEPT = 64
"""The number of records that are kept per replica. A replica gets fewer updates during one
reply."""


def note_weights(
    store: Store, run: Run, record: ReplicaWeights, *, consumer: Consumer | None = None
) -> bool:
    """Writes the next record of a replica, or replaces the replica's last record. Returns False
    without writing if another process has noted a record in the meantime. If a `consumer` is given
    and has lost its lease, raises `LeaseLost`."""
    if consumer is None:
        lock(store, run)
    else:
        begin(store, consumer, "UPDATE")
    row = store.row(
        "SELECT coalesce(max(number), 0) FROM replicas WHERE run = :run AND replica = :replica",
        run=run.id,
        replica=record.replica,
    )
    assert row is not None, "an aggregate has a row"
    if record.number not in (row[0], row[0] + 1):
        return False
    store.run(
        "DELETE FROM replicas WHERE run = :run AND replica = :replica "
        "AND (number = :number OR number <= :old)",
        run=run.id,
        replica=record.replica,
        number=record.number,
        old=record.number - KEPT,
    )
    body = msgspec.json.encode(record)
    columns = "run, replica, number, body"
    store.insert("replicas", columns, [(run.id, record.replica, record.number, body)])
    store.notify(run.id, "work", "ready")
    return True


def replica_weights(store: Store, run: Run) -> list[ReplicaWeights]:
    """Returns the last records of each replica, in the order of their numbers."""
    query = "SELECT replica, number, body FROM replicas WHERE run = :run ORDER BY replica, number"
    return [_record(*row) for row in store.rows(query, run=run.id)]


def _record(replica: str, number: int, body: bytes) -> ReplicaWeights:
    """Decodes a record. Returns a WANTED record instead of a damaged one, so that the replica gets
    its weights again."""
    try:
        return msgspec.json.decode(body, type=ReplicaWeights)
    except (msgspec.DecodeError, UnicodeDecodeError):
        why = "the journal's record of its weights is damaged"
        return ReplicaWeights(replica, WeightState.WANTED, why=why, number=number)
