"""Reads logs and checks their checksums, cuts torn logs, and opens trajectories again.

A bad record is never skipped. The bad record and all later records are set aside (table `cuts`),
the position is reported, and the trajectory continues after its last good record.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence

from holdfast.journal.entries import AppendEntry, BadRecord, lost
from holdfast.journal.rows import (
    contradictions,
    has_other_summary,
    history_of_row,
    kept_summary,
    summary_body,
)
from holdfast.journal.sql import groups, runs
from holdfast.journal.sql.store import LogRow, Row, Store, refuse_none
from holdfast.journal.types import Cut, Lease, TrajectoryRow
from holdfast.records.encoding.codec import checksum, decode, encode
from holdfast.records.errors import JournalCorrupt
from holdfast.records.history import History
from holdfast.records.run import Run
from holdfast.records.samples.summary import Summary, summarize
from holdfast.records.step import Record, Reopened
from holdfast.records.trajectory import Status, TrajectoryKey


def read(store: Store, trajectories: Sequence[int]) -> dict[int, list[Record] | JournalCorrupt]:
    """Returns the records of each log, or the error if the log has a bad record."""
    return {trajectory: _records(trajectory, rows) for trajectory, rows in store.logs(trajectories)}


def _records(trajectory: int, rows: Iterable[LogRow]) -> list[Record] | JournalCorrupt:
    try:
        return list(checked(trajectory, rows))
    except JournalCorrupt as error:
        return error


def checked(trajectory: int, rows: Iterable[LogRow]) -> Iterator[Record]:
    """Yields the good records in order. Raises `BadRecord` at the first bad record."""
    for expected, row in enumerate(rows):
        yield check_row(trajectory, expected, row)


def check_row(trajectory: int, expected: int, row: LogRow) -> Record:
    position, seq, epoch, crc, body = row
    if not isinstance(seq, int) or seq != expected:
        raise BadRecord(trajectory, expected, position, f"is missing (found {seq} instead)")
    # A damaged page can change the type of a column.
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


# --- what is kept of logs


def summaries(
    store: Store, run: Run, ordinals: Collection[int]
) -> list[tuple[TrajectoryRow, Summary | JournalCorrupt]]:
    """Returns the summaries of these tasks' trajectories. If no summary is stored, computes it from
    the log."""
    return [
        (row, kept or (_summary_of_log(store, row) if row.records else Summary()))
        for row, kept in runs.summarized(store, run, ordinals)
    ]


def _summary_of_log(store: Store, row: TrajectoryRow) -> Summary | JournalCorrupt:
    log = read(store, [row.id])[row.id]
    if isinstance(log, JournalCorrupt):
        return log
    try:
        return summarize(history_of_row(row, log))
    except JournalCorrupt as error:
        return error


_REWARDED = """SELECT k.id, t.id, t.task, t.sample, t.status, t.length, t.summary
    FROM trajectories t JOIN tasks k ON k.run = t.run AND k.ordinal = t.task AND k.current
    WHERE t.run = :run AND t.settled IS NOT NULL ORDER BY t.task, t.sample"""


def rewards(store: Store, run: Run) -> list[tuple[str, float]]:
    """Returns the rewards in the order of tasks. It decodes only the necessary parts of each
    row."""
    by_task: list[tuple[str, float]] = []
    for task, number, ordinal, sample, status, records, body in store.rows(_REWARDED, run=run.id):
        kept = kept_summary(body, number)
        summary: Summary | JournalCorrupt | None = kept
        if kept is None or (kept.records, kept.status) != (records, status):
            key = TrajectoryKey(run.spec.name, task, sample)
            state = runs.status_of(status, of=key)
            row = TrajectoryRow(key, number, ordinal, state, True, 0, records, "")
            summary = _summary_of_log(store, row)
        if isinstance(summary, Summary) and summary.reward is not None:
            by_task.append((task, summary.reward))
    return by_task


# --- torn logs


def cut_to_last_good(store: Store, lease: Lease) -> Cut | None:
    row = store.row("SELECT epoch FROM trajectories WHERE id = :id FOR UPDATE", id=lease.id)
    epoch = None if row is None else row[0]
    if epoch != lease.epoch:
        raise lost(lease, epoch)
    for _, rows in store.logs([lease.id]):
        return _cut_if_torn(store, lease.id, rows, name=str(lease.key), history=History())
    return None


def mend(store: Store, trajectory: int, rows: Iterable[LogRow], *, name: str) -> Cut | None:
    """Cuts the log if it is torn. Otherwise corrects the trajectory's row. Fences a worker that
    still believes that it holds the trajectory. The caller must hold the lock of the trajectory's
    row."""
    history = History()
    cut = _cut_if_torn(store, trajectory, rows, name=name, history=history)
    [(status, settled, summary)] = store.rows(
        "SELECT status, settled IS NOT NULL, summary FROM trajectories WHERE id = :id",
        id=trajectory,
    )
    if cut is not None or any(contradictions(history, status, settled=bool(settled))):
        _rewrite_row(store, trajectory, history)
    elif settled and has_other_summary(history, summary, trajectory):
        store.run(
            "UPDATE trajectories SET summary = :summary WHERE id = :id",
            summary=summary_body(summarize(history), trajectory),
            id=trajectory,
        )
    return cut


def _rewrite_row(store: Store, trajectory: int, history: History) -> None:
    unsettled = "" if history.finished is not None else "settled = NULL, "
    [(run, task)] = store.rows(
        f"UPDATE trajectories SET {unsettled}status = :status, owner = NULL, epoch = epoch + 1 "  # noqa: S608 - ours
        "WHERE id = :id RETURNING run, task",
        status=int(history.status),
        id=trajectory,
    )
    groups.reopen(store, run, [task])


def _cut_if_torn(
    store: Store, trajectory: int, rows: Iterable[LogRow], *, name: str, history: History
) -> Cut | None:
    """Cuts the log if it is torn, and returns the cut. Adds the good records to `history`."""
    try:
        for record in checked(trajectory, rows):
            history.take(record)
    except BadRecord as bad:
        return _cut_at(store, trajectory, bad, name=name, status=history.status)
    return None


def _cut_at(store: Store, trajectory: int, bad: BadRecord, *, name: str, status: Status) -> Cut:
    """Sets the bad record and all later records aside, and opens the trajectory again."""
    count = store.cut_log(trajectory, bad.seq, reason=bad.reason)
    row = store.row(
        "UPDATE trajectories SET settled = NULL, status = :status WHERE id = :id "
        "RETURNING run, task",
        status=int(status),
        id=trajectory,
    )
    if row is not None:
        groups.reopen(store, row[0], [row[1]])
    return Cut(name, trajectory, bad.seq, bad.position, count, bad.reason, status)


def reopen_failed(store: Store, run: Run, *, reason: str) -> int:
    """Opens settled FAILED trajectories again with new budgets. Skips groups that a consumer has.
    Returns the number of opened trajectories."""
    runs.lock(store, run)
    failed = store.rows(
        "SELECT t.id, t.task, t.epoch + 1, t.length, k.id, t.sample "
        "FROM trajectories t JOIN tasks k ON k.run = t.run AND k.ordinal = t.task "
        "WHERE t.run = :run AND t.status = 4 AND t.settled IS NOT NULL AND NOT EXISTS "
        "(SELECT 1 FROM deliveries d WHERE d.run = t.run AND d.task = t.task "
        "AND d.state IN (1, 2)) ORDER BY t.id",
        run=run.id,
    )
    if not failed:
        return 0
    # If a log only looks empty, new records would get the places of existing ones.
    for trajectory, length in runs.uncounted(
        store, [row[0] for row in failed if not row[3]]
    ).items():
        raise BadRecord(trajectory, length, 0, "is where the log ends, but its head is lost")
    store.run(
        "UPDATE trajectories SET settled = NULL, epoch = epoch + 1 WHERE id = ANY(:ids)",
        ids=[row[0] for row in failed],
    )
    body = encode(Reopened(reason, store.now().wall))
    store.append([[_reopening(run, row, body)] for row in failed], refuse_none)
    groups.reopen(store, run.id, [row[1] for row in failed])
    store.notify(run.id, "work")
    return len(failed)


def _reopening(run: Run, failed: Row, body: bytes) -> AppendEntry:
    trajectory, ordinal, epoch, length, task, sample = failed
    key = TrajectoryKey(run.spec.name, task, sample)
    lease = Lease(key, trajectory, ordinal, epoch, Status.FAILED, False, length)
    row = (trajectory, length, epoch, checksum(body, trajectory, length, epoch), body)
    return AppendEntry(lease, length, [row], len(body), Status.RUNNING, None)
