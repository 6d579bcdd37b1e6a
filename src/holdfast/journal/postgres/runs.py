"""Runs, their tasks, trajectories and weight versions, as SQL.

Whatever changes a run as a whole holds the run's row meanwhile, so that two such changes, and a
change and a delivery, come one after the other.
"""

from collections.abc import Collection, Sequence
from typing import Any

import asyncpg
import msgspec
from msgspec import structs

from holdfast.journal.journal import RunProgress, RunRow, TrajectoryRow, WorkerIdentity
from holdfast.journal.postgres.connection import Row, ServerConnection
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
from holdfast.records.errors import UsageError
from holdfast.records.group import GroupPolicy
from holdfast.records.run import RecordedCommand, Run, RunChange, RunSpec
from holdfast.records.samples.version import WeightVersion
from holdfast.records.task import Task
from holdfast.records.trajectory import Status, TrajectoryKey

NOW = "extract(epoch FROM clock_timestamp())::double precision"
"""The database's own clock, in seconds since the epoch."""
PLAN_TASKS = 2000
"""Tasks that are written in one statement."""
_encode = msgspec.msgpack.encode


def check_text(what: str, *texts: str) -> None:
    """PostgreSQL keeps any text but one with NUL in it."""
    for text in texts:
        if "\0" in text:
            raise UsageError(f"{what} {text!r:.100} has a NUL in it, which PostgreSQL cannot keep")


async def lock(connection: ServerConnection, run: Run, how: str = "UPDATE") -> Run:
    """As it is recorded now, and stays until the transaction ends; `UsageError` when it is gone."""
    row = await connection.fetchrow(
        f"SELECT id, name, spec, changes, created FROM holdfast.runs WHERE id = $1 FOR {how}",  # noqa: S608 - ours
        run.id,
    )
    if row is None:
        raise UsageError(f"run {run.spec.name!r} is no longer in the journal: it was deleted")
    return run_of(row)


async def notify(connection: ServerConnection, run: int, what: str) -> None:
    await connection.execute("SELECT pg_notify('holdfast', $1)", f"{run} {what}")


async def create(
    connection: ServerConnection, spec: RunSpec, tasks: Sequence[Task], *, sealed: bool
) -> Run:
    check_text("a run's name", spec.name)
    if await find(connection, spec.name) is not None:
        raise name_taken(spec.name)
    try:
        row = await connection.fetchrow(
            f"INSERT INTO holdfast.runs(name, spec, changes, created) VALUES ($1, $2, $3, {NOW}) "  # noqa: S608 - NOW is ours
            "RETURNING id, name, spec, changes, created",
            spec.name,
            _encode(spec),
            _encode(()),
        )
    except asyncpg.UniqueViolationError as error:
        raise name_taken(spec.name) from error
    assert row is not None, "it was just inserted"
    run = run_of(row)
    await connection.execute("INSERT INTO holdfast.totals(run) VALUES ($1)", run.id)
    if not sealed:
        await connection.execute("INSERT INTO holdfast.streams VALUES ($1)", run.id)
    await _plan(connection, run.id, spec.samples, list(enumerate(tasks)))
    return run


async def find(connection: ServerConnection, name: str) -> Run | None:
    if "\0" in name:
        return None
    row = await connection.fetchrow(
        "SELECT id, name, spec, changes, created FROM holdfast.runs WHERE name = $1", name
    )
    return None if row is None else run_of(row)


async def policy_of(connection: ServerConnection, run: Run) -> GroupPolicy:
    """As it is now: it may have been amended."""
    return (await lock(connection, run, "SHARE")).spec.group


async def amend(
    connection: ServerConnection,
    run: Run,
    spec: RunSpec,
    now: Sequence[Task],
    differences: Sequence[str],
) -> Run:
    """Goes on with another spec: new tasks are planned, missing ones rest, changes are kept."""
    recorded = (await lock(connection, run)).spec
    before = {task.id: task for task in await tasks(connection, run)}
    known = {name: ordinal for ordinal, name in enumerate(before)}
    held = await held_groups(connection, run)
    anew = tasks_scored_anew(recorded, spec, before, now, held=held)
    spec = amended_spec(recorded, spec)
    changes = (
        *run.changes,
        RunChange(tuple(differences), await connection.fetchval(f"SELECT {NOW}")),
    )
    await connection.execute(
        "UPDATE holdfast.runs SET spec = $2, changes = $3 WHERE id = $1",
        run.id,
        _encode(spec),
        _encode(changes),
    )
    await connection.execute(
        "UPDATE holdfast.task_groups SET current = false WHERE run = $1", run.id
    )
    fresh = [task for task in now if task.id not in known]
    planned = [(known[task.id], task) for task in now if task.id in known]
    planned += list(enumerate(fresh, max(known.values(), default=-1) + 1))
    await _plan(connection, run.id, spec.samples, planned)
    await _unsettle_outcomes(connection, run.id, [known[name] for name in anew])
    # Another policy may keep groups that were dismissed, and groups may have grown.
    await connection.execute(
        "DELETE FROM holdfast.deliveries WHERE run = $1 AND state IN (0, 3)", run.id
    )
    await connection.execute("UPDATE holdfast.consumers SET seen = 0 WHERE run = $1", run.id)
    await connection.execute(
        "UPDATE holdfast.totals SET (planned, settled, failed) = (SELECT "
        "coalesce(sum(members), 0), coalesce(sum(members - open), 0), coalesce(sum(failed), 0) "
        "FROM holdfast.task_groups WHERE run = $1 AND current) WHERE run = $1",
        run.id,
    )
    await notify(connection, run.id, "work")
    return Run(id=run.id, spec=spec, changes=changes, created=run.created)


async def annotate(
    connection: ServerConnection,
    run: Run,
    tags: Sequence[str] | None,
    command: RecordedCommand | None,
    training: str | None,
) -> Run:
    found = await lock(connection, run)
    spec = structs.replace(
        found.spec,
        tags=found.spec.tags if tags is None else check_tags(tags),
        command=command or found.spec.command,
        training=training or found.spec.training,
    )
    await connection.execute(
        "UPDATE holdfast.runs SET spec = $2 WHERE id = $1", run.id, _encode(spec)
    )
    return structs.replace(found, spec=spec)


async def rename(connection: ServerConnection, run: Run, name: str) -> Run:
    """Nothing but the run's own row has its name."""
    found = await lock(connection, run)
    spec = structs.replace(found.spec, name=name)
    spec.check(tasks=0)
    try:
        await connection.execute(
            "UPDATE holdfast.runs SET name = $2, spec = $3 WHERE id = $1",
            run.id,
            name,
            _encode(spec),
        )
    except asyncpg.UniqueViolationError as error:
        raise name_taken(name) from error
    return structs.replace(found, spec=spec)


async def held_groups(connection: ServerConnection, run: Run) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in await connection.fetch(
        "SELECT d.consumer, k.id FROM holdfast.deliveries d "
        "JOIN holdfast.tasks k ON k.run = d.run AND k.ordinal = d.task "
        "WHERE d.run = $1 AND d.state IN (1, 2) ORDER BY d.consumer, d.task",
        run.id,
    ):
        found.setdefault(row["consumer"], []).append(row["id"])
    return found


async def _unsettle_outcomes(connection: ServerConnection, run: int, tasks: Sequence[int]) -> None:
    """They are finished and only scored again. No consumer has any of them."""
    rows = await connection.fetch(
        "UPDATE holdfast.trajectories SET settled = NULL, epoch = epoch + 1 "
        "WHERE run = $1 AND task = ANY($3::integer[]) AND status = ANY($2::smallint[]) "
        "AND settled IS NOT NULL RETURNING task",
        run,
        [int(Status.COMPLETED), int(Status.TRUNCATED)],
        tasks,
    )
    await reopened(connection, run, [row["task"] for row in rows])


async def rescore(connection: ServerConnection, run: Run, trajectories: Collection[int]) -> int:
    """Groups that a consumer has are left alone: its batches stay what they were."""
    await lock(connection, run)
    rows = await connection.fetch(
        "UPDATE holdfast.trajectories t SET settled = NULL, epoch = epoch + 1 "
        "WHERE t.run = $1 AND t.id = ANY($3::bigint[]) AND t.status = ANY($2::smallint[]) "
        "AND t.settled IS NOT NULL AND NOT EXISTS (SELECT 1 FROM holdfast.deliveries d "
        "WHERE d.run = t.run AND d.task = t.task AND d.state IN (1, 2)) RETURNING t.task",
        run.id,
        [int(Status.COMPLETED), int(Status.TRUNCATED)],
        list(trajectories),
    )
    if rows:
        await reopened(connection, run.id, [row["task"] for row in rows])
        await notify(connection, run.id, "work")
    return len(rows)


async def reopened(connection: ServerConnection, run: int, tasks: Sequence[int]) -> None:
    """Groups that are not ready any more, and are looked at again when they are."""
    ordinals = sorted(set(tasks))
    if not ordinals:
        return
    await connection.execute(
        "DELETE FROM holdfast.deliveries "
        "WHERE run = $1 AND task = ANY($2::integer[]) AND state IN (0, 3)",
        run,
        ordinals,
    )
    await connection.execute("SELECT holdfast.recount($1, $2)", run, ordinals)


async def _plan(
    connection: ServerConnection, run: int, samples: int, tasks: Sequence[tuple[int, Task]]
) -> None:
    check_text("a task's id", *(task.id for _, task in tasks))
    for at in range(0, len(tasks), PLAN_TASKS):
        await _plan_some(connection, run, samples, tasks[at : at + PLAN_TASKS])


async def _plan_some(
    connection: ServerConnection, run: int, samples: int, tasks: Sequence[tuple[int, Task]]
) -> None:
    ordinals = [ordinal for ordinal, _ in tasks]
    bodies, checksums = zip(*(task_body(task, ordinal) for ordinal, task in tasks), strict=True)
    await connection.execute(
        "INSERT INTO holdfast.tasks(run, ordinal, id, body, crc) "
        "SELECT $1, * FROM unnest($2::integer[], $3::text[], $4::bytea[], $5::bigint[]) "
        "ON CONFLICT(run, ordinal) DO UPDATE SET body = excluded.body, crc = excluded.crc",
        run,
        ordinals,
        [task.id for _, task in tasks],
        bodies,
        checksums,
    )
    await connection.execute(
        "INSERT INTO holdfast.task_groups(run, task) SELECT $1, * FROM unnest($2::integer[]) "
        "ON CONFLICT(run, task) DO UPDATE SET current = true",
        run,
        ordinals,
    )
    # A group that a consumer has gets no more members: its batch stays what it was.
    await connection.execute(
        "INSERT INTO holdfast.trajectories(run, task, sample) "
        "SELECT $1, k.task, s.sample "
        "FROM unnest($2::integer[]) WITH ORDINALITY AS k(task, number), "
        "generate_series(0, $3::integer - 1) AS s(sample) "
        "WHERE NOT EXISTS (SELECT 1 FROM holdfast.deliveries d "
        "WHERE d.run = $1 AND d.task = k.task AND d.state IN (1, 2)) "
        "AND NOT EXISTS (SELECT 1 FROM holdfast.trajectories t "
        "WHERE t.run = $1 AND t.task = k.task AND t.sample = s.sample) "
        "ORDER BY k.number, s.sample",
        run,
        ordinals,
        samples,
    )
    await connection.execute("SELECT holdfast.recount($1, $2)", run, ordinals)


async def admit(connection: ServerConnection, run: Run, tasks: Sequence[Task]) -> int:
    await lock(connection, run)
    known = await _known(connection, run, tasks)
    for task in tasks:
        if task.id in known and known[task.id] != _encode(task):
            raise other_task(run, task.id)
    fresh = distinct(run, [task for task in tasks if task.id not in known])
    if not fresh:
        return 0
    now = await progress(connection, run)
    if now.sealed:
        raise run_sealed(run, fresh[0].id)
    check_size(run, planned=now.planned, more=len(fresh))
    last = await connection.fetchval(
        "SELECT coalesce(max(ordinal), -1) FROM holdfast.tasks WHERE run = $1", run.id
    )
    await _plan(connection, run.id, run.spec.samples, list(enumerate(fresh, last + 1)))
    await notify(connection, run.id, "work")
    return len(fresh)


async def _known(connection: ServerConnection, run: Run, tasks: Sequence[Task]) -> dict[str, bytes]:
    check_text("a task's id", *(task.id for task in tasks))
    rows = await connection.fetch(
        "SELECT id, body FROM holdfast.tasks WHERE run = $1 AND id = ANY($2::text[])",
        run.id,
        list({task.id for task in tasks}),
    )
    return {row["id"]: row["body"] for row in rows}


async def seal(connection: ServerConnection, run: Run) -> None:
    await lock(connection, run)
    await connection.execute("DELETE FROM holdfast.streams WHERE run = $1", run.id)
    await notify(connection, run.id, "work")
    await notify(connection, run.id, "ready")


async def unseal(connection: ServerConnection, run: Run) -> None:
    await lock(connection, run)
    await connection.execute(
        "INSERT INTO holdfast.streams VALUES ($1) ON CONFLICT DO NOTHING", run.id
    )


async def progress(connection: ServerConnection, run: Run) -> RunProgress:
    row = await connection.fetchrow(
        "SELECT planned, settled, failed, "
        "NOT EXISTS (SELECT 1 FROM holdfast.streams WHERE run = $1) AS sealed "
        "FROM holdfast.totals WHERE run = $1",
        run.id,
    )
    if row is None:
        return RunProgress(0, 0, 0, sealed=True)
    return RunProgress(row["planned"], row["settled"], row["failed"], sealed=row["sealed"])


# --- weight versions


async def publish_version(
    connection: ServerConnection, run: Run, name: str, *, step: int, digest: str
) -> int:
    check_text("a weight version", name, digest)
    await lock(connection, run)
    row = await connection.fetchrow(
        "SELECT ordinal, digest FROM holdfast.versions WHERE run = $1 AND name = $2", run.id, name
    )
    if row is not None:
        return known_version(run, name, digest, known=(row["ordinal"], row["digest"]))
    ordinal: int = await connection.fetchval(
        "INSERT INTO holdfast.versions "
        "SELECT $1, coalesce(max(ordinal), 0) + 1, $2, $3, $4 "
        "FROM holdfast.versions WHERE run = $1 RETURNING ordinal",
        run.id,
        name,
        step,
        digest,
    )
    return ordinal


async def versions(connection: ServerConnection, run: Run, name: str | None) -> list[WeightVersion]:
    rows = await connection.fetch(
        "SELECT ordinal, name, step, digest FROM holdfast.versions "
        "WHERE run = $1 AND ($2::text IS NULL OR name = $2) ORDER BY ordinal",
        run.id,
        name,
    )
    return [WeightVersion(*row) for row in rows]


# --- tasks and trajectories


async def some_tasks(connection: ServerConnection, run: Run, ordinals: Sequence[int]) -> list[Task]:
    """In the order of `ordinals`, without reading any other."""
    rows = await connection.fetch(
        "SELECT ordinal, id, body, crc FROM holdfast.tasks "
        "WHERE run = $1 AND ordinal = ANY($2::integer[])",
        run.id,
        _possible(ordinals),
    )
    found = {row["ordinal"]: row for row in rows}
    for ordinal in ordinals:
        if ordinal not in found:
            raise UsageError(f"run {run.spec.name!r} has no task number {ordinal}")
    return [task_of(*found[ordinal]) for ordinal in ordinals]


async def tasks(connection: ServerConnection, run: Run) -> list[Task]:
    rows = await connection.fetch(
        "SELECT ordinal, id, body, crc FROM holdfast.tasks WHERE run = $1 ORDER BY ordinal", run.id
    )
    return [task_of(*row) for row in rows]


_TRAJECTORY = """SELECT k.id AS task, t.sample, t.id, t.task AS ordinal, t.status,
        t.settled IS NOT NULL AS settled, t.epoch, t.length,
        coalesce('process ' || w.pid || ' on ' || w.host, '') AS owner, NOT g.current AS resting
    FROM holdfast.trajectories t JOIN holdfast.tasks k ON k.run = t.run AND k.ordinal = t.task
    JOIN holdfast.task_groups g ON g.run = t.run AND g.task = t.task
    LEFT JOIN holdfast.workers w ON w.id = t.owner """


async def trajectory_rows(
    connection: ServerConnection, run: str, where: str, *parameters: Any
) -> list[TrajectoryRow]:
    """The trajectories `where` of the run with that name, of tables `t` and, for tasks, `k`."""
    rows = await connection.fetch(_TRAJECTORY + where, *parameters)
    return [_trajectory_row(run, row) for row in rows]


def _trajectory_row(run: str, row: Row) -> TrajectoryRow:
    key = TrajectoryKey(run, row["task"], row["sample"])
    return TrajectoryRow(
        key=key,
        id=row["id"],
        ordinal=row["ordinal"],
        status=status_of(row["status"], of=str(key)),
        settled=row["settled"],
        epoch=row["epoch"],
        records=row["length"],
        owner=row["owner"],
        resting=row["resting"],
    )


async def trajectories(connection: ServerConnection, run: Run) -> list[TrajectoryRow]:
    where = "WHERE t.run = $1 ORDER BY t.task, t.sample"
    return await trajectory_rows(connection, run.spec.name, where, run.id)


async def some_trajectories(
    connection: ServerConnection, run: Run, ordinals: Sequence[int]
) -> list[TrajectoryRow]:
    """Of these tasks, without reading any other."""
    where = "WHERE t.run = $1 AND t.task = ANY($2::integer[]) ORDER BY t.task, t.sample"
    return await trajectory_rows(connection, run.spec.name, where, run.id, _possible(ordinals))


def _possible(ordinals: Sequence[int]) -> list[int]:
    """Without what is no number of the server's."""
    return [ordinal for ordinal in set(ordinals) if 0 <= ordinal < 2**31]


async def listing(connection: ServerConnection) -> list[RunRow]:
    rows = await connection.fetch(
        "SELECT id, name, spec, changes, created FROM holdfast.runs ORDER BY id"
    )
    return [await _run_row(connection, run_of(row)) for row in rows]


async def _run_row(connection: ServerConnection, run: Run) -> RunRow:
    by_status = await connection.fetch(
        "SELECT t.status, count(*) AS total, count(t.settled) AS settled "
        "FROM holdfast.trajectories t JOIN holdfast.task_groups g "
        "ON g.run = t.run AND g.task = t.task AND g.current "
        "WHERE t.run = $1 GROUP BY t.status ORDER BY t.status",
        run.id,
    )
    row = await connection.fetchrow(
        "SELECT (SELECT count(*) FROM holdfast.task_groups WHERE run = $1 AND current) AS tasks, "
        "NOT EXISTS (SELECT 1 FROM holdfast.streams WHERE run = $1) AS sealed",
        run.id,
    )
    assert row is not None, "a SELECT without FROM has one row"
    leased = await connection.fetch(
        "SELECT host, pid, born, namespace FROM holdfast.workers WHERE run = $1 "
        "AND NOT holdfast.is_expired(lease_until, lease_seconds) ORDER BY id",
        run.id,
    )
    workers = [WorkerIdentity(*worker) for worker in leased]
    return RunRow(
        name=run.spec.name,
        created=run.created,
        tasks=row["tasks"],
        samples=run.spec.samples,
        by_status={
            status_of(found["status"], of=f"a trajectory of run {run.spec.name!r}").name: found[
                "total"
            ]
            for found in by_status
        },
        settled=sum(found["settled"] for found in by_status),
        sealed=row["sealed"],
        live_workers=tuple(str(worker) for worker in workers if not is_gone(worker)),
    )
