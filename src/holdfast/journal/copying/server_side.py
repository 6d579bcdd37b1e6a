"""A run out of one journal and into another, as SQL: see `copy_runs`."""

from collections.abc import Sequence

from holdfast.journal.copying.run_image import LogRow, PlacedTrajectory, RunImage
from holdfast.journal.postgres.connection import ServerConnection, column
from holdfast.journal.postgres.runs import rename
from holdfast.records.encoding.codec import checksum
from holdfast.records.run import Run


async def read_image(connection: ServerConnection, run: Run) -> RunImage:
    async def rows(columns: str, table: str, order: str) -> list[tuple[object, ...]]:
        found = await connection.fetch(
            f"SELECT {columns} FROM holdfast.{table} WHERE run = $1 ORDER BY {order}",  # noqa: S608 - ours
            run.id,
        )
        return [tuple(row) for row in found]

    row = await connection.fetchrow(
        "SELECT spec, changes, created, NOT EXISTS (SELECT 1 FROM holdfast.streams WHERE run = $1) "
        "FROM holdfast.runs WHERE id = $1",
        run.id,
    )
    tasks = await connection.fetch(
        "SELECT k.ordinal, k.id, k.body, k.crc, g.current FROM holdfast.tasks k "
        "JOIN holdfast.task_groups g ON g.run = k.run AND g.task = k.ordinal "
        "WHERE k.run = $1 ORDER BY k.ordinal",
        run.id,
    )
    members = await rows("id, task, sample, status, epoch, settled", "trajectories", "task, sample")
    assert row is not None, "the caller found it"
    return RunImage(
        row[0],
        row[1],
        row[2],
        row[3],
        [(task[0], task[1], task[2], task[3], task[4]) for task in tasks],
        [PlacedTrajectory(*member) for member in members],  # type: ignore[arg-type]
        await rows("task, open, settled", "task_groups", "task"),  # type: ignore[arg-type]
        await rows("ordinal, name, step, digest", "versions", "ordinal"),  # type: ignore[arg-type]
        await rows("consumer, committed, seen", "consumers", "consumer"),  # type: ignore[arg-type]
        await rows(  # type: ignore[arg-type]
            "task, consumer, state, settled, step, place, reason", "deliveries", "consumer, task"
        ),
    )


async def read_logs(connection: ServerConnection, trajectories: Sequence[int]) -> list[LogRow]:
    rows = await connection.fetch(
        "SELECT trajectory, seq, epoch, body FROM holdfast.records "
        "WHERE trajectory = ANY($1::bigint[]) ORDER BY trajectory, seq",
        list(trajectories),
    )
    return [LogRow(*row) for row in rows]


async def begin(
    connection: ServerConnection, image: RunImage, name: str
) -> tuple[int, dict[int, int]]:
    """The new run, and the new number of each trajectory by its old one."""
    run: int = await connection.fetchval(
        "INSERT INTO holdfast.runs(name, spec, changes, created) VALUES ($1, $2, $3, $4) "
        "RETURNING id",
        name,
        image.named(name),
        image.changes,
        image.created,
    )
    await connection.execute("INSERT INTO holdfast.totals(run) VALUES ($1)", run)
    ordinals, names, bodies, crcs, current = _columns(image.tasks, 5)
    await connection.execute(
        "INSERT INTO holdfast.tasks(run, ordinal, id, body, crc) "
        "SELECT $1, * FROM unnest($2::integer[], $3::text[], $4::bytea[], $5::bigint[])",
        run, ordinals, names, bodies, crcs,
    )  # fmt: skip
    await connection.execute(
        "INSERT INTO holdfast.task_groups(run, task, current) "
        "SELECT $1, * FROM unnest($2::integer[], $3::boolean[])",
        run, ordinals, current,
    )  # fmt: skip
    members = [(row.task, row.sample, row.status, row.epoch) for row in image.trajectories]
    made = await connection.fetch(
        "INSERT INTO holdfast.trajectories(run, task, sample, status, epoch) "
        "SELECT $1, * FROM unnest($2::integer[], $3::integer[], $4::smallint[], $5::bigint[]) "
        "RETURNING id, task, sample",
        run, *_columns(members, 4),
    )  # fmt: skip
    new = {(row["task"], row["sample"]): row["id"] for row in made}
    return run, {row.id: new[row.task, row.sample] for row in image.trajectories}


def _columns(rows: Sequence[Sequence[object]], number: int) -> list[list[object]]:
    return [[row[at] for row in rows] for at in range(number)]


async def write_logs(connection: ServerConnection, rows: Sequence[LogRow]) -> None:
    """Whole logs, by their new numbers, of trajectories that have none yet."""
    await connection.execute(
        "INSERT INTO holdfast.records(trajectory, seq, epoch, crc, body) "
        "SELECT * FROM "
        "unnest($1::bigint[], $2::integer[], $3::bigint[], $4::bigint[], $5::bytea[])",
        [row.trajectory for row in rows],
        [row.seq for row in rows],
        [row.epoch for row in rows],
        [checksum(row.body, row.trajectory, row.seq, row.epoch) for row in rows],
        [row.body for row in rows],
    )
    lengths = {row.trajectory: row.seq + 1 for row in rows}
    await connection.execute(
        "UPDATE holdfast.trajectories t SET length = n.length "
        "FROM unnest($1::bigint[], $2::integer[]) AS n(id, length) WHERE t.id = n.id",
        list(lengths),
        list(lengths.values()),
    )


async def finish(
    connection: ServerConnection, image: RunImage, run: int, numbers: dict[int, int]
) -> None:
    """What is settled is settled in its order; the ledger follows."""
    base = await connection.fetchval(
        "UPDATE holdfast.counters SET value = value + $1 WHERE name = 'settled' "
        "RETURNING value - $1",
        len(image.places),
    )
    image = image.placed_from(base)
    settled = [(numbers[row.id], row.settled) for row in image.trajectories if row.settled]
    await connection.execute(
        "UPDATE holdfast.trajectories t SET settled = n.place "
        "FROM unnest($1::bigint[], $2::bigint[]) AS n(id, place) WHERE t.id = n.id",
        *_columns(settled, 2),
    )
    await connection.execute("SELECT holdfast.recount($1, $2)", run, column(image.tasks))
    await connection.execute(
        "INSERT INTO holdfast.versions "
        "SELECT $1, * FROM unnest($2::integer[], $3::text[], $4::bigint[], $5::text[])",
        run, *_columns(image.versions, 4),
    )  # fmt: skip
    for consumer in image.consumers:
        await connection.execute(
            "INSERT INTO holdfast.consumers "
            "VALUES ($1, $2, $3, $4, 1, '', 0, '', '', '-infinity', 0)",
            run, *consumer,
        )  # fmt: skip
    await connection.execute(
        "INSERT INTO holdfast.deliveries(run, task, consumer, state, settled, step, place, reason) "
        "SELECT $1, * FROM unnest($2::integer[], $3::text[], $4::smallint[], $5::bigint[], "
        "$6::bigint[], $7::integer[], $8::text[])",
        run, *_columns(image.deliveries, 7),
    )  # fmt: skip
    if not image.sealed:
        await connection.execute("INSERT INTO holdfast.streams VALUES ($1)", run)


async def name(connection: ServerConnection, runs: Sequence[tuple[Run, str]]) -> None:
    for run, given in runs:
        await rename(connection, run, given)
