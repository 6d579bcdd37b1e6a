"""Reading logs with their checksums, and cutting them where they are torn.

A bad record is never skipped: everything from it on is set aside (table `cuts`), and the trajectory
goes on from the last good record.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress

from holdfast.journal.entries import lost
from holdfast.journal.journal import Cut, Lease
from holdfast.journal.postgres.connection import Row, ServerConnection
from holdfast.journal.postgres.runs import NOW, lock, notify, reopened
from holdfast.journal.rows import contradictions
from holdfast.records.encoding.codec import checksum, decode, encode
from holdfast.records.errors import JournalCorrupt
from holdfast.records.history import History
from holdfast.records.run import Run
from holdfast.records.step import Record, Reopened
from holdfast.records.trajectory import Status


class BadLogRecord(JournalCorrupt):
    """The first bad record of a log."""

    def __init__(self, trajectory: int, seq: int, reason: str):
        super().__init__(f"record {seq} of trajectory {trajectory}: {reason}")
        self.seq = seq
        self.reason = reason


async def read(
    connection: ServerConnection, trajectories: Sequence[int]
) -> dict[int, list[Record] | JournalCorrupt]:
    """The records of each; of a log with a bad one, the error."""
    logs = await rows_of(connection, trajectories)
    return {trajectory: _records(trajectory, *log) for trajectory, log in logs.items()}


def _records(trajectory: int, length: int | None, rows: list[Row]) -> list[Record] | JournalCorrupt:
    try:
        return list(checked(trajectory, length, rows))
    except JournalCorrupt as error:
        return error


async def rows_of(
    connection: ServerConnection, trajectories: Sequence[int]
) -> dict[int, tuple[int | None, list[Row]]]:
    """The length by the head, and the rows, as one statement sees them."""
    rows = await connection.fetch(
        "SELECT t.id, t.length, r.seq, r.epoch, r.crc, r.body FROM holdfast.trajectories t "
        "LEFT JOIN holdfast.records r ON r.trajectory = t.id "
        "WHERE t.id = ANY($1::bigint[]) ORDER BY t.id, r.seq",
        list(trajectories),
    )
    found: dict[int, tuple[int | None, list[Row]]] = {
        trajectory: (None, []) for trajectory in trajectories
    }
    for row in rows:
        _, before = found[row["id"]]
        found[row["id"]] = (row["length"], before)
        if row["seq"] is not None:
            before.append(row)
    return found


def checked(trajectory: int, length: int | None, rows: Sequence[Row]) -> Iterator[Record]:
    """The good records in order; at the first bad one it raises `BadLogRecord`."""
    for expected, row in enumerate(rows):
        yield check_row(trajectory, expected, row)
    if length is not None and length != len(rows):
        reason = f"is where the log ends, but its head counts {length} records"
        raise BadLogRecord(trajectory, min(len(rows), length), reason)


def check_row(trajectory: int, expected: int, row: Row) -> Record:
    seq, epoch, crc, body = row["seq"], row["epoch"], row["crc"], row["body"]
    if seq != expected:
        raise BadLogRecord(trajectory, expected, f"is missing (found {seq} instead)")
    if crc != checksum(body, trajectory=trajectory, seq=seq, epoch=epoch):
        raise BadLogRecord(trajectory, expected, "fails its checksum")
    try:
        return decode(body)
    except JournalCorrupt as error:
        raise BadLogRecord(trajectory, seq, str(error)) from error


async def last_records(connection: ServerConnection, run: Run) -> dict[int, Record]:
    rows = await connection.fetch(
        "SELECT t.id, t.length - 1 AS expected, r.seq, r.epoch, r.crc, r.body "
        "FROM holdfast.trajectories t "
        "JOIN holdfast.records r ON r.trajectory = t.id AND r.seq = t.length - 1 "
        "WHERE t.run = $1 AND t.settled IS NOT NULL",
        run.id,
    )
    found: dict[int, Record] = {}
    for row in rows:
        with suppress(BadLogRecord):  # Reading the whole log says what is wrong with it.
            found[row["id"]] = check_row(row["id"], row["expected"], row)
    return found


async def cut_to_last_good(connection: ServerConnection, lease: Lease) -> Cut | None:
    epoch = await connection.fetchval(
        "SELECT epoch FROM holdfast.trajectories WHERE id = $1 FOR UPDATE", lease.id
    )
    if epoch != lease.epoch:
        raise lost(lease, epoch)
    return await mend(connection, lease.id, name=str(lease.key))


async def mend(
    connection: ServerConnection, trajectory: int, *, name: str, history: History | None = None
) -> Cut | None:
    """Cuts the log if it is torn; the caller holds the trajectory's row. `history`: one to fold
    the records into."""
    logs = await rows_of(connection, [trajectory])
    history = History() if history is None else history
    try:
        for record in checked(trajectory, *logs[trajectory]):
            history.take(record)
    except BadLogRecord as bad:
        return await _cut_at(connection, trajectory, bad, name=name, status=history.status)
    return None


async def mend_status(
    connection: ServerConnection, trajectory: int, history: History, *, status: int, settled: bool
) -> None:
    """What the row says of the log follows from it."""
    if not any(contradictions(history, status, settled=settled)):
        return
    place = await connection.fetchrow(
        "UPDATE holdfast.trajectories SET status = $2, settled = CASE WHEN $3 THEN settled END, "
        "owner = NULL, epoch = epoch + 1 WHERE id = $1 RETURNING run, task, settled",
        trajectory,
        int(history.status),
        history.finished is not None,
    )
    assert place is not None, "its row is held"
    if place["settled"] is None:
        await reopened(connection, place["run"], [place["task"]])


async def _cut_at(
    connection: ServerConnection, trajectory: int, bad: BadLogRecord, *, name: str, status: Status
) -> Cut:
    """Sets the bad record and all after it aside; the trajectory is open again."""
    rows = await connection.fetch(
        "WITH cut AS (DELETE FROM holdfast.records WHERE trajectory = $1 AND seq >= $2 "
        "RETURNING trajectory, seq, epoch, crc, body) "
        "INSERT INTO holdfast.cuts(trajectory, seq, epoch, crc, body, reason) "
        "SELECT trajectory, seq, epoch, crc, body, $3 FROM cut ORDER BY seq RETURNING position",
        trajectory,
        bad.seq,
        bad.reason,
    )
    place = await connection.fetchrow(
        "UPDATE holdfast.trajectories SET settled = NULL, status = $2, length = $3 WHERE id = $1 "
        "RETURNING run, task",
        trajectory,
        int(status),
        bad.seq,
    )
    assert place is not None, "its row is held"
    await reopened(connection, place["run"], [place["task"]])
    position = rows[0]["position"] if rows else 0
    return Cut(name, trajectory, bad.seq, position, len(rows), bad.reason, status)


async def reopen_failed(connection: ServerConnection, run: Run, reason: str) -> int:
    """Groups that a consumer has are left alone: its batches stay what they were."""
    await lock(connection, run)
    now = await connection.fetchval(f"SELECT {NOW}")
    body = encode(Reopened(reason, now))
    failed = await connection.fetch(
        "SELECT t.id, t.task, t.epoch + 1 AS epoch, t.length FROM holdfast.trajectories t "
        "WHERE t.run = $1 AND t.status = $2 AND t.settled IS NOT NULL AND NOT EXISTS "
        "(SELECT 1 FROM holdfast.deliveries d WHERE d.run = t.run AND d.task = t.task "
        "AND d.state IN (1, 2)) ORDER BY t.id FOR UPDATE OF t",
        run.id,
        int(Status.FAILED),
    )
    if not failed:
        return 0
    await connection.execute(
        "INSERT INTO holdfast.records(trajectory, seq, epoch, crc, body) "
        "SELECT n.*, $5 FROM unnest($1::bigint[], $2::integer[], $3::bigint[], $4::bigint[]) n",
        [row["id"] for row in failed],
        [row["length"] for row in failed],
        [row["epoch"] for row in failed],
        [checksum(body, row["id"], row["length"], row["epoch"]) for row in failed],
        body,
    )
    await connection.execute(
        "UPDATE holdfast.trajectories SET settled = NULL, status = $2, epoch = epoch + 1, "
        "length = length + 1 WHERE id = ANY($1::bigint[])",
        [row["id"] for row in failed],
        int(Status.RUNNING),
    )
    await reopened(connection, run.id, [row["task"] for row in failed])
    await notify(connection, run.id, "work")
    return len(failed)
