"""Reading a log with its checksums, and cutting it where it is torn.

A bad record is never skipped: everything from it on is set aside (table `cuts`), the position is
reported, and the trajectory goes on from the last good record.
"""

import sqlite3
from collections.abc import Generator, Iterator
from contextlib import closing, suppress

from holdfast.journal.entries import Row, lost
from holdfast.journal.journal import Cut, Lease
from holdfast.journal.rows import contradictions
from holdfast.journal.sqlite import chain
from holdfast.journal.sqlite.appends import insert, read_log_end
from holdfast.journal.sqlite.chain import BadRecord
from holdfast.journal.sqlite.runs import NOW
from holdfast.records.encoding.codec import checksum, decode, encode
from holdfast.records.errors import JournalCorrupt
from holdfast.records.history import History
from holdfast.records.run import Run
from holdfast.records.step import Record, Reopened
from holdfast.records.trajectory import Status


def decode_rows(connection: sqlite3.Connection, trajectory: int) -> list[Record]:
    return list(rows_of(connection, trajectory))


def rows_of(connection: sqlite3.Connection, trajectory: int) -> Iterator[Record]:
    """The good records in order; at the first bad one it raises `BadRecord`."""
    return _checked(trajectory, chain.rows(connection, trajectory))


def _checked(trajectory: int, rows: Generator[chain.Row, None, None]) -> Iterator[Record]:
    with closing(rows):  # An error would keep it open.
        for expected, row in enumerate(rows):
            yield check_row(trajectory, expected, row)


def check_row(
    trajectory: int, expected: int, row: tuple[int, object, object, int, object]
) -> Record:
    position, seq, epoch, crc, body = row
    if not isinstance(seq, int) or seq != expected:
        raise BadRecord(trajectory, expected, position, f"is missing (found {seq} instead)")
    # A damaged page can turn a column into one of another type.
    if (
        not isinstance(body, bytes)
        or not isinstance(epoch, int)
        or crc != checksum(body, trajectory=trajectory, seq=seq, epoch=epoch)
    ):
        raise BadRecord(trajectory, expected, position, "fails its checksum")
    try:
        return decode(body)
    except JournalCorrupt as error:
        raise BadRecord(trajectory, seq, position, str(error)) from error


_LAST = f"""SELECT t.id, h.length - 1, {chain.COLUMNS} FROM trajectories t
    JOIN heads h ON h.trajectory = t.id JOIN records r ON r.position = h.position
    WHERE t.run = ? AND t.settled IS NOT NULL"""  # noqa: S608 - ours


def last_records(connection: sqlite3.Connection, run: Run) -> dict[int, Record]:
    found: dict[int, Record] = {}
    with closing(connection.execute(_LAST, (run.id,))) as rows:
        for trajectory, seq, *row in rows:
            with suppress(BadRecord):  # Reading the whole log says what is wrong with it.
                found[trajectory] = check_row(trajectory, seq, (*row,))
    return found


def cut_to_last_good(connection: sqlite3.Connection, lease: Lease) -> Cut | None:
    (epoch,) = connection.execute(
        "SELECT epoch FROM trajectories WHERE id = ?", (lease.id,)
    ).fetchone()
    if epoch != lease.epoch:
        raise lost(lease, epoch)
    rows, name = rows_of(connection, lease.id), str(lease.key)
    return _cut_if_torn(connection, lease.id, rows, name=name, history=History())


def mend(connection: sqlite3.Connection, trajectory: int, *, name: str) -> Cut | None:
    """Cuts the log if it is torn, and else makes its links and its status anew if they are wrong.

    A head that is lost, or counts too few, is made anew first: more records than it knows of are
    there, so none is lost. Reads without links: needs an index of the records if it is to be done
    for many.
    """
    if chain.length(connection, trajectory) < len(chain.found(connection, trajectory)):
        chain.relink(connection, trajectory)
    rows, history = (
        _checked(trajectory, chain.rows_without_links(connection, trajectory)),
        History(),
    )
    cut = _cut_if_torn(connection, trajectory, rows, name=name, history=history)
    if cut is None:
        chain.relink(connection, trajectory)
        _mend_status(connection, trajectory, history)
    return cut


def _mend_status(connection: sqlite3.Connection, trajectory: int, history: History) -> None:
    """What the row says of the log follows from it."""
    status, settled = connection.execute(
        "SELECT status, settled IS NOT NULL FROM trajectories WHERE id = ?", (trajectory,)
    ).fetchone()
    if any(contradictions(history, status, settled=bool(settled))):
        connection.execute(
            "UPDATE trajectories SET status = ?, settled = CASE WHEN ? THEN settled END, "
            "owner = NULL, epoch = epoch + 1 WHERE id = ?",
            (int(history.status), history.finished is not None, trajectory),
        )


def _cut_if_torn(
    connection: sqlite3.Connection,
    trajectory: int,
    records: Iterator[Record],
    *,
    name: str,
    history: History,
) -> Cut | None:
    """`history`: one to fold the records into."""
    try:
        for record in records:
            history.take(record)
    except BadRecord as bad:
        return cut_at(connection, trajectory, bad, name=name, status=history.status)
    return None


def cut_at(
    connection: sqlite3.Connection, trajectory: int, bad: BadRecord, *, name: str, status: Status
) -> Cut:
    """Sets the bad record and all after it aside; the trajectory is open again."""
    cut = chain.found(connection, trajectory)[bad.seq :]
    connection.executemany(
        # Damage can also make nothing of a column.
        "INSERT INTO cuts SELECT NULL, trajectory, coalesce(seq, -1), coalesce(epoch, -1), "
        "coalesce(crc, -1), coalesce(body, x''), ? FROM records WHERE position = ?",
        [(bad.reason, position) for position in cut],
    )
    for table in ("links", "records"):
        connection.executemany(
            f"DELETE FROM {table} WHERE position = ?",  # noqa: S608 - ours
            [(position,) for position in cut],
        )
    chain.relink(connection, trajectory)
    connection.execute(
        "UPDATE trajectories SET settled = NULL, status = ? WHERE id = ?",
        (int(status), trajectory),
    )
    return Cut(name, trajectory, bad.seq, bad.position, len(cut), bad.reason, status)


def _refuse_headless(connection: sqlite3.Connection, trajectories: list[int]) -> None:
    """What is written behind a head that is lost would take the places of what is there."""
    for trajectory, there in chain.lengths_without_heads(connection, trajectories).items():
        raise BadRecord(trajectory, there, 0, "is where the log ends, but its head is lost")


def reopen_failed(connection: sqlite3.Connection, run: Run, reason: str) -> int:
    """Groups that a consumer has are left alone: its batches stay what they were."""
    (now,) = connection.execute(f"SELECT {NOW}").fetchone()
    body = encode(Reopened(reason, now))
    failed = connection.execute(
        "SELECT t.id, t.epoch + 1, coalesce(h.length, 0) FROM trajectories t "
        "LEFT JOIN heads h ON h.trajectory = t.id "
        "WHERE t.run = ? AND t.status = ? AND t.settled IS NOT NULL AND NOT EXISTS "
        "(SELECT 1 FROM deliveries d WHERE d.run = t.run AND d.task = t.task "
        "AND d.state IN (1, 2))",
        (run.id, int(Status.FAILED)),
    ).fetchall()
    _refuse_headless(connection, [trajectory for trajectory, _, length in failed if not length])
    log_end = read_log_end(connection, [trajectory for trajectory, _, _ in failed])
    rows: list[Row] = []
    for trajectory, epoch, seq in failed:
        rows.append((trajectory, seq, epoch, checksum(body, trajectory, seq, epoch), body))
        log_end.heads[trajectory].length = seq + 1
    insert(connection, rows, log_end)
    connection.executemany(
        "UPDATE trajectories SET settled = NULL, status = ?, epoch = ? WHERE id = ?",
        [(int(Status.RUNNING), epoch, trajectory) for trajectory, epoch, _ in failed],
    )
    return len(failed)
