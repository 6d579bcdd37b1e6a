"""Workers, leases and claims, as SQL.

A worker's one heartbeat keeps all its leases. Taking a trajectory over bumps its epoch, so
that a worker that was only asleep finds every append refused. Clocks decide when a worker may be
taken for dead; they never decide whether a write is right.
"""

import sqlite3

from msgspec import structs

from holdfast.journal.journal import (
    Claim,
    Lease,
    TrajectoryRow,
    Worker,
    WorkerIdentity,
)
from holdfast.journal.lease_clock import IS_LEASED, SECONDS_LEFT, Instant, with_lease_end
from holdfast.journal.process import is_gone
from holdfast.journal.sqlite import chain
from holdfast.journal.sqlite.runs import TASK, status_of, task_of, trajectory_rows
from holdfast.records.errors import LeaseLost, RunHeld
from holdfast.records.run import Run
from holdfast.records.trajectory import TrajectoryKey

_JOIN = """INSERT INTO workers(
        run, host, pid, born, namespace, lease_until, clock, clock_until, lease_seconds)
    VALUES (:run, :host, :pid, :born, :namespace, :wall + :lease, :clock, :ticks + :lease, :lease)
    RETURNING id"""


def join(
    connection: sqlite3.Connection,
    run: Run,
    identity: WorkerIdentity,
    *,
    lease_seconds: float,
    share: bool,
    now: Instant,
) -> Worker:
    live = _release_dead(connection, run.id, now)
    if live and not share:
        raise RunHeld(
            f"run {run.spec.name!r} is being worked on by {', '.join(live)}; wait for it, stop "
            "it, or add --join to share the work"
        )
    who = structs.asdict(identity) | {"run": run.id, "lease": lease_seconds}
    (worker,) = connection.execute(_JOIN, now.parameters | who).fetchone()
    return Worker(worker, identity, run.id, lease_seconds)


def _release_dead(connection: sqlite3.Connection, run: int, now: Instant) -> list[str]:
    """Fences workers with a lease that ran out or a process that is gone; names those that live."""
    living = []
    found = connection.execute(
        f"SELECT id, {IS_LEASED}, {SECONDS_LEFT}, host, pid, born, namespace "  # noqa: S608 - both are ours
        "FROM workers w WHERE run = :run",
        now.parameters | {"run": run},
    ).fetchall()
    for worker, is_leased, seconds, *row in found:
        identity = WorkerIdentity(*row)
        if is_leased and not is_gone(identity):
            living.append(with_lease_end(identity, seconds))
        else:
            _release(connection, worker)
    return living


def _release(connection: sqlite3.Connection, worker: int) -> None:
    connection.execute(
        # Nobody owns what is settled: only what is open is looked at, by its index.
        "UPDATE trajectories SET owner = NULL, epoch = epoch + 1 WHERE owner = :worker "
        "AND settled IS NULL AND run = (SELECT run FROM workers WHERE id = :worker)",
        {"worker": worker},
    )
    connection.execute("DELETE FROM workers WHERE id = ?", (worker,))


def heartbeat(connection: sqlite3.Connection, worker: Worker, now: Instant) -> None:
    known = connection.execute(
        "UPDATE workers SET lease_until = :wall + :lease, clock = :clock, "
        "clock_until = :ticks + :lease WHERE id = :worker",
        now.parameters | {"lease": worker.lease_seconds, "worker": worker.id},
    ).rowcount
    if not known:
        raise LeaseLost(
            f"{worker.identity} was silent for more than {worker.lease_seconds:g} s and another "
            "worker took its run over; nothing that it does is recorded any more"
        )


def leave(connection: sqlite3.Connection, worker: Worker) -> None:
    _release(connection, worker.id)


_CLAIMABLE = f"""SELECT t.task FROM trajectories t
    JOIN tasks k ON k.run = t.run AND k.ordinal = t.task
    WHERE t.run = :run AND t.settled IS NULL AND t.task > :after AND k.current
    GROUP BY t.task
    HAVING sum(t.owner IS NOT NULL AND EXISTS (
        SELECT 1 FROM workers w WHERE w.id = t.owner AND {IS_LEASED})) = 0
    ORDER BY t.task LIMIT :groups"""  # noqa: S608 - IS_LEASED is ours


def claim(
    connection: sqlite3.Connection, worker: Worker, *, groups: int, after: int, now: Instant
) -> list[Claim]:
    """Groups behind task `after`, in order. An expired worker's groups are taken over."""
    # It is alive; without this, one that overslept would claim its own groups anew.
    heartbeat(connection, worker, now)
    (run,) = connection.execute("SELECT name FROM runs WHERE id = ?", (worker.run,)).fetchone()
    parameters = now.parameters | {"run": worker.run, "after": after, "groups": groups}
    ordinals = connection.execute(_CLAIMABLE, parameters).fetchall()
    if not ordinals and after < 0:
        # Nothing is left but what others hold: those that were killed hold nothing any more.
        _release_dead(connection, worker.run, now)
        ordinals = connection.execute(_CLAIMABLE, parameters).fetchall()
    return [_claim_group(connection, run, worker, ordinal) for (ordinal,) in ordinals]


def _claim_group(connection: sqlite3.Connection, run: str, worker: Worker, ordinal: int) -> Claim:
    task = task_of(
        connection.execute(
            f"SELECT {TASK} FROM tasks k WHERE run = ? AND ordinal = ?",  # noqa: S608 - TASK is ours
            (worker.run, ordinal),
        ).fetchone()
    )
    taken = connection.execute(
        "UPDATE trajectories SET owner = ?, epoch = epoch + 1 "
        "WHERE run = ? AND task = ? AND settled IS NULL RETURNING id, sample, epoch, status",
        (worker.id, worker.run, ordinal),
    ).fetchall()
    lengths = _lengths(connection, taken)
    leases = [
        Lease(
            key=TrajectoryKey(run, task.id, sample),
            id=identity,
            ordinal=ordinal,
            epoch=epoch,
            status=status_of(status, of=f"trajectory {identity}"),
            settled=False,
            next_seq=lengths[identity],
        )
        for identity, sample, epoch, status in sorted(taken, key=lambda row: row[1])
    ]
    return Claim(task, ordinal, leases, _settled(connection, run, worker.run, ordinal))


def _lengths(
    connection: sqlite3.Connection, taken: list[tuple[int, int, int, int]]
) -> dict[int, int]:
    """A log without its head is not empty: loading it raises, and then it can be cut."""
    lengths = {identity: chain.length(connection, identity) for identity, *_ in taken}
    headless = [identity for identity, _, _, status in taken if status and not lengths[identity]]
    return lengths | chain.lengths_without_heads(connection, headless)


def _settled(
    connection: sqlite3.Connection, name: str, run: int, ordinal: int
) -> list[TrajectoryRow]:
    where = "WHERE t.run = ? AND t.task = ? AND t.settled IS NOT NULL ORDER BY t.sample"
    return trajectory_rows(connection, name, where, (run, ordinal))
