"""Deleting a run, and giving its space back.

A run is deleted in one transaction. Numbers come from sequences, so none is used again, and a
worker that slept through the deletion of its run holds nobody else's trajectory.
"""

from holdfast.journal.journal import Deletion, WorkerIdentity
from holdfast.journal.postgres.connection import ServerConnection, column
from holdfast.journal.postgres.leases import release_dead
from holdfast.journal.postgres.runs import lock
from holdfast.journal.process import is_gone
from holdfast.journal.references import references
from holdfast.journal.rules import blobs_in_use, consumed_run, journal_in_use, run_in_use
from holdfast.records.errors import UsageError
from holdfast.records.run import Run

COMPACT_SECONDS = 3600.0
READ_ROWS = 500
"""Records that are looked through at once for the blobs that they speak of."""
_OF_RUN = (
    "deliveries", "consumers", "versions", "streams", "task_groups", "totals", "workers",
    "trajectories", "tasks",
)  # fmt: skip
_TABLES = ("records", "blobs", "cuts", "tasks", "trajectories", "task_groups", "deliveries")
_HOLDERS = """SELECT r.name, w.host, w.pid, w.born, w.namespace,
        extract(epoch FROM w.lease_until - clock_timestamp())::double precision AS seconds,
        w.{name}::text AS holder
    FROM holdfast.{table} w JOIN holdfast.runs r ON r.id = w.run
    WHERE w.lease_until > '-infinity'
    AND NOT holdfast.is_expired(w.lease_until, w.lease_seconds) ORDER BY r.name"""
_MINE = "SELECT id FROM holdfast.trajectories WHERE run = $1"


async def delete(connection: ServerConnection, run: Run) -> Deletion:
    try:
        found = await lock(connection, run)
    except UsageError:
        return Deletion()
    await refuse_if_held(connection, found)
    unused = await _unused_blobs(connection, run)
    if unused and (others := await _live_runs(connection)):
        raise blobs_in_use(run, others)
    records = await _deleted(connection, f"holdfast.records WHERE trajectory IN ({_MINE})", run.id)
    await _deleted(connection, f"holdfast.cuts WHERE trajectory IN ({_MINE})", run.id)
    await _deleted(connection, "holdfast.blobs WHERE digest = ANY($1::bytea[])", list(unused))
    rows = {
        table: await _deleted(connection, f"holdfast.{table} WHERE run = $1", run.id)
        for table in _OF_RUN
    }
    await _deleted(connection, "holdfast.runs WHERE id = $1", run.id)
    return Deletion(rows["trajectories"], records, len(unused))


async def _deleted(connection: ServerConnection, where: str, parameter: object) -> int:
    status = await connection.execute(f"DELETE FROM {where}", parameter)  # noqa: S608 - ours
    return int(status.split()[-1])


async def refuse_if_held(connection: ServerConnection, run: Run) -> None:
    """`RunHeld` or `ConsumerHeld`, with who holds it. The caller holds the run's row."""
    if workers := await release_dead(connection, run):
        raise run_in_use(run, workers)
    for name, holder, seconds, consumer in await _holders(connection, "consumers"):
        if name == run.spec.name:
            raise consumed_run(run, consumer, holder=str(holder), seconds=seconds)


async def _unused_blobs(connection: ServerConnection, run: Run) -> set[bytes]:
    """The blobs that the run's records speak of, and no others do. Only a run with blobs of its
    own makes this read the records of the other runs."""
    digests = set(column(await connection.fetch("SELECT digest FROM holdfast.blobs")))
    if not digests:
        return set()
    own = await _spoken_of(connection, f"trajectory IN ({_MINE})", run, digests)
    if not own:
        return set()
    others = await _spoken_of(connection, f"trajectory NOT IN ({_MINE})", run, digests)
    # All are followed: a blob that stays may lead to one that the run uses, too.
    own = await _reachable(connection, own, digests)
    return own - await _reachable(connection, others, digests)


async def _reachable(
    connection: ServerConnection, found: set[bytes], digests: set[bytes]
) -> set[bytes]:
    """With the blobs that these lead to; one is in memory at a time."""
    found, left = set(found), list(found)
    while left:
        body = await connection.fetchval(
            "SELECT body FROM holdfast.blobs WHERE digest = $1", left.pop()
        )
        new = (references(body or b"") & digests) - found
        found |= new
        left += new
    return found


async def _spoken_of(
    connection: ServerConnection, where: str, run: Run, digests: set[bytes]
) -> set[bytes]:
    found: set[bytes] = set()
    last = (-1, -1)
    while True:
        rows = await connection.fetch(
            f"SELECT trajectory, seq, body FROM holdfast.records WHERE {where} "  # noqa: S608 - ours
            "AND (trajectory, seq) > ($2::bigint, $3::integer) "
            f"ORDER BY trajectory, seq LIMIT {READ_ROWS}",
            run.id,
            *last,
        )
        if not rows:
            return found
        for row in rows:
            found |= references(row["body"]) & digests
        last = (rows[-1]["trajectory"], rows[-1]["seq"])


async def _live_runs(connection: ServerConnection) -> list[str]:
    """Those that somebody works on, or trains on."""
    tables = ("workers", "consumers")
    found = [name for table in tables for name, *_ in await _holders(connection, table)]
    return list(dict.fromkeys(found))


async def _holders(
    connection: ServerConnection, table: str
) -> list[tuple[str, WorkerIdentity, float, str]]:
    """Of all runs: the run, who holds it, for how long, and as what."""
    name = {"workers": "id", "consumers": "consumer"}[table]
    rows = await connection.fetch(_HOLDERS.format(table=table, name=name))
    found = [(row[0], WorkerIdentity(*row[1:5]), row[5], row[6]) for row in rows]
    return [holder for holder in found if not is_gone(holder[1])]


async def give_space_back(connection: ServerConnection) -> int:
    """How many bytes smaller the tables are. Each is locked while it is written anew."""
    if others := await _live_runs(connection):
        raise journal_in_use(others)
    before = await _size(connection)
    for table in _TABLES:
        await connection.execute(f"VACUUM FULL holdfast.{table}", timeout=COMPACT_SECONDS)
    return max(0, before - await _size(connection))


async def _size(connection: ServerConnection) -> int:
    size: int = await connection.fetchval(
        "SELECT sum(pg_total_relation_size(('holdfast.' || name)::regclass))::bigint "
        "FROM unnest($1::text[]) AS t(name)",
        list(_TABLES),
    )
    return size
