"""Renames and deletes runs that nobody holds. Each is one transaction, so that a kill leaves the
whole run or nothing of it."""

from holdfast.journal.lease_clock import IS_LEASED, SECONDS_LEFT
from holdfast.journal.process import is_gone
from holdfast.journal.references import reachable
from holdfast.journal.rules import blobs_in_use, consumed_run, journal_in_use, run_in_use
from holdfast.journal.sql import runs
from holdfast.journal.sql.leases import release_dead
from holdfast.journal.sql.runs import lock
from holdfast.journal.sql.store import Store, values_of
from holdfast.journal.sql.tables import OF_RUN
from holdfast.journal.types import Deletion, WorkerIdentity
from holdfast.records.errors import UsageError
from holdfast.records.run import Run

_HOLDERS = f"""SELECT r.name, w.host, w.pid, w.born, w.namespace, {SECONDS_LEFT}, w.{{name}}
    FROM {{table}} w JOIN runs r ON r.id = w.run WHERE {IS_LEASED} ORDER BY r.name"""  # noqa: S608 - ours


def rename(store: Store, run: Run, name: str) -> Run:
    """Renames the run. Raises `UsageError` if the name is taken, and `RunHeld` or `ConsumerHeld`
    while a worker or a consumer holds the run."""
    refuse_if_held(store, lock(store, run))
    return runs.rename(store, run, name)


def delete(store: Store, run: Run) -> Deletion:
    """Deletes everything of the run, all or nothing. Does nothing if the run no longer exists.

    Blobs are deleted too, unless another run refers to them. Raises `RunHeld` or `ConsumerHeld`
    while a live worker or consumer holds the run. Raises `RunHeld` if blobs would be deleted while
    another run is worked on, because that run may be about to refer to them. The numbers of runs
    and trajectories are never used again, so that a process that slept through the deletion is
    fenced.
    """
    try:
        recorded = lock(store, run)
    except UsageError:
        return Deletion()
    refuse_if_held(store, recorded)
    unused = _unused_blobs(store, run)
    if unused and (others := _live_runs(store)):
        raise blobs_in_use(run, others)
    records = store.delete_records(run.id)
    store.run(
        "DELETE FROM cuts WHERE trajectory IN (SELECT id FROM trajectories WHERE run = :run)",
        run=run.id,
    )
    store.run_many(
        "DELETE FROM blobs WHERE digest = :digest", [{"digest": each} for each in unused]
    )
    rows = {
        table: store.run(f"DELETE FROM {table} WHERE run = :run", run=run.id)  # noqa: S608 - ours
        for table in OF_RUN
    }
    store.run("DELETE FROM worlds WHERE run = :run AND state = 3", run=run.id)
    store.run("DELETE FROM runs WHERE id = :run", run=run.id)
    return Deletion(rows["trajectories"], records, len(unused))


def refuse_if_held(store: Store, run: Run) -> None:
    """Raises `RunHeld` or `ConsumerHeld`, with the holder, if the run is held."""
    if workers := release_dead(store, run):
        raise run_in_use(run, workers)
    for name, holder, seconds, consumer in holders(store, "consumers"):
        if name == run.spec.name:
            raise consumed_run(run, consumer, holder=str(holder), seconds=seconds)


def _unused_blobs(store: Store, run: Run) -> set[bytes]:
    """Returns the blobs to which only records of this run refer. Reads the records of other runs
    only if this run uses blobs."""
    digests = set(map(bytes, values_of(store.rows("SELECT digest FROM blobs"))))

    def blob(digest: bytes) -> bytes | None:
        row = store.row("SELECT body FROM blobs WHERE digest = :digest", digest=digest)
        return None if row is None else bytes(row[0])

    if not digests:
        return set()
    own = reachable(store.bodies(run.id, of_others=False), blob, among=digests)
    # Follows all of them, because a blob that stays may lead to one that the run uses.
    return (
        own - reachable(store.bodies(run.id, of_others=True), blob, among=digests) if own else own
    )


def refuse_if_any_is_live(store: Store) -> None:
    """Raises `RunHeld` while any run is worked on, because the workers would have to wait."""
    if others := _live_runs(store):
        raise journal_in_use(others)


def _live_runs(store: Store) -> list[str]:
    """Returns the names of the runs with a live worker or consumer."""
    tables = ("workers", "consumers")
    return list(dict.fromkeys(name for table in tables for name, *_ in holders(store, table)))


def holders(store: Store, table: str) -> list[tuple[str, WorkerIdentity, float, str]]:
    """Returns the live holders of all runs: the run's name, the holder, the seconds until the lease
    ends, and the id or name of the worker or consumer."""
    name = {"workers": "id", "consumers": "consumer"}[table]
    rows = store.rows(_HOLDERS.format(table=table, name=name), **store.now().parameters)
    holders = [(row[0], WorkerIdentity(*row[1:5]), row[5], str(row[6])) for row in rows]
    return [holder for holder in holders if not is_gone(holder[1])]
