"""The ledger of worlds. The owner of a trajectory writes its rows, and everybody reads them.

Each change checks the trajectory's epoch in its own transaction, so a fenced worker changes
nothing. Without a lease, a row changes only while no living worker holds its trajectory.
"""

import secrets
import time

import msgspec

from holdfast.journal.entries import lost
from holdfast.journal.sql.deletion import holders
from holdfast.journal.sql.store import Store
from holdfast.journal.types import Lease
from holdfast.journal.worlds import WorldIntent, WorldPhase, WorldRow
from holdfast.records.run import Run

_COLUMNS = """w.intent, w.trajectory, w.epoch, w.state, w.handle, w.created, w.ended,
    w.cpu_seconds, t.owner, t.settled, t.id"""
_ROWS = f"""SELECT {_COLUMNS} FROM worlds w LEFT JOIN trajectories t ON t.id = w.trajectory
    WHERE (:run = 0 OR w.run = :run) AND (:trajectory = 0 OR w.trajectory = :trajectory)
    AND w.state <= :most ORDER BY w.id"""  # noqa: S608 - ours


def plan_world(store: Store, lease: Lease, intent: WorldIntent) -> None:
    """Writes that a world or snapshot is about to be made. Raises `LeaseLost` if the lease is
    stale."""
    run = _fence(store, lease)
    columns = "run, trajectory, epoch, name, intent, state, handle, created, cpu_seconds"
    body = msgspec.msgpack.encode(intent)
    row = (run, lease.id, lease.epoch, intent.name, body, WorldPhase.WANTED, "", time.time(), 0.0)
    store.insert("worlds", columns, [row])


def change_world(
    store: Store,
    name: str,
    state: WorldPhase,
    *,
    lease: Lease | None = None,
    handle: str = "",
    cpu_seconds: float = 0.0,
) -> bool:
    """Writes a new state. Returns False without writing if there is no such row, if the row has a
    later state, or if there is no `lease` and a living worker holds the trajectory. Raises
    `LeaseLost` if the lease is stale."""
    if lease is not None:
        _fence(store, lease)
    row = store.row(
        "SELECT t.owner, t.settled FROM worlds w LEFT JOIN trajectories t ON t.id = w.trajectory "
        "WHERE w.name = :name",
        name=name,
    )
    if row is None or (lease is None and _is_held(_living(store), *row)):
        return False
    changed = store.run(
        """UPDATE worlds SET state = :state, handle = CASE WHEN :handle = '' THEN handle
            ELSE :handle END, cpu_seconds = CASE WHEN cpu_seconds < :cpu THEN :cpu
            ELSE cpu_seconds END, epoch = CASE WHEN :epoch = 0 THEN epoch ELSE :epoch END,
            ended = CASE WHEN :state = 3 THEN :now ELSE ended END
            WHERE name = :name AND state <= :state""",
        name=name,
        state=int(state),
        handle=handle,
        cpu=float(cpu_seconds),
        epoch=0 if lease is None else lease.epoch,
        now=time.time(),
    )
    return changed > 0


def worlds(
    store: Store, *, run: Run | None = None, trajectory: int = 0, removed: bool = False
) -> list[WorldRow]:
    """Returns the rows of a run, of a trajectory (by its number), or all rows, in the order in
    which they were planned. With `removed`, includes worlds and snapshots that are gone."""
    most = WorldPhase.REMOVED if removed else WorldPhase.REMOVING
    number = 0 if run is None else run.id
    rows = store.rows(_ROWS, run=number, trajectory=trajectory, most=int(most))
    living = _living(store) if rows else set()
    return [
        WorldRow(
            msgspec.msgpack.decode(intent, type=WorldIntent),
            owned,
            epoch,
            WorldPhase(state),
            handle,
            created,
            ended,
            cpu_seconds,
            _is_held(living, owner, settled),
            known is None or settled is not None,
        )
        for (
            intent,
            owned,
            epoch,
            state,
            handle,
            created,
            ended,
            cpu_seconds,
            owner,
            settled,
            known,
        ) in rows
    ]


def worlds_label(store: Store) -> str:
    """Returns the label that providers keep on every world of this journal."""
    store.run(
        "INSERT INTO counters VALUES ('worlds', :value) ON CONFLICT(name) DO NOTHING",
        value=secrets.randbits(62),
    )
    row = store.row("SELECT value FROM counters WHERE name = 'worlds'")
    assert row is not None, "it was just written"
    return f"{row[0]:016x}"


def _fence(store: Store, lease: Lease) -> int:
    """Returns the run of the lease's trajectory. Raises `LeaseLost` if the lease is stale."""
    row = store.row(
        "SELECT run, epoch FROM trajectories WHERE id = :id FOR UPDATE", id=lease.id
    ) or (0, None)
    if row[1] != lease.epoch:
        raise lost(lease, row[1])
    return int(row[0])


def _living(store: Store) -> set[str]:
    """Returns the numbers of the living workers of all runs."""
    return {worker for *_, worker in holders(store, "workers")}


def _is_held(living: set[str], owner: int | None, settled: int | None) -> bool:
    return settled is None and owner is not None and str(owner) in living
