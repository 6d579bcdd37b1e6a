"""The SQLite schema: its version, its migrations, and what is refused at the door.

A file that is no journal, or a journal of a newer version, is refused before anything is written
to it. Older versions are brought forward in one transaction when they are opened to write, and
read as they are.

SQLite's own troubles get our words here, too: what is the matter with which file, and what to do.
"""

import contextlib
import errno
import os
import sqlite3
import time
from pathlib import Path

from holdfast import crashpoint
from holdfast.journal.files.wal import PAGE_SIZE, beside, log_of
from holdfast.journal.sqlite.commits import give_identity, identity_of
from holdfast.records.errors import (
    JournalDamaged,
    JournalError,
    JournalFull,
    JournalNewer,
    NotAJournal,
)

APPLICATION_ID = 0x484F4C44
VERSION = 5

# How long to wait for another process that is creating the same journal.
CREATE_SECONDS = 30.0

SALVAGE = (
    "go back to a copy of it, or salvage what is left into a new file with `sqlite3 FILE "
    ".recover`; check the disk"
)

_BEGIN = "a run that names it begins it"

# What lies beside a journal and belongs to it: SQLite's log and its index, the witness of its
# commits, a gateway's secret.
_PARTS = ("-wal", "-shm", "-witness", ".gateway-secret")
# Where a SQLite file says what it is.
_MAGIC = b"SQLite format 3\0"
_APPLICATION_AT = 68
# The byte of its -shm that whoever writes locks.
_WRITE_LOCK_AT = 120

# What follows from other rows, and is kept so that nothing has to be counted: how many members of
# each group are open, and its place in the order of settling (its last member's); how far a run is.
GROUPS = """SELECT run, task, count(*) - count(settled) AS open,
        CASE WHEN count(*) = count(settled) THEN max(settled) END AS settled
    FROM trajectories NOT INDEXED GROUP BY run, task"""
TOTALS = """SELECT t.run, count(*) AS planned, count(t.settled) AS settled,
        sum(t.settled IS NOT NULL AND t.status = 4) AS failed
    FROM trajectories t NOT INDEXED JOIN tasks k ON k.run = t.run AND k.ordinal = t.task
    WHERE k.current GROUP BY t.run"""
_OPEN_NOW = "open + (NEW.settled IS NULL) - (OLD.settled IS NULL)"
# Consumers and deliveries of version 3, from the tables with these names, as those of version 4.
_CONSUMERS_3 = """SELECT u.run, u.consumer, c.committed, 0 AS seen, 0 AS epoch, '' AS host,
        0 AS pid, '' AS born, '' AS namespace, 0.0 AS lease_until, '' AS clock, 0.0 AS clock_until,
        0.0 AS lease_seconds
    FROM (SELECT run, consumer FROM {deliveries} UNION SELECT run, consumer FROM {consumers}) u
    LEFT JOIN {consumers} c ON c.run = u.run AND c.consumer = u.consumer"""
_DELIVERIES_3 = """SELECT d.run, d.task, d.consumer, 1 AS state, coalesce(
        (SELECT max(t.settled) FROM trajectories t WHERE t.run = d.run AND t.task = d.task), 0)
        AS settled, d.step, d.place, '' AS reason FROM {deliveries} d"""

_MIGRATIONS: dict[int, tuple[str, ...]] = {
    1: (
        """CREATE TABLE runs(
            id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, spec BLOB NOT NULL,
            changes BLOB NOT NULL, created REAL NOT NULL)""",
        """CREATE TABLE tasks(
            run INTEGER NOT NULL REFERENCES runs(id), ordinal INTEGER NOT NULL, id TEXT NOT NULL,
            body BLOB NOT NULL, crc INTEGER NOT NULL, current INTEGER NOT NULL DEFAULT 1,
            UNIQUE(run, ordinal), UNIQUE(run, id))""",
        # Never the same id twice: a worker that was buried must not be taken for its successor.
        """CREATE TABLE workers(
            id INTEGER PRIMARY KEY AUTOINCREMENT, run INTEGER NOT NULL REFERENCES runs(id),
            host TEXT NOT NULL,
            pid INTEGER NOT NULL, born TEXT NOT NULL, lease_until REAL NOT NULL)""",
        """CREATE TABLE trajectories(
            id INTEGER PRIMARY KEY, run INTEGER NOT NULL REFERENCES runs(id),
            task INTEGER NOT NULL, sample INTEGER NOT NULL, status INTEGER NOT NULL DEFAULT 0,
            epoch INTEGER NOT NULL DEFAULT 0, owner INTEGER REFERENCES workers(id),
            settled INTEGER, UNIQUE(run, task, sample))""",
        """CREATE INDEX trajectories_open ON trajectories(run, task) WHERE settled IS NULL""",
        # A rowid table that only grows at its end, with the unique index beside it: keyed by
        # (trajectory, seq) without rowids it measured 3.7 times slower.
        """CREATE TABLE records(
            position INTEGER PRIMARY KEY, trajectory INTEGER NOT NULL, seq INTEGER NOT NULL,
            epoch INTEGER NOT NULL, crc INTEGER NOT NULL, body BLOB NOT NULL)""",
        """CREATE UNIQUE INDEX records_seq ON records(trajectory, seq)""",
        """CREATE TABLE cuts(
            position INTEGER PRIMARY KEY, trajectory INTEGER NOT NULL, seq INTEGER NOT NULL,
            epoch INTEGER NOT NULL, crc INTEGER NOT NULL, body BLOB NOT NULL,
            reason TEXT NOT NULL)""",
        """CREATE TABLE blobs(digest BLOB PRIMARY KEY, body BLOB NOT NULL)""",
        """CREATE TABLE deliveries(
            run INTEGER NOT NULL, consumer TEXT NOT NULL, task INTEGER NOT NULL,
            step INTEGER NOT NULL, place INTEGER NOT NULL, PRIMARY KEY(run, consumer, task))""",
        """CREATE INDEX deliveries_step ON deliveries(run, consumer, step)""",
        """CREATE TABLE consumers(
            run INTEGER NOT NULL, consumer TEXT NOT NULL, committed INTEGER NOT NULL,
            PRIMARY KEY(run, consumer))""",
        # Each writer's last committed batch: after an error at COMMIT it shows what happened.
        """CREATE TABLE writers(name TEXT PRIMARY KEY, batch INTEGER NOT NULL)""",
        # The order in which trajectories settle: deliveries follow it.
        """CREATE TABLE counters(name TEXT PRIMARY KEY, value INTEGER NOT NULL)""",
        """INSERT INTO counters VALUES ('settled', 0)""",
    ),
    # Records are found by their links, see `chain`: the index cost half of every append.
    2: (
        """CREATE TABLE links(position INTEGER PRIMARY KEY, previous INTEGER NOT NULL)""",
        """CREATE TABLE heads(
            trajectory INTEGER PRIMARY KEY, position INTEGER NOT NULL, length INTEGER NOT NULL)""",
        """INSERT INTO links SELECT position, lag(position, 1, 0)
            OVER (PARTITION BY trajectory ORDER BY seq) FROM records""",
        """INSERT INTO heads SELECT trajectory, max(position), max(seq) + 1 FROM records
            GROUP BY trajectory""",
        """DROP INDEX records_seq""",
        # An older Holdfast that has the file open would go on adding records without links. It
        # writes its batch number with every transaction: now it finds no table for it, and fails.
        """ALTER TABLE writers RENAME TO batches""",
    ),
    # Where a worker's pid means something, and its lease on a clock that nobody sets.
    3: (
        """ALTER TABLE workers ADD COLUMN namespace TEXT NOT NULL DEFAULT ''""",
        """ALTER TABLE workers ADD COLUMN clock TEXT NOT NULL DEFAULT ''""",
        """ALTER TABLE workers ADD COLUMN clock_until REAL NOT NULL DEFAULT 0""",
        """ALTER TABLE workers ADD COLUMN lease_seconds REAL NOT NULL DEFAULT 0""",
    ),
    # Runs that take tasks while they are worked on, weight versions, and a ledger with one end for
    # each group. Nothing that is done for a step reads more in a large run than in a small one.
    4: (
        """CREATE TABLE streams(run INTEGER PRIMARY KEY REFERENCES runs(id))""",
        """CREATE TABLE versions(
            run INTEGER NOT NULL REFERENCES runs(id), ordinal INTEGER NOT NULL, name TEXT NOT NULL,
            step INTEGER NOT NULL, digest TEXT NOT NULL,
            PRIMARY KEY(run, ordinal), UNIQUE(run, name))""",
        """CREATE TABLE task_groups(
            run INTEGER NOT NULL, task INTEGER NOT NULL, open INTEGER NOT NULL, settled INTEGER,
            PRIMARY KEY(run, task)) WITHOUT ROWID""",
        f"""INSERT INTO task_groups {GROUPS}""",
        """CREATE INDEX task_groups_settled ON task_groups(run, settled)
            WHERE settled IS NOT NULL""",
        """CREATE TABLE totals(
            run INTEGER PRIMARY KEY, planned INTEGER NOT NULL, settled INTEGER NOT NULL,
            failed INTEGER NOT NULL)""",
        f"""INSERT INTO totals {TOTALS}""",
        """ALTER TABLE deliveries RENAME TO deliveries_3""",
        """ALTER TABLE consumers RENAME TO consumers_3""",
        """CREATE TABLE consumers(
            run INTEGER NOT NULL REFERENCES runs(id), consumer TEXT NOT NULL, committed INTEGER,
            seen INTEGER NOT NULL, epoch INTEGER NOT NULL, host TEXT NOT NULL,
            pid INTEGER NOT NULL, born TEXT NOT NULL, namespace TEXT NOT NULL,
            lease_until REAL NOT NULL, clock TEXT NOT NULL, clock_until REAL NOT NULL,
            lease_seconds REAL NOT NULL, PRIMARY KEY(run, consumer))""",
        "INSERT INTO consumers "
        + _CONSUMERS_3.format(deliveries="deliveries_3", consumers="consumers_3"),
        # `settled` is the group's place in the order of settling, `place` its own in the batch.
        """CREATE TABLE deliveries(
            run INTEGER NOT NULL, task INTEGER NOT NULL, consumer TEXT NOT NULL,
            state INTEGER NOT NULL, settled INTEGER NOT NULL, step INTEGER, place INTEGER,
            reason TEXT NOT NULL, PRIMARY KEY(run, task, consumer))""",
        "INSERT INTO deliveries " + _DELIVERIES_3.format(deliveries="deliveries_3"),
        """DROP TABLE deliveries_3""",
        """DROP TABLE consumers_3""",
        """CREATE INDEX deliveries_ready ON deliveries(run, consumer, settled) WHERE state = 0""",
        """CREATE INDEX deliveries_step ON deliveries(run, consumer, step) WHERE state IN (1, 2)""",
        # Triggers: the rows that these count are changed in many places, also by a repair.
        """CREATE TRIGGER trajectories_planned AFTER INSERT ON trajectories
            BEGIN
                INSERT OR IGNORE INTO task_groups VALUES (NEW.run, NEW.task, 0, NULL);
                UPDATE task_groups SET open = open + 1, settled = NULL
                    WHERE run = NEW.run AND task = NEW.task;
                INSERT OR IGNORE INTO totals VALUES (NEW.run, 0, 0, 0);
                UPDATE totals SET planned = planned + 1 WHERE run = NEW.run;
            END""",
        """CREATE TRIGGER tasks_current AFTER UPDATE OF current ON tasks
            WHEN NEW.current IS NOT OLD.current
            BEGIN
                UPDATE totals SET (planned, settled, failed) = (
                    SELECT totals.planned + count(*) * (NEW.current - OLD.current),
                        totals.settled + count(t.settled) * (NEW.current - OLD.current),
                        totals.failed + coalesce(sum(t.settled IS NOT NULL AND t.status = 4), 0)
                            * (NEW.current - OLD.current)
                    FROM trajectories t WHERE t.run = NEW.run AND t.task = NEW.ordinal)
                    WHERE run = NEW.run;
            END""",
        f"""CREATE TRIGGER trajectories_settled AFTER UPDATE OF settled, status ON trajectories
            WHEN NEW.settled IS NOT OLD.settled
                OR (NEW.settled IS NOT NULL AND NEW.status IS NOT OLD.status)
            BEGIN
                UPDATE task_groups SET open = {_OPEN_NOW}, settled = CASE WHEN {_OPEN_NOW} = 0
                    THEN max(coalesce(settled, 0), NEW.settled) END
                    WHERE run = NEW.run AND task = NEW.task;
                UPDATE totals SET
                    settled = settled + (NEW.settled IS NOT NULL) - (OLD.settled IS NOT NULL),
                    failed = failed + (NEW.settled IS NOT NULL AND NEW.status = 4)
                        - (OLD.settled IS NOT NULL AND OLD.status = 4)
                    WHERE run = NEW.run AND (
                        SELECT current FROM tasks WHERE run = NEW.run AND ordinal = NEW.task);
            END""",  # noqa: S608 - ours
        # Such a group is not ready any more, and is looked at again when it is.
        """CREATE TRIGGER trajectories_reopened AFTER UPDATE OF settled ON trajectories
            WHEN NEW.settled IS NULL AND OLD.settled IS NOT NULL
            BEGIN
                DELETE FROM deliveries
                    WHERE run = NEW.run AND task = NEW.task AND state IN (0, 3);
            END""",
    ),
    # What is free, and what a worker holds: neither is searched for among what others hold.
    5: (
        """DROP INDEX trajectories_open""",
        """CREATE INDEX trajectories_open ON trajectories(run, owner, task)
            WHERE settled IS NULL""",
    ),
}

_FIRST_IN = {"links": 2, "streams": 4}
"""Tables that are in no older version."""

# What readers of an older file see of the tables that it does not have: they may not migrate it.
_VIEWS: dict[int, tuple[str, ...]] = {
    1: (
        """CREATE TEMP VIEW links AS SELECT r.position, coalesce(p.position, 0) AS previous
            FROM records r LEFT JOIN records p
            ON p.trajectory = r.trajectory AND p.seq = r.seq - 1""",
        """CREATE TEMP VIEW heads AS SELECT trajectory, max(position) AS position,
            max(seq) + 1 AS length FROM records GROUP BY trajectory""",
    ),
    2: (
        """CREATE TEMP VIEW workers AS SELECT *, '' AS namespace, '' AS clock, 0 AS clock_until,
            0 AS lease_seconds FROM main.workers""",
    ),
    3: (
        """CREATE TEMP VIEW streams AS SELECT 0 AS run WHERE 0""",
        """CREATE TEMP VIEW versions AS SELECT 0 AS run, 0 AS ordinal, '' AS name, 0 AS step,
            '' AS digest WHERE 0""",
        f"""CREATE TEMP VIEW task_groups AS {GROUPS}""",
        f"""CREATE TEMP VIEW totals AS {TOTALS}""",
        "CREATE TEMP VIEW consumers AS "
        + _CONSUMERS_3.format(deliveries="main.deliveries", consumers="main.consumers"),
        "CREATE TEMP VIEW deliveries AS " + _DELIVERIES_3.format(deliveries="main.deliveries"),
    ),
    4: (),
}


def journal_of(path: Path) -> Path | None:
    """The journal that the file is or belongs to; None for any other file, there or not."""
    if _is_journal(path):
        return path
    wholes = (path.name.removesuffix(part) for part in _PARTS if path.name.endswith(part))
    found = (path.with_name(name) for name in wholes if name)
    return next((journal for journal in found if _is_journal(journal)), None)


def _is_journal(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        header = file.read(_APPLICATION_AT + 4)
    if not header.startswith(_MAGIC):
        return False
    # Of a new one, the mark may still be in the log alone.
    marked = int.from_bytes(header[_APPLICATION_AT:], "big") == APPLICATION_ID
    return marked or log_size(path) > 0


def log_size(path: Path) -> int:
    """The bytes of the write-ahead log beside the file; 0 without one."""
    try:
        return log_of(path).stat().st_size
    except FileNotFoundError:  # Asked once: the last process to close a journal removes its log.
        return 0


WITHOUT_LOG = "mode=ro&immutable=1"


def mode_to_read(path: Path) -> str:
    """SQLite makes files beside a journal in order to read it. On a medium that is read-only it
    cannot, and need not where no log is: nobody is writing, so the file alone is the journal."""
    is_fixed = path.exists() and os.statvfs(path).f_flag & os.ST_RDONLY
    return WITHOUT_LOG if is_fixed and not log_size(path) else "mode=ro"


def require(connection: sqlite3.Connection, path: Path | str) -> None:
    """For reading: makes sure that `connection` is to a journal that was begun, or raises.

    Changes nothing, also in a journal of an older version.
    """
    if _is_special(path):
        raise _no_file(path, "read")
    try:
        version = _version_now(connection, path)
        if version == 0:
            raise JournalError(
                f"journal {path} is empty: nothing has been recorded in it yet; {_BEGIN}"
            )
        for older in range(version, VERSION):
            for view in _VIEWS[older]:
                connection.execute(view)
    except UnicodeDecodeError as error:
        raise _unreadable_schema(path) from error
    except sqlite3.DatabaseError as error:
        raise explain(error, path, reading=True) from error


def _unreadable_schema(path: Path | str) -> JournalError:
    """What SQLite says about a damaged schema quotes it, and that may be no text."""
    return JournalDamaged(f"journal {path} is damaged (its schema): {SALVAGE}")


def prepare(connection: sqlite3.Connection, path: Path | str) -> None:
    """Makes sure that `connection` is to a journal of this version, or raises."""
    deadline = time.monotonic() + CREATE_SECONDS
    while True:
        try:
            return _prepare(connection, path)
        except UnicodeDecodeError as error:
            raise _unreadable_schema(path) from error
        except sqlite3.DatabaseError as error:
            # Two processes that turn a new file into a WAL one at the same moment would wait for
            # each other, so SQLite refuses one of them at once, whatever its timeout.
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise explain(error, path) from error
        time.sleep(0.01)


def make(connection: sqlite3.Connection, path: Path | str) -> None:
    """A journal in an empty file that nobody else knows of yet: with no log, which would need as
    much room once more."""
    try:
        connection.execute(f"PRAGMA page_size={PAGE_SIZE}")
        _migrate(connection, path)
        connection.execute("PRAGMA journal_mode=WAL")
    except sqlite3.DatabaseError as error:
        raise explain(error, path) from error


def _prepare(connection: sqlite3.Connection, path: Path | str) -> None:
    version = _version_now(connection, path)
    if version == VERSION and identity_of(connection) is not None:
        return
    if version == 0:
        connection.execute(f"PRAGMA page_size={PAGE_SIZE}")
        connection.execute("PRAGMA journal_mode=WAL")
    _migrate(connection, path)
    # The file itself has its identity from now on: a log of another journal does not fit to it.
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)")


def explain(error: sqlite3.Error, path: Path | str, *, reading: bool = False) -> JournalError:
    """SQLite's words as ours, for someone who wants to know what to do."""
    text = str(error)
    if _is_special(path):
        return _no_file(path, "read" if reading else "written")
    if "malformed" in text:
        return JournalDamaged(f"journal {path} is damaged ({text}): {SALVAGE}")
    if "not a database" in text:
        return NotAJournal(f"{path} is not a Holdfast journal; it was not touched")
    if "full" in text or ("disk I/O" in text and _is_without_room(Path(path))):
        return JournalFull(
            f"the disk that holds {path} is full; free some space and run the same command again"
        )
    if "readonly" in text or "unable to open" in text:
        if reading:
            return _unreadable(Path(path), text)
        return JournalError(
            f"journal {path} cannot be written: {text}; check the folder's permissions"
        )
    if "is locked" in text:
        return JournalError(
            f"journal {path} cannot be written: {_lock_holder(Path(path))} keeps its write lock; "
            "if it is stopped (Ctrl-Z, a debugger), let it go on or end it, and run the same "
            "command again"
        )
    return JournalError(f"journal {path}: {text}")


def _is_without_room(path: Path) -> bool:
    """SQLite calls it an I/O error where its shared memory does not fit any more."""
    try:
        disk = os.statvfs(path.parent)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < PAGE_SIZE


def _lock_holder(path: Path) -> str:
    """Linux tells who locks which byte of a file; to ask SQLite's own file would drop our locks."""
    with contextlib.suppress(OSError):
        inode = beside(path, "-shm").stat().st_ino
        for line in Path("/proc/locks").read_text().splitlines():
            *_, mode, pid, place, begin, _end = line.split()
            if mode == "WRITE" and place.endswith(f":{inode}") and begin == str(_WRITE_LOCK_AT):
                return f"process {pid}"
    return "another process"


def not_creatable(error: OSError | sqlite3.Error, path: Path) -> JournalError:
    """Why there is no journal where there should be one."""
    if isinstance(error, sqlite3.Error):
        return explain(error, path)
    if error.errno == errno.ENOSPC:
        return explain(sqlite3.OperationalError("full"), path)
    return JournalError(f"journal {path} cannot be written: {error.strerror}; check the folder")


def _is_special(path: Path | str) -> bool:
    """A folder, or a device, which looks like an empty file."""
    return Path(path).exists() and not Path(path).is_file()


def _no_file(path: Path | str, done: str) -> JournalError:
    return JournalError(f"journal {path} cannot be {done}: it is no regular file; name another one")


def _unreadable(path: Path, text: str) -> JournalError:
    """Reading needs SQLite's two files beside it, unless nobody can be writing."""
    try:
        path.open("rb").close()
    except OSError as error:
        return JournalError(f"journal {path} cannot be read: {error.strerror}; check who may")
    if beside(path, "-journal").exists():  # SQLite's, until a new file is one with a log.
        return JournalError(f"journal {path} is empty: its creation was interrupted; {_BEGIN}")
    what = "it and its -wal" if log_size(path) else "it"
    return JournalError(
        f"journal {path} cannot be read where it lies, in a folder that you cannot write ({text}): "
        f"copy {what} into one that you can, and name the copy"
    )


def _version_now(connection: sqlite3.Connection, path: Path | str) -> int:
    # One snapshot: while another process creates the tables, separate reads would see half of it.
    connection.execute("BEGIN")
    try:
        return _version(connection, path)
    finally:
        _roll_back(connection)


def _version(connection: sqlite3.Connection, path: Path | str) -> int:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application == 0 and version == 0 and tables == 0:
        return 0
    if application != APPLICATION_ID:
        raise NotAJournal(f"{path} is a SQLite file, but no Holdfast journal; it was not touched")
    if version > VERSION:
        raise JournalNewer(
            f"journal {path} has version {version}, written by a newer Holdfast; this one reads "
            f"up to {VERSION}. Upgrade Holdfast, or name another journal"
        )
    _check_version(connection, path, version)
    return int(version)


def _check_version(connection: sqlite3.Connection, path: Path | str, version: int) -> None:
    """Mark and version are written with the tables: a version that they are not of is damage. Else
    the journal would be taken for an empty one, or brought forward twice."""
    # Of a damaged schema, not every name can be read.
    found = connection.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name IN ('links', 'streams')"
    )
    has = max((_FIRST_IN[name] for (name,) in found.fetchall()), default=1)
    if version < has:
        raise JournalDamaged(
            f"journal {path} is damaged (its header says version {version}, and its tables are of "
            f"version {has} or later): {SALVAGE}"
        )


def _migrate(connection: sqlite3.Connection, path: Path | str) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Two processes may open a new file at once: look again, now that we hold the lock.
        for version in range(_version(connection, path) + 1, VERSION + 1):
            for statement in _MIGRATIONS[version]:
                connection.execute(statement)
        give_identity(connection)
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version={VERSION}")
        crashpoint.reach("journal.migrating")
        connection.execute("COMMIT")
        crashpoint.reach("journal.migrating")
    finally:
        _roll_back(connection)


def _roll_back(connection: sqlite3.Connection) -> None:
    """Ends what is still open; SQLite may have ended it itself."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")
