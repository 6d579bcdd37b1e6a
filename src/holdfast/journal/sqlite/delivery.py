"""Delivery to a consumer, as SQL: reserved, committed with a checkpoint, given back on a restore.

A group is delivered when all its members are settled. The primary key (run, consumer, task) makes
a second delivery impossible; asking again for the same step returns the same groups (I6).
"""

import sqlite3

from holdfast.journal.journal import Batch, TrajectoryRow
from holdfast.journal.sqlite.runs import trajectory_rows
from holdfast.records.errors import UsageError
from holdfast.records.group import GroupPolicy, valid_members
from holdfast.records.run import Run

_READY = """SELECT t.task FROM trajectories t
    JOIN tasks k ON k.run = t.run AND k.ordinal = t.task AND k.current
    LEFT JOIN deliveries d ON d.run = t.run AND d.consumer = ? AND d.task = t.task
    WHERE t.run = ? AND d.task IS NULL
    GROUP BY t.task HAVING count(*) = count(t.settled) ORDER BY max(t.settled)"""


def next_batch(
    connection: sqlite3.Connection, run: Run, consumer: str, step: int, *, groups: int
) -> Batch:
    reserved = _reserved(connection, run, consumer, step)
    if not reserved:
        last = last_step(connection, run, consumer)
        if last is not None and step <= last:
            raise UsageError(
                f"consumer {consumer!r} is at step {last}; step {step} got an empty batch or is "
                "in the past. Ask for a later step, or rewind first"
            )
        reserved = _reserve(connection, run, consumer, step, groups)
    return Batch(consumer, step, tuple(_members(connection, run, ordinal) for ordinal in reserved))


def _reserved(connection: sqlite3.Connection, run: Run, consumer: str, step: int) -> list[int]:
    rows = connection.execute(
        "SELECT task FROM deliveries WHERE run = ? AND consumer = ? AND step = ? ORDER BY place",
        (run.id, consumer, step),
    )
    return [ordinal for (ordinal,) in rows]


def _reserve(
    connection: sqlite3.Connection, run: Run, consumer: str, step: int, groups: int
) -> list[int]:
    ready = connection.execute(_READY, (consumer, run.id)).fetchall()
    wanted: list[int] = []
    for (ordinal,) in ready:
        if len(wanted) == groups:
            break
        if _kept(run.spec.group, _members(connection, run, ordinal)):
            wanted.append(ordinal)
    connection.executemany(
        "INSERT INTO deliveries(run, consumer, task, step, place) VALUES (?, ?, ?, ?, ?)",
        [(run.id, consumer, ordinal, step, place) for place, ordinal in enumerate(wanted)],
    )
    return wanted


def _kept(policy: GroupPolicy, members: tuple[TrajectoryRow, ...]) -> bool:
    valid = valid_members([member.status for member in members])
    return valid > 0 and policy.keeps(valid, of=len(members))


def _members(connection: sqlite3.Connection, run: Run, ordinal: int) -> tuple[TrajectoryRow, ...]:
    where = "WHERE t.run = ? AND t.task = ? ORDER BY t.sample"
    return tuple(trajectory_rows(connection, run.spec.name, where, (run.id, ordinal)))


def last_step(connection: sqlite3.Connection, run: Run, consumer: str) -> int | None:
    """The last step that was delivered or that a checkpoint holds."""
    (step,) = connection.execute(
        "SELECT max(step) FROM (SELECT step FROM deliveries WHERE run = :run AND consumer = :name "
        "UNION ALL SELECT committed FROM consumers WHERE run = :run AND consumer = :name)",
        {"run": run.id, "name": consumer},
    ).fetchone()
    return None if step is None else int(step)


def commit(connection: sqlite3.Connection, run: Run, consumer: str, step: int) -> None:
    connection.execute(
        "INSERT INTO consumers VALUES (?, ?, ?) ON CONFLICT DO UPDATE "
        "SET committed = max(committed, excluded.committed)",
        (run.id, consumer, step),
    )


def rewind(connection: sqlite3.Connection, run: Run, consumer: str, step: int) -> int:
    # The restored checkpoint is the truth, also when a later one had been committed.
    connection.execute(
        "UPDATE consumers SET committed = min(committed, ?) WHERE run = ? AND consumer = ?",
        (step, run.id, consumer),
    )
    return connection.execute(
        "DELETE FROM deliveries WHERE run = ? AND consumer = ? AND step > ?",
        (run.id, consumer, step),
    ).rowcount
