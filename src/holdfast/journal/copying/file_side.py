"""A run out of one journal and into another, as SQL: see `copy_runs`."""

import sqlite3
from collections.abc import Sequence

from holdfast.journal.copying.run_image import LogRow, PlacedTrajectory, RunImage
from holdfast.journal.sqlite import chain
from holdfast.journal.sqlite.appends import insert, read_log_end
from holdfast.journal.sqlite.runs import last_id, rename
from holdfast.records.encoding.codec import checksum
from holdfast.records.run import Run


def read_image(connection: sqlite3.Connection, run: Run) -> RunImage:
    def rows(columns: str, table: str, order: str) -> list[tuple[object, ...]]:
        query = f"SELECT {columns} FROM {table} WHERE run = ? ORDER BY {order}"  # noqa: S608 - ours
        return connection.execute(query, (run.id,)).fetchall()

    spec, changes, created = connection.execute(
        "SELECT spec, changes, created FROM runs WHERE id = ?", (run.id,)
    ).fetchone()
    is_open = connection.execute("SELECT 1 FROM streams WHERE run = ?", (run.id,)).fetchone()
    members = rows("id, task, sample, status, epoch, settled", "trajectories", "task, sample")
    return RunImage(
        spec,
        changes,
        created,
        is_open is None,
        [
            (ordinal, name, body, crc, bool(current))  # type: ignore[misc]
            for ordinal, name, body, crc, current in rows(
                "ordinal, id, CAST(body AS BLOB), crc, current", "tasks", "ordinal"
            )
        ],
        [PlacedTrajectory(*row) for row in members],  # type: ignore[arg-type]
        rows("task, open, settled", "task_groups", "task"),  # type: ignore[arg-type]
        rows("ordinal, name, step, digest", "versions", "ordinal"),  # type: ignore[arg-type]
        rows("consumer, committed, seen", "consumers", "consumer"),  # type: ignore[arg-type]
        rows(  # type: ignore[arg-type]
            "task, consumer, state, settled, step, place, reason", "deliveries", "consumer, task"
        ),
    )


def read_logs(connection: sqlite3.Connection, trajectories: Sequence[int]) -> list[LogRow]:
    return [
        LogRow(trajectory, row[1], row[2], row[4])
        for trajectory in trajectories
        for row in chain.rows(connection, trajectory)
    ]


def begin(connection: sqlite3.Connection, image: RunImage, name: str) -> tuple[int, dict[int, int]]:
    """The new run, and the new number of each trajectory by its old one."""
    run = last_id(connection, "runs") + 1
    connection.execute(
        "INSERT INTO runs(id, name, spec, changes, created) VALUES (?, ?, ?, ?, ?)",
        (run, name, image.named(name), image.changes, image.created),
    )
    connection.executemany(
        "INSERT INTO tasks(run, ordinal, id, body, crc) VALUES (?, ?, ?, ?, ?)",
        [(run, *task[:4]) for task in image.tasks],
    )
    first = last_id(connection, "trajectories") + 1
    numbers = {row.id: number for number, row in enumerate(image.trajectories, first)}
    connection.executemany(
        "INSERT INTO trajectories(id, run, task, sample, status, epoch) VALUES (?, ?, ?, ?, ?, ?)",
        [
            (numbers[row.id], run, row.task, row.sample, row.status, row.epoch)
            for row in image.trajectories
        ],
    )
    return run, numbers


def write_logs(connection: sqlite3.Connection, rows: Sequence[LogRow]) -> None:
    """Whole logs, by their new numbers, of trajectories that have none yet."""
    log_end = read_log_end(connection, sorted({row.trajectory for row in rows}))
    for row in rows:
        log_end.heads[row.trajectory].length = row.seq + 1
    insert(
        connection,
        [
            (row.trajectory, row.seq, row.epoch,
             checksum(row.body, row.trajectory, row.seq, row.epoch), row.body)
            for row in rows
        ],
        log_end,
    )  # fmt: skip


def finish(
    connection: sqlite3.Connection, image: RunImage, run: int, numbers: dict[int, int]
) -> None:
    """What is settled is settled in its order; the ledger follows."""
    (base,) = connection.execute("SELECT value FROM counters WHERE name = 'settled'").fetchone()
    connection.execute(
        "UPDATE counters SET value = value + ? WHERE name = 'settled'", (len(image.places),)
    )
    image = image.placed_from(base)
    # In the order of their places: a group gets the place of the member that settles last.
    settled = sorted((row.settled, numbers[row.id]) for row in image.trajectories if row.settled)
    connection.executemany("UPDATE trajectories SET settled = ? WHERE id = ?", settled)
    connection.executemany(
        "UPDATE tasks SET current = 0 WHERE run = ? AND ordinal = ?",
        [(run, ordinal) for ordinal, *_, current in image.tasks if not current],
    )
    connection.executemany(
        "INSERT INTO versions VALUES (?, ?, ?, ?, ?)", [(run, *row) for row in image.versions]
    )
    connection.executemany(
        "INSERT INTO consumers VALUES (?, ?, ?, ?, 1, '', 0, '', '', 0, '', 0, 0)",
        [(run, *consumer) for consumer in image.consumers],
    )
    connection.executemany(
        "INSERT INTO deliveries(run, task, consumer, state, settled, step, place, reason) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [(run, *delivery) for delivery in image.deliveries],
    )
    if not image.sealed:
        connection.execute("INSERT INTO streams VALUES (?)", (run,))


def name(connection: sqlite3.Connection, runs: Sequence[tuple[Run, str]]) -> None:
    for run, given in runs:
        rename(connection, run, given)
