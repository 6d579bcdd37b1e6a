"""Workers, leases and claims, as SQL.

A worker's one heartbeat keeps all its leases, on the database's clock. No lease lasts longer than
its own seconds from any look at it, whatever that clock was set to (`shorten`). Taking a trajectory
over bumps its epoch, so that a worker that was only asleep finds every append refused. Clocks
decide when a worker may be taken for dead; they never decide whether a write is right. Processes
are looked up only where their numbers mean something: on their own machine, in their own namespace.
"""

import asyncpg

from holdfast.journal.journal import Claim, Lease, TrajectoryRow, Worker, WorkerIdentity
from holdfast.journal.lease_clock import with_lease_end
from holdfast.journal.postgres.connection import Row, ServerConnection
from holdfast.journal.postgres.errors import WORKER_GONE, state_of
from holdfast.journal.postgres.runs import lock
from holdfast.journal.process import is_gone, this_process
from holdfast.journal.rows import status_of, task_of
from holdfast.journal.rules import run_held
from holdfast.records.errors import LeaseLost
from holdfast.records.run import Run
from holdfast.records.trajectory import TrajectoryKey

_WORKERS = """SELECT id, host, pid, born, namespace,
        holdfast.is_expired(lease_until, lease_seconds) AS is_expired,
        extract(epoch FROM lease_until - clock_timestamp())::double precision AS seconds
    FROM holdfast.workers WHERE run = $1 ORDER BY id"""
_NEIGHBOURS = """SELECT id, host, pid, born, namespace FROM holdfast.workers
    WHERE run = $1 AND host = $2 AND namespace = $3 FOR UPDATE SKIP LOCKED"""


async def shorten(connection: ServerConnection, run: Run) -> None:
    """Before whatever may be refused because of a lease: a refusal undoes its own transaction."""
    await connection.execute("SELECT holdfast.shorten_leases($1)", run.id)


async def join(
    connection: ServerConnection,
    run: Run,
    identity: WorkerIdentity,
    *,
    lease_seconds: float,
    share: bool,
) -> Worker:
    await lock(connection, run)
    living = await release_dead(connection, run)
    if living and not share:
        raise run_held(run, living)
    number = await connection.fetchval(
        "INSERT INTO holdfast.workers(run, host, pid, born, namespace, lease_until, lease_seconds) "
        "VALUES ($1, $2, $3, $4, $5, clock_timestamp() + $6 * interval '1 second', $6) "
        "RETURNING id",
        run.id,
        identity.host,
        identity.pid,
        identity.born,
        identity.namespace,
        float(lease_seconds),
    )
    return Worker(number, identity, run.id, lease_seconds)


async def release_dead(connection: ServerConnection, run: Run) -> list[str]:
    """Fences workers with a lease that ran out or a process that is gone; names those that live."""
    living = []
    for row in await connection.fetch(_WORKERS, run.id):
        worker = _identity(row)
        if row["is_expired"] or is_gone(worker):
            await release(connection, row["id"])
        else:
            living.append(with_lease_end(worker, row["seconds"]))
    return living


def _identity(row: Row) -> WorkerIdentity:
    return WorkerIdentity(row["host"], row["pid"], row["born"], row["namespace"])


async def release(connection: ServerConnection, worker: int) -> None:
    await connection.execute("SELECT holdfast.release($1)", worker)


async def heartbeat(connection: ServerConnection, worker: Worker) -> None:
    status = await connection.execute(
        "UPDATE holdfast.workers SET lease_until = clock_timestamp() + $2 * interval '1 second' "
        "WHERE id = $1",
        worker.id,
        float(worker.lease_seconds),
    )
    if status != "UPDATE 1":
        raise _buried(worker)


def _buried(worker: Worker) -> LeaseLost:
    return LeaseLost(
        f"{worker.identity} was silent for more than {worker.lease_seconds:g} s and another "
        "worker took its run over; nothing that it does is recorded any more"
    )


async def claim(
    connection: ServerConnection, worker: Worker, *, groups: int, after: int
) -> list[Claim]:
    """Groups behind task `after`, in order, and else from the first; an expired worker's, too."""
    rows = await _claim(connection, worker, groups=groups, after=after)
    if not rows and after >= 0:
        rows = await _claim(connection, worker, groups=groups, after=-1)
    if not rows and await _release_gone(connection, worker):
        rows = await _claim(connection, worker, groups=groups, after=-1)
    if not rows:
        return []
    name = await connection.fetchval("SELECT name FROM holdfast.runs WHERE id = $1", worker.run)
    ordinals = sorted({row["ordinal"] for row in rows})
    found = await connection.fetch(
        "SELECT ordinal, id, body, crc FROM holdfast.tasks "
        "WHERE run = $1 AND ordinal = ANY($2::integer[])",
        worker.run,
        ordinals,
    )
    bodies = {row["ordinal"]: row for row in found}
    return [
        _claim_of(name, bodies[ordinal], [row for row in rows if row["ordinal"] == ordinal])
        for ordinal in ordinals
    ]


async def _claim(
    connection: ServerConnection, worker: Worker, *, groups: int, after: int
) -> list[Row]:
    try:
        return await connection.fetch(
            "SELECT * FROM holdfast.claim($1, $2, $3, $4, $5)",
            worker.id,
            worker.run,
            after,
            groups,
            float(worker.lease_seconds),
        )
    except asyncpg.PostgresError as error:
        if state_of(error) == WORKER_GONE:
            raise _buried(worker) from error
        raise


async def _release_gone(connection: ServerConnection, worker: Worker) -> bool:
    """Nothing is left but what others hold: those of this machine that were killed hold nothing."""
    here = this_process()
    rows = await connection.fetch(_NEIGHBOURS, worker.run, here.host, here.namespace)
    gone = [row["id"] for row in rows if row["id"] != worker.id and is_gone(_identity(row))]
    for number in gone:
        await release(connection, number)
    return bool(gone)


def _claim_of(run: str, task_row: Row, members: list[Row]) -> Claim:
    task = task_of(*task_row)
    claim = Claim(task, members[0]["ordinal"], [], [])
    for row in members:
        key = TrajectoryKey(run, task.id, row["sample"])
        status = status_of(row["status"], of=str(key))
        if row["is_settled"]:
            claim.settled.append(
                TrajectoryRow(
                    key=key,
                    id=row["id"],
                    ordinal=row["ordinal"],
                    status=status,
                    settled=True,
                    epoch=row["epoch"],
                    records=row["length"],
                    owner="",
                )
            )
        else:
            claim.open.append(
                Lease(
                    key=key,
                    id=row["id"],
                    ordinal=row["ordinal"],
                    epoch=row["epoch"],
                    status=status,
                    settled=False,
                    next_seq=row["length"],
                )
            )
    return claim
