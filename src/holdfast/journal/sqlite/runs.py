"""Runs, their tasks, trajectories and weight versions, as SQL."""

import sqlite3
from collections.abc import Collection, Sequence
from contextlib import closing

import msgspec
from msgspec import structs

from holdfast.journal.journal import RunProgress, RunRow, TrajectoryRow, WorkerIdentity
from holdfast.journal.lease_clock import IS_LEASED, BootClock
from holdfast.journal.process import is_gone
from holdfast.journal.rows import run_of, status_of, task_body, task_of
from holdfast.journal.rules import (
    amended_spec,
    check_size,
    check_tags,
    distinct,
    known_version,
    name_taken,
    other_task,
    run_sealed,
    tasks_scored_anew,
)
from holdfast.journal.sqlite import chain
from holdfast.records.errors import JournalCorrupt, UsageError
from holdfast.records.group import GroupPolicy
from holdfast.records.run import RecordedCommand, Run, RunChange, RunSpec
from holdfast.records.samples.version import WeightVersion
from holdfast.records.task import Task
from holdfast.records.trajectory import Status, TrajectoryKey

# The database's own clock, in seconds since the epoch.
NOW = "((julianday('now') - 2440587.5) * 86400.0)"

_encode = msgspec.msgpack.encode


def create(
    connection: sqlite3.Connection, spec: RunSpec, tasks: Sequence[Task], *, sealed: bool
) -> Run:
    if find(connection, spec.name) is not None:
        raise name_taken(spec.name)
    connection.execute(
        f"INSERT INTO runs(id, name, spec, changes, created) VALUES (?, ?, ?, ?, {NOW})",  # noqa: S608 - NOW is ours
        (last_id(connection, "runs") + 1, spec.name, _encode(spec), _encode(())),
    )
    run = find(connection, spec.name)
    assert run is not None, "it was just inserted"
    _plan(connection, run.id, spec.samples, list(enumerate(tasks)))
    if not sealed:
        connection.execute("INSERT INTO streams VALUES (?)", (run.id,))
    return run


def last_id(connection: sqlite3.Connection, table: str) -> int:
    """The highest id of the table that was ever used, also by what is deleted."""
    (there,) = connection.execute(f"SELECT coalesce(max(id), 0) FROM {table}").fetchone()  # noqa: S608 - ours
    row = connection.execute("SELECT value FROM counters WHERE name = ?", (table,)).fetchone()
    return int(max(there, 0 if row is None else row[0]))


def find(connection: sqlite3.Connection, name: str) -> Run | None:
    row = connection.execute(
        "SELECT id, name, spec, changes, created FROM runs WHERE name = ?", (name,)
    ).fetchone()
    return None if row is None else run_of(row)


def policy_of(connection: sqlite3.Connection, run: Run) -> GroupPolicy:
    """As it is now: it may have been amended."""
    return current(connection, run).spec.group


def amend(
    connection: sqlite3.Connection,
    run: Run,
    spec: RunSpec,
    now: Sequence[Task],
    differences: Sequence[str],
) -> Run:
    """Goes on with another spec: new tasks are planned, missing ones rest, changes are kept."""
    recorded = current(connection, run).spec
    before = {task.id: task for task in tasks(connection, run)}
    known = {name: ordinal for ordinal, name in enumerate(before)}
    held = held_groups(connection, run)
    anew = tasks_scored_anew(recorded, spec, before, now, held=held)
    spec = amended_spec(recorded, spec)
    (at,) = connection.execute(f"SELECT {NOW}").fetchone()
    changes = (*run.changes, RunChange(tuple(differences), at))
    connection.execute(
        "UPDATE runs SET spec = ?, changes = ? WHERE id = ?",
        (_encode(spec), _encode(changes), run.id),
    )
    connection.execute("UPDATE tasks SET current = 0 WHERE run = ?", (run.id,))
    after = max(known.values(), default=-1) + 1
    fresh = [task for task in now if task.id not in known]
    planned = [(known[task.id], task) for task in now if task.id in known]
    planned += list(enumerate(fresh, after))
    _plan(connection, run.id, spec.samples, planned)
    _unsettle_outcomes(connection, run.id, [known[name] for name in anew])
    # Another policy may keep groups that were dismissed, and groups may have grown.
    connection.execute("DELETE FROM deliveries WHERE run = ? AND state IN (0, 3)", (run.id,))
    connection.execute("UPDATE consumers SET seen = 0 WHERE run = ?", (run.id,))
    return Run(id=run.id, spec=spec, changes=changes, created=run.created)


def current(connection: sqlite3.Connection, run: Run) -> Run:
    """As it is recorded now; `UsageError` when it is gone."""
    row = connection.execute(
        "SELECT id, name, spec, changes, created FROM runs WHERE id = ?", (run.id,)
    ).fetchone()
    if row is None:
        raise UsageError(f"run {run.spec.name!r} is no longer in the journal: it was deleted")
    return run_of(row)


def annotate(
    connection: sqlite3.Connection,
    run: Run,
    tags: Sequence[str] | None,
    command: RecordedCommand | None,
    training: str | None,
) -> Run:
    found = current(connection, run)
    spec = structs.replace(
        found.spec,
        tags=found.spec.tags if tags is None else check_tags(tags),
        command=command or found.spec.command,
        training=training or found.spec.training,
    )
    connection.execute("UPDATE runs SET spec = ? WHERE id = ?", (_encode(spec), run.id))
    return structs.replace(found, spec=spec)


def rename(connection: sqlite3.Connection, run: Run, name: str) -> Run:
    """Nothing but the run's own row has its name."""
    found = current(connection, run)
    spec = structs.replace(found.spec, name=name)
    spec.check(tasks=0)
    if name != found.spec.name and find(connection, name) is not None:
        raise name_taken(name)
    connection.execute(
        "UPDATE runs SET name = ?, spec = ? WHERE id = ?", (name, _encode(spec), run.id)
    )
    return structs.replace(found, spec=spec)


def held_groups(connection: sqlite3.Connection, run: Run) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for consumer, ordinal, task in connection.execute(
        "SELECT CAST(d.consumer AS BLOB), d.task, CAST(k.id AS BLOB) FROM deliveries d "
        "JOIN tasks k ON k.run = d.run AND k.ordinal = d.task "
        "WHERE d.run = ? AND d.state IN (1, 2) ORDER BY d.consumer, d.task",
        (run.id,),
    ).fetchall():
        name = text_of(consumer, of="the name of a consumer")
        found.setdefault(name, []).append(text_of(task, of=f"the name of task {ordinal}"))
    return found


def _unsettle_outcomes(connection: sqlite3.Connection, run: int, tasks: Sequence[int]) -> None:
    """They are finished and only scored again. No consumer has any of them."""
    connection.executemany(
        "UPDATE trajectories SET settled = NULL, epoch = epoch + 1 "
        "WHERE run = ? AND task = ? AND status IN (?, ?) AND settled IS NOT NULL",
        [(run, task, int(Status.COMPLETED), int(Status.TRUNCATED)) for task in tasks],
    )


def rescore(connection: sqlite3.Connection, run: Run, trajectories: Collection[int]) -> int:
    """Groups that a consumer has are left alone: its batches stay what they were."""
    found = connection.executemany(
        "UPDATE trajectories SET settled = NULL, epoch = epoch + 1 "
        "WHERE run = ?1 AND id = ?2 AND status IN (?3, ?4) AND settled IS NOT NULL AND NOT EXISTS "
        "(SELECT 1 FROM deliveries d WHERE d.run = ?1 AND d.task = trajectories.task "
        "AND d.state IN (1, 2))",
        [(run.id, each, int(Status.COMPLETED), int(Status.TRUNCATED)) for each in trajectories],
    )
    return max(0, found.rowcount)


def _plan(
    connection: sqlite3.Connection, run: int, samples: int, tasks: Sequence[tuple[int, Task]]
) -> None:
    rows = [(run, ordinal, task.id, *task_body(task, ordinal)) for ordinal, task in tasks]
    connection.executemany(
        "INSERT INTO tasks(run, ordinal, id, body, crc) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT(run, ordinal) DO UPDATE SET body = excluded.body, crc = excluded.crc, "
        "current = 1",
        rows,
    )
    # A group that a consumer has gets no more members: its batch stays what it was.
    last = last_id(connection, "trajectories")
    connection.executemany(
        "INSERT OR IGNORE INTO trajectories(id, run, task, sample) "
        "SELECT 1 + max(?1, (SELECT coalesce(max(id), 0) FROM trajectories)), ?2, ?3, ?4 "
        "WHERE NOT EXISTS "
        "(SELECT 1 FROM deliveries WHERE run = ?2 AND task = ?3 AND state IN (1, 2))",
        [(last, run, ordinal, sample) for ordinal, _ in tasks for sample in range(samples)],
    )


def admit(connection: sqlite3.Connection, run: Run, tasks: Sequence[Task]) -> int:
    fresh = distinct(run, [task for task in tasks if not _has(connection, run, task)])
    if not fresh:
        return 0
    now = progress(connection, run)
    if now.sealed:
        raise run_sealed(run, fresh[0].id)
    check_size(run, planned=now.planned, more=len(fresh))
    (last,) = connection.execute(
        "SELECT coalesce(max(ordinal), -1) FROM tasks WHERE run = ?", (run.id,)
    ).fetchone()
    _plan(connection, run.id, run.spec.samples, list(enumerate(fresh, last + 1)))
    return len(fresh)


def _has(connection: sqlite3.Connection, run: Run, task: Task) -> bool:
    row = connection.execute(
        "SELECT CAST(body AS BLOB) FROM tasks WHERE run = ? AND id = ?", (run.id, task.id)
    ).fetchone()
    if row is not None and row[0] != _encode(task):
        raise other_task(run, task.id)
    return row is not None


def seal(connection: sqlite3.Connection, run: Run) -> None:
    connection.execute("DELETE FROM streams WHERE run = ?", (run.id,))


def unseal(connection: sqlite3.Connection, run: Run) -> None:
    connection.execute("INSERT OR IGNORE INTO streams VALUES (?)", (run.id,))


def progress(connection: sqlite3.Connection, run: Run) -> RunProgress:
    row = connection.execute(
        "SELECT planned, settled, failed FROM totals WHERE run = ?", (run.id,)
    ).fetchone()
    is_open = connection.execute("SELECT 1 FROM streams WHERE run = ?", (run.id,)).fetchone()
    planned, settled, failed = row or (0, 0, 0)
    return RunProgress(planned, settled, failed, sealed=is_open is None)


def publish_version(
    connection: sqlite3.Connection, run: Run, name: str, *, step: int, digest: str
) -> int:
    row = connection.execute(
        "SELECT ordinal, digest FROM versions WHERE run = ? AND name = ?", (run.id, name)
    ).fetchone()
    if row is not None:
        return known_version(run, name, digest, known=row)
    (ordinal,) = connection.execute(
        "INSERT INTO versions SELECT :run, coalesce(max(ordinal), 0) + 1, :name, :step, :digest "
        "FROM versions WHERE run = :run RETURNING ordinal",
        {"run": run.id, "name": name, "step": step, "digest": digest},
    ).fetchone()
    return int(ordinal)


def versions(connection: sqlite3.Connection, run: Run, name: str | None) -> list[WeightVersion]:
    where = "" if name is None else " AND name = :name"
    rows = connection.execute(
        f"SELECT ordinal, name, step, digest FROM versions WHERE run = :run{where} "  # noqa: S608 - ours
        "ORDER BY ordinal",
        {"run": run.id, "name": name},
    )
    return [WeightVersion(*row) for row in rows.fetchall()]


TASK = "k.ordinal, CAST(k.id AS BLOB), CAST(k.body AS BLOB), k.crc"
"""What makes a task, whatever damage made of it: text that is no UTF-8 cannot even be read."""


def text_of(value: object, *, of: str) -> str:
    """Text that was read as bytes, so that it can be read whatever damage made of it."""
    if not isinstance(value, bytes):
        raise JournalCorrupt(f"{of} is no text")
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise JournalCorrupt(f"{of} is no text: {error}") from error


def some_tasks(connection: sqlite3.Connection, run: Run, ordinals: Sequence[int]) -> list[Task]:
    """In the order of `ordinals`, without reading any other."""
    found: list[Task] = []
    for ordinal in ordinals:
        row = connection.execute(
            f"SELECT {TASK} FROM tasks k WHERE run = ? AND ordinal = ?",  # noqa: S608 - ours
            (run.id, ordinal),
        ).fetchone()
        if row is None:
            raise UsageError(f"run {run.spec.name!r} has no task number {ordinal}")
        found.append(task_of(*row))
    return found


def tasks(connection: sqlite3.Connection, run: Run) -> list[Task]:
    # Closed at once, also by an error: a reference to that would keep the snapshot with it.
    with closing(
        connection.execute(f"SELECT {TASK} FROM tasks k WHERE run = ? ORDER BY ordinal", (run.id,))  # noqa: S608 - ours
    ) as rows:
        return [task_of(*row) for row in rows]


_TRAJECTORY = """SELECT CAST(k.id AS BLOB), t.sample, t.id, t.task, t.status,
        t.settled IS NOT NULL, t.epoch, coalesce(h.length, 0),
        coalesce((SELECT 'process ' || w.pid || ' on ' || w.host FROM workers w
                  WHERE w.id = t.owner), ''),
        NOT k.current
    FROM trajectories t JOIN tasks k ON k.run = t.run AND k.ordinal = t.task
    LEFT JOIN heads h ON h.trajectory = t.id """


_Row = tuple[object, int, int, int, int, int, int, int, str, int]


def trajectory_rows(
    connection: sqlite3.Connection, run: str, where: str, parameters: tuple[object, ...]
) -> list[TrajectoryRow]:
    """The trajectories `where` of the run with that name, of tables `t` and, for tasks, `k`."""
    found: list[_Row] = connection.execute(_TRAJECTORY + where, parameters).fetchall()
    headless = [row[2] for row in found if row[4] and not row[7]]
    there = chain.lengths_without_heads(connection, headless)
    return [_trajectory_row(run, row, there.get(row[2], row[7])) for row in found]


def _trajectory_row(run: str, row: _Row, records: int) -> TrajectoryRow:
    name, sample, identity, ordinal, status, settled, epoch, _, owner, resting = row
    key = TrajectoryKey(run, text_of(name, of=f"the name of task {ordinal}"), sample)
    if not all(isinstance(number, int) for number in (sample, ordinal, epoch, records)):
        raise JournalCorrupt(f"{key}: its row does not decode ({row[1:8]!r:.100})")
    return TrajectoryRow(
        key=key,
        id=identity,
        ordinal=ordinal,
        status=status_of(status, of=str(key)),
        settled=bool(settled),
        epoch=epoch,
        records=records,
        owner=owner,
        resting=bool(resting),
    )


def trajectories(connection: sqlite3.Connection, run: Run) -> list[TrajectoryRow]:
    return trajectory_rows(
        connection, run.spec.name, "WHERE t.run = ? ORDER BY t.task, t.sample", (run.id,)
    )


def some_trajectories(
    connection: sqlite3.Connection, run: Run, ordinals: Sequence[int]
) -> list[TrajectoryRow]:
    """Of these tasks, without reading any other."""
    # One parameter, however many there are: the number of those has a limit.
    where = (
        "WHERE t.run = ? AND t.task IN (SELECT value FROM json_each(?)) ORDER BY t.task, t.sample"
    )
    wanted = msgspec.json.encode(ordinals).decode()
    return trajectory_rows(connection, run.spec.name, where, (run.id, wanted))


def listing(connection: sqlite3.Connection) -> list[RunRow]:
    found = connection.execute(
        "SELECT id, CAST(name AS BLOB), spec, changes, created FROM runs ORDER BY id"
    ).fetchall()
    named = [(run, text_of(name, of="the name of a run"), *row) for run, name, *row in found]
    return [_run_row(connection, run_of(row)) for row in named]


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
    is_open = connection.execute("SELECT 1 FROM streams WHERE run = ?", (run.id,)).fetchone()
    now = BootClock().read()
    leased = connection.execute(
        "SELECT host, pid, born, namespace FROM workers w "  # noqa: S608 - IS_LEASED is ours
        f"WHERE run = :run AND {IS_LEASED}",
        now.parameters | {"run": run.id},
    ).fetchall()
    workers = [WorkerIdentity(*row) for row in leased]
    return RunRow(
        name=run.spec.name,
        created=run.created,
        tasks=tasks_count,
        samples=run.spec.samples,
        by_status={
            status_of(status, of=f"a trajectory of run {run.spec.name!r}").name: total
            for status, total, _ in by_status
        },
        settled=sum(settled for _, _, settled in by_status),
        sealed=not is_open,
        live_workers=tuple(str(worker) for worker in workers if not is_gone(worker)),
    )
