"""Deleting a run, and giving its space back.

A run is deleted in one transaction: killed at any moment, all of it is there, or nothing. Its pages
are then used again by what is written next; `give_space_back` makes the file shorter. That rewrites
the file through its log, as SQLite's VACUUM does, so it needs as much room once more, and is
not done while anybody works.

New runs and trajectories get numbers that no deleted one had: a worker that slept through the
deletion of its run must not hold somebody else's trajectory under its own number and epoch.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from holdfast import crashpoint
from holdfast.journal.journal import Deletion, WorkerIdentity
from holdfast.journal.lease_clock import IS_LEASED, SECONDS_LEFT, Instant
from holdfast.journal.process import is_gone
from holdfast.journal.references import reachable
from holdfast.journal.rules import blobs_in_use, consumed_run, journal_in_use, run_in_use
from holdfast.journal.sqlite import runs
from holdfast.journal.sqlite.leases import release_dead
from holdfast.journal.sqlite.schema import log_size
from holdfast.records.run import Run

# The positions of the run's records, found by their links.
_LINKED = """INSERT INTO temp.doomed
    WITH RECURSIVE log(position, trajectory) AS (
        SELECT h.position, h.trajectory FROM heads h JOIN trajectories t ON t.id = h.trajectory
            WHERE t.run = :run
        UNION ALL SELECT l.previous, c.trajectory FROM log c JOIN links l ON l.position = c.position
            WHERE l.previous < c.position AND l.previous > 0)
    SELECT r.position FROM log c JOIN records r ON r.position = c.position
        AND r.trajectory = c.trajectory"""
# Whether links and heads lead to everything: a log that was begun has a head.
_COUNTED = """SELECT coalesce(sum(h.length), 0), sum(t.status != 0 AND h.trajectory IS NULL)
    FROM trajectories t LEFT JOIN heads h ON h.trajectory = t.id WHERE t.run = :run"""
_SCANNED = """INSERT OR IGNORE INTO temp.doomed SELECT position FROM records
    WHERE trajectory IN (SELECT id FROM trajectories WHERE run = :run)"""
_BODIES = "SELECT CAST(body AS BLOB) FROM records WHERE position {} (SELECT position FROM doomed)"
_OF_TRAJECTORIES = ("heads", "cuts")
_OF_RUN = (
    "deliveries", "consumers", "versions", "streams", "task_groups", "totals", "workers",
    "trajectories", "tasks",
)  # fmt: skip
_HOLDERS = f"""SELECT r.name, w.host, w.pid, w.born, w.namespace, {SECONDS_LEFT}, w.{{name}}
    FROM {{table}} w JOIN runs r ON r.id = w.run WHERE {IS_LEASED} ORDER BY r.name"""  # noqa: S608 - ours


def delete(connection: sqlite3.Connection, now: Instant, run: Run) -> Deletion:
    if connection.execute("SELECT 1 FROM runs WHERE id = ?", (run.id,)).fetchone() is None:
        return Deletion()
    refuse_if_held(connection, now, run)
    connection.execute("CREATE TEMP TABLE doomed(position INTEGER PRIMARY KEY)")
    try:
        records = _find_records(connection, run)
        unused = _unused_blobs(connection)
        if unused and (others := _live_runs(connection, now)):
            raise blobs_in_use(run, others)
        for table in ("records", "links"):
            connection.execute(
                f"DELETE FROM {table} WHERE position IN (SELECT position FROM doomed)"  # noqa: S608 - ours
            )
    finally:
        connection.execute("DROP TABLE temp.doomed")
    connection.executemany("DELETE FROM blobs WHERE digest = ?", [(digest,) for digest in unused])
    return Deletion(_delete_rows(connection, run), records, len(unused))


def refuse_if_held(connection: sqlite3.Connection, now: Instant, run: Run) -> None:
    """`RunHeld` or `ConsumerHeld`, with who holds it."""
    if workers := release_dead(connection, run.id, now):
        raise run_in_use(run, workers)
    for name, holder, seconds, consumer in _holders(connection, now, "consumers"):
        if name == run.spec.name:
            raise consumed_run(run, consumer, holder=str(holder), seconds=seconds)


def _find_records(connection: sqlite3.Connection, run: Run) -> int:
    """Takes time in proportion to the run, unless links are damaged."""
    parameters = {"run": run.id}
    found = connection.execute(_LINKED, parameters).rowcount
    counted, headless = connection.execute(_COUNTED, parameters).fetchone()
    if counted != found or headless:
        found += connection.execute(_SCANNED, parameters).rowcount
        # Links that lead nowhere would lead to what is written there one day.
        connection.execute("DELETE FROM links WHERE position NOT IN (SELECT position FROM records)")
    return found


def _unused_blobs(connection: sqlite3.Connection) -> set[bytes]:
    """The blobs that the doomed records speak of, and no others do. Only a run with blobs of its
    own makes this read the records of the other runs."""
    digests = {bytes(row[0]) for row in connection.execute("SELECT digest FROM blobs")}

    def bodies(where: str) -> Iterator[bytes]:
        with closing(connection.execute(_BODIES.format(where))) as rows:
            for (body,) in rows:
                yield body

    def blob(digest: bytes) -> bytes | None:
        row = connection.execute("SELECT body FROM blobs WHERE digest = ?", (digest,)).fetchone()
        return None if row is None else bytes(row[0])

    doomed = reachable(bodies("IN"), blob, among=digests) if digests else set()
    # All are followed: a blob that stays may lead to one that the run uses, too.
    return doomed - reachable(bodies("NOT IN"), blob, among=digests) if doomed else doomed


def _delete_rows(connection: sqlite3.Connection, run: Run) -> int:
    """How many trajectories there were."""
    for table in ("runs", "trajectories"):
        connection.execute(
            "INSERT INTO counters VALUES (:table, :last) "
            "ON CONFLICT(name) DO UPDATE SET value = excluded.value",
            {"table": table, "last": runs.last_id(connection, table)},
        )
    for table in _OF_TRAJECTORIES:
        connection.execute(
            f"DELETE FROM {table} WHERE trajectory IN "  # noqa: S608 - ours
            "(SELECT id FROM trajectories WHERE run = ?)",
            (run.id,),
        )
    deleted = {
        table: connection.execute(f"DELETE FROM {table} WHERE run = ?", (run.id,)).rowcount  # noqa: S608 - ours
        for table in _OF_RUN
    }
    connection.execute("DELETE FROM runs WHERE id = ?", (run.id,))
    return deleted["trajectories"]


def _live_runs(connection: sqlite3.Connection, now: Instant) -> list[str]:
    """Those that somebody works on, or trains on."""
    tables = ("workers", "consumers")
    found = [name for table in tables for name, *_ in _holders(connection, now, table)]
    return list(dict.fromkeys(found))


def _holders(
    connection: sqlite3.Connection, now: Instant, table: str
) -> list[tuple[str, WorkerIdentity, float, str]]:
    """Of all runs: the run, who holds it, for how long, and as what."""
    name = {"workers": "id", "consumers": "consumer"}[table]
    rows = connection.execute(_HOLDERS.format(table=table, name=name), now.parameters).fetchall()
    found = [(row[0], WorkerIdentity(*row[1:5]), row[5], str(row[6])) for row in rows]
    return [holder for holder in found if not is_gone(holder[1])]


# --- space


def give_space_back(
    connect: Callable[[], sqlite3.Connection],
    now: Instant,
    path: Path,
    *,
    copied: Callable[[], None],
) -> int:
    """How many bytes shorter the file and its log are. `copied` is called when the log is copied.

    Killed at any moment, the file has the same content.
    """
    with closing(connect()) as connection:
        if others := _live_runs(connection, now):
            raise journal_in_use(others)
        before = _size(path)
        if connection.execute("PRAGMA freelist_count").fetchone()[0]:
            crashpoint.reach("journal.compacting")
            connection.execute("VACUUM")
            crashpoint.reach("journal.compacting")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        crashpoint.reach("journal.compacting")
        copied()
        return max(0, before - _size(path))


def _size(path: Path) -> int:
    return path.stat().st_size + log_size(path)
