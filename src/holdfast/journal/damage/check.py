"""Is this journal whole? Reads everything and says what it finds; `repair` changes it.

Every checksum and every invariant that the writers rely on is verified, from SQLite's own pages to
the meaning of a trajectory's records (`logs`). A finding never ends the check: the report
names all of them, each with its place and with what to do about it. One trajectory is in memory
at a time, whatever the size of the journal.

`repair` is the only function here that writes: it cuts torn logs to their last good record and
makes broken links and indexes anew.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from msgspec import Struct, field, structs

from holdfast import crashpoint
from holdfast.journal.damage import tables
from holdfast.journal.damage.accept_losses import (
    STEP,
    accept,
    copy_to_mend,
    finish_mending,
    has_unfinished_mending,
    remove_copy,
    take_mended,
)
from holdfast.journal.damage.logs import Finding, TrajectoryState, check_log
from holdfast.journal.damage.repair_tables import damage_of, is_beyond_repair, mend_tables
from holdfast.journal.files import witness
from holdfast.journal.journal import Cut, WorkerIdentity, digest_of
from holdfast.journal.lease_clock import IS_LEASED, SECONDS_LEFT, BootClock, with_lease_end
from holdfast.journal.process import is_gone
from holdfast.journal.rows import decode_name
from holdfast.journal.sqlite.chain import COLUMNS, rows
from holdfast.journal.sqlite.cut import mend
from holdfast.journal.sqlite.journal import connect_to_read, plain_connect
from holdfast.journal.sqlite.losses import Loss, find_loss
from holdfast.journal.sqlite.names import refuse_second_name
from holdfast.journal.sqlite.schema import SALVAGE, explain, log_size, prepare
from holdfast.records.errors import JournalDamaged, JournalError, RunHeld

_REPORT = "please report it: no fault of a disk or a process explains it"


class Report(Struct):
    """What a journal holds, and what is wrong with it."""

    path: str
    runs: int = 0
    tasks: int = 0
    trajectories: int = 0
    records: int = 0
    blobs: int = 0
    cuts: int = 0
    deliveries: int = 0
    bytes: int = 0
    """Of the file and its write-ahead log."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not self.findings

    def add(self, where: str, what: str, remedy: str) -> None:
        self.findings.append(Finding(where, what, remedy))


def check(path: Path) -> Report:
    """Verifies the journal at `path`; a file that is no journal of ours raises instead."""
    if not path.exists():
        raise JournalError(f"there is no journal at {path}")
    refuse_second_name(path)
    report = Report(str(path), bytes=path.stat().st_size + log_size(path))
    loss = find_loss(path, thoroughly=True)
    if loss is not None:
        report.add("file" if loss.is_cut else "log", loss.what, loss.remedy)
    _check_content(path, report, without_log=loss is not None and loss.without_log)
    return report


def _check_content(path: Path, report: Report, *, without_log: bool) -> None:
    with closing(connect_to_read(path, without_log=without_log)) as connection:
        connection.execute("BEGIN")  # One snapshot: a live worker may go on writing meanwhile.
        for part in _PARTS:
            _guarded(part, connection, report)


def _guarded(
    part: Callable[[sqlite3.Connection, Report], None],
    connection: sqlite3.Connection,
    report: Report,
) -> None:
    """What cannot be read ends the part that needs it, not the check."""
    try:
        part(connection, report)
    except Exception as error:  # A damaged page can turn any column into anything.
        what = f"cannot be read: {type(error).__name__}: {error}"
        report.add(f"file, {part.__name__.strip('_')}", what, SALVAGE)


def _pages(connection: sqlite3.Connection, report: Report) -> None:
    """Of all tables; what an index alone explains is reported already, with its remedy."""
    known = {"ok", *(finding.what for finding in report.findings)}
    for (line,) in connection.execute("PRAGMA quick_check"):
        if line not in known:
            report.add("file", line, SALVAGE)


def _schema(connection: sqlite3.Connection, report: Report) -> None:
    report.findings += tables.schema(connection)


def _indexes(connection: sqlite3.Connection, report: Report) -> None:
    report.findings += tables.indexes(connection)


def _runs(connection: sqlite3.Connection, report: Report) -> None:
    for finding in tables.runs(connection):
        report.runs += 1
        report.findings += [] if finding is None else [finding]


def _tasks(connection: sqlite3.Connection, report: Report) -> None:
    for finding in tables.tasks(connection):
        report.tasks += 1
        report.findings += [] if finding is None else [finding]


def _numbers(connection: sqlite3.Connection, report: Report) -> None:
    report.findings += tables.numbers(connection)
    report.findings += tables.stray_heads(connection)
    report.findings += tables.counts(connection)


# The cast: damage can make text that is no UTF-8, and could not even be read.
_TRAJECTORIES = """SELECT t.id, CAST(coalesce(r.name, '?') || '/' || coalesce(k.id, t.task) || '/'
        || t.sample AS BLOB), t.status, t.settled IS NOT NULL, t.epoch, r.id IS NULL OR k.id IS NULL
    FROM trajectories t LEFT JOIN runs r ON r.id = t.run
    LEFT JOIN tasks k ON k.run = t.run AND k.ordinal = t.task ORDER BY t.id"""


# Found without links: these are held against the records, not the records against them.
_FOUND = (
    """CREATE TEMP TABLE found AS SELECT trajectory, position,
        CASE WHEN seq >= 0 THEN seq ELSE 'none' END seq FROM records ORDER BY 1, 3, 2""",
    """CREATE INDEX temp.found_log ON found(trajectory, seq, position)""",
)
_LOG = f"""SELECT {COLUMNS} FROM found f CROSS JOIN records r ON r.position = f.position
    WHERE f.trajectory = ? ORDER BY f.seq, f.position"""  # noqa: S608 - COLUMNS is ours


def _records(connection: sqlite3.Connection, report: Report) -> None:
    """Comes first: after an error elsewhere SQLite makes no more tables."""
    del report
    for statement in _FOUND:
        connection.execute(statement)


def _trajectories(connection: sqlite3.Connection, report: Report) -> None:
    found = connection.execute("SELECT 1 FROM sqlite_temp_schema WHERE name = 'found'").fetchone()
    for number, named, status, settled, epoch, orphan in connection.execute(_TRAJECTORIES):
        report.trajectories += 1
        name = decode_name(named)
        if not isinstance(status, int) or not isinstance(epoch, int):
            report.add(name, "has a row that does not decode", SALVAGE)
            continue
        if orphan:
            report.add(name, "belongs to no run or no task of the journal", _REPORT)
        state = TrajectoryState(number, name, status, bool(settled), epoch)
        log = connection.execute(_LOG, (number,)) if found else rows(connection, number)
        with closing(log):
            read, findings = check_log(connection, state, log)
        report.records += read
        report.findings += findings


def _orphans(connection: sqlite3.Connection, report: Report) -> None:
    for trajectory, number in connection.execute(
        "SELECT r.trajectory, count(*) FROM records r LEFT JOIN trajectories t "
        "ON t.id = r.trajectory WHERE t.id IS NULL GROUP BY r.trajectory"
    ):
        report.records += number
        report.add(
            f"trajectory {trajectory}",
            f"{number} records of a trajectory that is not there",
            _REPORT,
        )


def _blobs(connection: sqlite3.Connection, report: Report) -> None:
    for digest, body in connection.execute(
        "SELECT CAST(digest AS BLOB), CAST(body AS BLOB) FROM blobs"
    ):
        report.blobs += 1
        if not isinstance(body, bytes) or digest_of(body) != digest:
            report.add(
                f"blob {bytes(digest).hex()[:12]}",
                "does not match its digest",
                "restore it from a copy, or roll out anew what was restored from it",
            )


def _cuts(connection: sqlite3.Connection, report: Report) -> None:
    (report.cuts,) = connection.execute("SELECT count(*) FROM cuts").fetchone()


# A member that a repair has cut is open again although its group was delivered.
_DELIVERED = """SELECT CAST(coalesce(r.name, '?') AS BLOB), CAST(d.consumer AS BLOB), d.task,
        d.step, count(t.id), count(t.settled OR t.id IN (SELECT trajectory FROM cuts))
    FROM deliveries d LEFT JOIN runs r ON r.id = d.run
    LEFT JOIN trajectories t ON t.run = d.run AND t.task = d.task
    WHERE d.state IN (1, 2) GROUP BY d.run, d.consumer, d.task, d.step"""
_TWICE = """SELECT run, consumer, task, count(*) FROM deliveries NOT INDEXED
    GROUP BY run, consumer, task HAVING count(*) > 1"""
_PLACES = """SELECT run, consumer, step, count(*) FROM deliveries WHERE place IS NOT NULL
    GROUP BY run, consumer, step
    HAVING max(place) + 1 != count(*) OR count(DISTINCT place) != count(*)"""
_STATES = """SELECT run, consumer, task, state FROM deliveries
    WHERE state NOT IN (0, 1, 2, 3) OR (state IN (0, 3) AND step IS NOT NULL)
    OR (state IN (2, 3) AND reason = '') OR typeof(settled) != 'integer'"""


def _deliveries(connection: sqlite3.Connection, report: Report) -> None:
    remedy = "rewind the consumer to a step before this one"
    for run, consumer, task, step, members, settled in connection.execute(_DELIVERED):
        report.deliveries += 1
        if not members or members != settled:
            group = f"task {task} of run {decode_name(run)}"
            what = f"{group} was delivered before all its members were settled"
            report.add(f"consumer {decode_name(consumer)}, step {step}", what, remedy)
    for run, consumer, task, times in connection.execute(_TWICE):
        what = f"task {task} of run {run} was delivered {times} times"
        report.add(f"consumer {consumer}", what, remedy)
    for run, consumer, step, number in connection.execute(_PLACES):
        what = f"the {number} groups of its batch in run {run} are not numbered 0, 1, 2, …"
        report.add(f"consumer {consumer}, step {step}", what, remedy)
    for run, consumer, task, state in connection.execute(_STATES):
        what = f"its entry for task {task} of run {run} makes no sense (state {state!r:.20})"
        report.add(f"consumer {consumer}", what, remedy)


def _consumers(connection: sqlite3.Connection, report: Report) -> None:
    for run, consumer in connection.execute(
        "SELECT c.run, c.consumer FROM consumers c LEFT JOIN runs r ON r.id = c.run "
        "WHERE r.id IS NULL OR typeof(c.committed) NOT IN ('integer', 'null')"
    ):
        report.add(f"consumer {consumer}", f"its commit in run {run} makes no sense", _REPORT)


def _versions(connection: sqlite3.Connection, report: Report) -> None:
    report.findings += tables.versions(connection)


_PARTS = (
    _records,
    _schema,
    _indexes,
    _pages,
    _runs,
    _tasks,
    _numbers,
    _trajectories,
    _orphans,
    _blobs,
    _cuts,
    _deliveries,
    _consumers,
    _versions,
)


# --- repair ------------------------------------------------------------------------------------


def repair(path: Path) -> list[Cut]:
    """Cuts every torn log to its last good record; `RunHeld` while a live worker holds a run.

    What is cut is set aside in the journal, and the trajectories are open again: the next run
    goes on from their last good records. Links that do not lead to their records are made anew,
    and so are indexes, which loses nothing. All of it is done, or nothing.
    """
    accept_loss(path)
    connect_to_read(path).close()  # An empty file is no journal, and is not made one.
    try:
        connection = plain_connect(f"{path.absolute().as_uri()}?mode=rw")
    except sqlite3.Error as error:
        raise explain(error, path) from error
    try:
        prepare(connection, path)
        if is_beyond_repair(connection):
            raise JournalDamaged(f"journal {path} is damaged, too much for a repair: {SALVAGE}")
        damage = damage_of(connection)
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("BEGIN IMMEDIATE")
        _refuse_if_held(connection)
        # What is torn is looked for among all records: once, not for each log.
        connection.execute("CREATE INDEX records_repair ON records(trajectory, seq)")
        mend_tables(connection, damage)
        cuts = list(_cut_all(connection))
        connection.execute("DROP INDEX records_repair")
        crashpoint.reach(STEP)
        connection.execute("COMMIT")
        crashpoint.reach(STEP)
    except sqlite3.Error as error:
        raise explain(error, path) from error
    finally:
        connection.close()
    return cuts


def accept_loss(path: Path) -> str | None:
    """Where commits are lost, goes back to the last one that is there, and says what was given up.

    `RunHeld` while a live worker holds a run. None where nothing is lost.
    """
    if not path.exists():
        raise JournalError(f"there is no journal at {path}")
    refuse_second_name(path)
    witness.remove_unfinished(path)
    if has_unfinished_mending(path):
        return _kept("was cut, and its mending was interrupted", finish_mending(path))
    loss = find_loss(path, thoroughly=True)
    if loss is None:
        return None
    with closing(connect_to_read(path, without_log=loss.without_log)) as connection:
        _refuse_if_held(connection)
    if loss.is_cut:
        return _mend_cut(path, loss)
    return accept(path, _choose_whole(path, loss))


def _choose_whole(path: Path, loss: Loss) -> Loss:
    """With or without the log: what is left must be a state that the journal was in once.

    The file alone may hold half of a log that was being copied. With the good part of its log
    it is whole unless more than that was copied; what else is torn in it is mended afterwards.
    """
    findings = _findings(path, without_log=loss.without_log)
    if not findings or (not loss.without_log and _is_repairable(path)):
        return loss
    if not loss.is_foreign and not _findings(path, without_log=not loss.without_log):
        return structs.replace(loss, without_log=not loss.without_log)
    what = f"{findings[0].where}: {findings[0].what.splitlines()[0]}"
    raise JournalDamaged(
        f"journal {path} {loss.what}; neither the file alone nor with the good part of its log is "
        f"whole ({what}), and nothing was touched: put the right log back, or {SALVAGE}"
    )


def _findings(path: Path, *, without_log: bool) -> list[Finding]:
    report = Report(str(path))
    try:
        _check_content(path, report, without_log=without_log)
    except JournalError as error:
        report.add("file", str(error), SALVAGE)
    return report.findings


def _is_repairable(path: Path) -> bool:
    with closing(connect_to_read(path)) as connection:
        return not is_beyond_repair(connection)


def _mend_cut(path: Path, loss: Loss) -> str:
    """All of it or nothing: what cannot be made whole stays as it is, refused by every command."""
    copy = copy_to_mend(path)
    try:
        cuts = repair(copy)
        findings = check(copy).findings
        if findings:
            raise JournalDamaged(
                f"journal {path} {loss.what}, which cannot be mended ({findings[0]}): {SALVAGE}"
            )
        kept = take_mended(path, copy)
    finally:
        remove_copy(copy)
    lost = sum(cut.lost for cut in cuts)
    return _kept(f"{loss.what}; {lost} records were cut", kept)


def _kept(what: str, kept: Path) -> str:
    return f"{what}; the file as it was is kept in {kept.name}"


def _refuse_if_held(connection: sqlite3.Connection) -> None:
    for run, seconds, *identity in connection.execute(
        f"SELECT r.name, {SECONDS_LEFT}, w.host, w.pid, w.born, w.namespace "  # noqa: S608 - both are ours
        f"FROM workers w JOIN runs r ON r.id = w.run WHERE {IS_LEASED}",
        BootClock().read().parameters,
    ):
        worker = WorkerIdentity(*identity)
        if not is_gone(worker):
            held = f"run {run!r} is being worked on by {with_lease_end(worker, seconds)}"
            raise RunHeld(f"{held}; stop it, then repair")


def _cut_all(connection: sqlite3.Connection) -> Iterator[Cut]:
    for number, name, *_ in connection.execute(_TRAJECTORIES):
        cut = mend(connection, number, name=decode_name(name))
        if cut is not None:
            # A worker that still believes to hold it has the log as it was before.
            connection.execute(
                "UPDATE trajectories SET owner = NULL, epoch = epoch + 1 WHERE id = ?", (number,)
            )
            yield cut
