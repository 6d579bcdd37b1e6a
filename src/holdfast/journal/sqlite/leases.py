"""Workers, leases and claims, as SQL.

A worker's one heartbeat keeps all its leases. Taking a trajectory over bumps its epoch, so
that a worker that was only asleep finds every append refused. Clocks decide when a worker may be
taken for dead; they never decide whether a write is right.
"""

import socket
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
from holdfast.journal.rows import status_of, task_of
from holdfast.journal.rules import run_held
from holdfast.journal.sqlite import chain
from holdfast.journal.sqlite.runs import TASK, trajectory_rows
from holdfast.records.errors import LeaseLost
from holdfast.records.run import Run
from holdfast.records.trajectory import TrajectoryKey

_EXPIRED = f"SELECT id FROM workers w WHERE run = :run AND NOT {IS_LEASED}"  # noqa: S608 - ours
_JOIN = """INSERT INTO workers(
        run, host, pid, born, namespace, lease_until, clock, clock_until, lease_seconds)
    VALUES (:run, :host, :pid, :born, :namespace, :wall + :lease, :clock, :ticks + :lease, :lease)
    RETURNING id"""


def join(
    connection: sqlite3.Connection,
    now: Instant,
    run: Run,
    identity: WorkerIdentity,
    *,
    lease_seconds: float,
    share: bool,
) -> Worker:
    live = release_dead(connection, run.id, now)
    if live and not share:
        raise run_held(run, live)
    who = structs.asdict(identity) | {"run": run.id, "lease": lease_seconds}
    (worker,) = connection.execute(_JOIN, now.parameters | who).fetchone()
    return Worker(worker, identity, run.id, lease_seconds)


def release_dead(connection: sqlite3.Connection, run: int, now: Instant) -> list[str]:
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
    _free(connection, run, "owner NOT IN (SELECT id FROM workers)", None)
    return living


def _release(connection: sqlite3.Connection, worker: int) -> None:
    row = connection.execute("SELECT run FROM workers WHERE id = ?", (worker,)).fetchone()
    if row is not None:
        _free(connection, row[0], "owner = :worker", worker)
        connection.execute("DELETE FROM workers WHERE id = ?", (worker,))


def _free(connection: sqlite3.Connection, run: int, held: str, worker: int | None) -> None:
    """Nobody owns what is settled: the index of what is open finds what is held."""
    connection.execute(
        "UPDATE trajectories SET owner = NULL, epoch = epoch + 1 "  # noqa: S608 - `held` is ours
        f"WHERE run = :run AND settled IS NULL AND owner IS NOT NULL AND {held}",
        {"run": run, "worker": worker},
    )


def heartbeat(connection: sqlite3.Connection, now: Instant, worker: Worker) -> None:
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


def _release_expired(connection: sqlite3.Connection, run: int, now: Instant) -> None:
    for (worker,) in connection.execute(_EXPIRED, now.parameters | {"run": run}).fetchall():
        _release(connection, worker)


def _release_gone(connection: sqlite3.Connection, run: int) -> bool:
    """Whether there were any whose process has ended. Others than this machine's are not looked
    at: whether those live, nobody here can say."""
    rows = connection.execute(
        "SELECT id, host, pid, born, namespace FROM workers WHERE run = ? AND host = ?",
        (run, socket.gethostname()),
    ).fetchall()
    gone = [worker for worker, *row in rows if is_gone(WorkerIdentity(*row))]
    for worker in gone:
        _release(connection, worker)
    return bool(gone)


_CLAIMABLE = """SELECT DISTINCT t.task FROM trajectories t
    JOIN tasks k ON k.run = t.run AND k.ordinal = t.task
    WHERE t.run = :run AND t.settled IS NULL AND t.owner IS NULL AND t.task > :after AND k.current
        AND NOT EXISTS (SELECT 1 FROM trajectories o WHERE o.run = t.run AND o.task = t.task
            AND o.settled IS NULL AND +o.owner IS NOT NULL)
    ORDER BY t.task LIMIT :groups"""
# The plus: members are found by their task, not among everything that is held.


def claim(
    connection: sqlite3.Connection, now: Instant, worker: Worker, *, groups: int, after: int
) -> list[Claim]:
    """Groups behind task `after` that nobody holds, in order. An expired worker holds nothing."""
    # It is alive; without this, one that overslept would claim its own groups anew.
    heartbeat(connection, now, worker)
    _release_expired(connection, worker.run, now)
    (run,) = connection.execute("SELECT name FROM runs WHERE id = ?", (worker.run,)).fetchone()
    parameters = {"run": worker.run, "after": after, "groups": groups}
    ordinals = connection.execute(_CLAIMABLE, parameters).fetchall()
    if not ordinals and after < 0 and _release_gone(connection, worker.run):
        ordinals = connection.execute(_CLAIMABLE, parameters).fetchall()
    return [_claim_group(connection, run, worker, ordinal) for (ordinal,) in ordinals]


def _claim_group(connection: sqlite3.Connection, run: str, worker: Worker, ordinal: int) -> Claim:
    task = task_of(
        *connection.execute(
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
