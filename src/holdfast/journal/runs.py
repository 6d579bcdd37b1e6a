"""Runs, tasks and the listing of trajectories, as SQL."""

import sqlite3
import zlib
from collections.abc import Sequence

import msgspec

from holdfast.journal.journal import RunRow, TrajectoryRow, WorkerIdentity
from holdfast.journal.process import is_gone
from holdfast.records.errors import JournalCorrupt, UsageError
from holdfast.records.run import Run, RunChange, RunSpec
from holdfast.records.task import Task
from holdfast.records.trajectory import Status, TrajectoryKey

# The database's own clock, in seconds: every worker of a run reads the same one.
NOW = "((julianday('now') - 2440587.5) * 86400.0)"

_encode = msgspec.msgpack.encode


def create(connection: sqlite3.Connection, spec: RunSpec, tasks: Sequence[Task]) -> Run:
    if find(connection, spec.name) is not None:
        raise UsageError(f"run {spec.name!r} exists already")
    connection.execute(
        f"INSERT INTO runs(name, spec, changes, created) VALUES (?, ?, ?, {NOW})",  # noqa: S608 - NOW is ours
        (spec.name, _encode(spec), _encode(())),
    )
    run = find(connection, spec.name)
    assert run is not None, "it was just inserted"
    _plan(connection, run.id, spec.samples, list(enumerate(tasks)))
    return run


def find(connection: sqlite3.Connection, name: str) -> Run | None:
    row = connection.execute(
        "SELECT id, spec, changes, created FROM runs WHERE name = ?", (name,)
    ).fetchone()
    if row is None:
        return None
    return run_of(name, row)


def run_of(name: str, row: tuple[int, bytes, bytes, float]) -> Run:
    identity, spec, changes, created = row
    try:
        return Run(
            id=identity,
            spec=msgspec.msgpack.decode(spec, type=RunSpec),
            changes=msgspec.msgpack.decode(changes, type=tuple[RunChange, ...]),
            created=created,
        )
    except (msgspec.MsgspecError, TypeError) as error:
        raise JournalCorrupt(f"run {name!r}: its description does not decode: {error}") from error


def amend(
    connection: sqlite3.Connection,
    run: Run,
    spec: RunSpec,
    tasks: Sequence[Task],
    differences: Sequence[str],
) -> Run:
    """Goes on with another spec: new tasks are planned, missing ones rest, changes are kept."""
    (now,) = connection.execute(f"SELECT {NOW}").fetchone()
    changes = (*run.changes, RunChange(tuple(differences), now))
    connection.execute(
        "UPDATE runs SET spec = ?, changes = ? WHERE id = ?",
        (_encode(spec), _encode(changes), run.id),
    )
    known: dict[str, int] = dict(
        connection.execute("SELECT id, ordinal FROM tasks WHERE run = ?", (run.id,)).fetchall()
    )
    connection.execute("UPDATE tasks SET current = 0 WHERE run = ?", (run.id,))
    after = max(known.values(), default=-1) + 1
    fresh = [task for task in tasks if task.id not in known]
    planned = [(known[task.id], task) for task in tasks if task.id in known]
    planned += list(enumerate(fresh, after))
    _plan(connection, run.id, spec.samples, planned)
    if spec.scorer and spec.scorer != run.spec.scorer:
        _unsettle_outcomes(connection, run.id)
    return Run(id=run.id, spec=spec, changes=changes, created=run.created)


def _unsettle_outcomes(connection: sqlite3.Connection, run: int) -> None:
    """They are finished and only scored again. What a consumer has stays what it was."""
    connection.execute(
        "UPDATE trajectories SET settled = NULL, epoch = epoch + 1 "
        "WHERE run = ? AND status IN (?, ?) AND settled IS NOT NULL AND task NOT IN "
        "(SELECT task FROM deliveries WHERE run = ?)",
        (run, int(Status.COMPLETED), int(Status.TRUNCATED), run),
    )


def _plan(
    connection: sqlite3.Connection, run: int, samples: int, tasks: Sequence[tuple[int, Task]]
) -> None:
    rows = [(run, ordinal, task.id, *_body(task)) for ordinal, task in tasks]
    connection.executemany(
        "INSERT INTO tasks(run, ordinal, id, body, crc) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT(run, ordinal) DO UPDATE SET body = excluded.body, crc = excluded.crc, "
        "current = 1",
        rows,
    )
    # A group that a consumer has gets no more members: its batch stays what it was.
    connection.executemany(
        "INSERT OR IGNORE INTO trajectories(run, task, sample) SELECT ?1, ?2, ?3 WHERE NOT EXISTS "
        "(SELECT 1 FROM deliveries WHERE run = ?1 AND task = ?2)",
        [(run, ordinal, sample) for ordinal, _ in tasks for sample in range(samples)],
    )


def _body(task: Task) -> tuple[bytes, int]:
    body = _encode(task)
    return body, zlib.crc32(body)


def task_of(row: tuple[object, int], *, name: str) -> Task:
    # A damaged page can turn a column into one of another type.
    if not isinstance(row[0], bytes) or zlib.crc32(row[0]) != row[1]:
        raise JournalCorrupt(f"task {name!r} fails its checksum")
    try:
        return msgspec.msgpack.decode(row[0], type=Task)
    except msgspec.MsgspecError as error:
        raise JournalCorrupt(f"task {name!r} does not decode: {error}") from error


def tasks(connection: sqlite3.Connection, run: Run) -> list[Task]:
    rows = connection.execute(
        "SELECT id, body, crc FROM tasks WHERE run = ? ORDER BY ordinal", (run.id,)
    )
    return [task_of((body, crc), name=name) for name, body, crc in rows]


TRAJECTORY = """SELECT k.id, t.sample, t.id, t.task, t.status, t.settled IS NOT NULL, t.epoch,
        coalesce(h.length, 0),
        coalesce((SELECT 'process ' || w.pid || ' on ' || w.host FROM workers w
                  WHERE w.id = t.owner), ''),
        NOT k.current
    FROM trajectories t JOIN tasks k ON k.run = t.run AND k.ordinal = t.task
    LEFT JOIN heads h ON h.trajectory = t.id """


def trajectory_row(
    run: str, row: tuple[str, int, int, int, int, int, int, int, str, int]
) -> TrajectoryRow:
    name, sample, identity, ordinal, status, settled, epoch, records, owner, resting = row
    return TrajectoryRow(
        key=TrajectoryKey(run, name, sample),
        id=identity,
        ordinal=ordinal,
        status=Status(status),
        settled=bool(settled),
        epoch=epoch,
        records=records,
        owner=owner,
        resting=bool(resting),
    )


def trajectories(connection: sqlite3.Connection, run: Run) -> list[TrajectoryRow]:
    rows = connection.execute(TRAJECTORY + "WHERE t.run = ? ORDER BY t.task, t.sample", (run.id,))
    return [trajectory_row(run.spec.name, row) for row in rows]


def listing(connection: sqlite3.Connection) -> list[RunRow]:
    found = connection.execute(
        "SELECT name, id, spec, changes, created FROM runs ORDER BY id"
    ).fetchall()
    return [_run_row(connection, run_of(name, (*row,))) for name, *row in found]


def _run_row(connection: sqlite3.Connection, run: Run) -> RunRow:
    by_status = connection.execute(
        "SELECT status, count(*), count(settled) FROM trajectories t "
        "JOIN tasks k ON k.run = t.run AND k.ordinal = t.task AND k.current "
        "WHERE t.run = ? GROUP BY status ORDER BY status",
        (run.id,),
    ).fetchall()
    (tasks_count,) = connection.execute(
        "SELECT count(*) FROM tasks WHERE run = ? AND current", (run.id,)
    ).fetchone()
    leased = connection.execute(
        f"SELECT host, pid, born FROM workers WHERE run = ? AND lease_until > {NOW}",  # noqa: S608 - NOW is ours
        (run.id,),
    ).fetchall()
    workers = [WorkerIdentity(host, pid, born) for host, pid, born in leased]
    return RunRow(
        name=run.spec.name,
        created=run.created,
        tasks=tasks_count,
        samples=run.spec.samples,
        by_status={Status(status).name: total for status, total, _ in by_status},
        settled=sum(settled for _, _, settled in by_status),
        live_workers=tuple(str(worker) for worker in workers if not is_gone(worker)),
    )
