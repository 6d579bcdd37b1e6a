"""The SQLite schema: its version, its migrations, and the files that are refused.

A file that is not a journal, or is a journal of a newer version, is refused before anything is
written to it. An older version is migrated in one transaction when it is opened for writing. This
module also turns SQLite's errors into messages that name the file and a remedy.
"""

import binascii
import errno
import fcntl
import os
import re
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import count
from pathlib import Path

from holdfast import crashpoint
from holdfast.journal.files.folders import make_alike, make_folders, sync_file, sync_folder
from holdfast.journal.files.wal import PAGE_SIZE, beside, log_of
from holdfast.journal.sql.tables import BEGIN, TABLES, refuse_newer, require_version
from holdfast.records.errors import (
    JournalDamaged,
    JournalError,
    JournalFull,
    NotAJournal,
)

APPLICATION_ID = 0x484F4C44
VERSION = 1

SALVAGE = (
    "go back to a copy of it, or salvage what is left into a new file with `sqlite3 FILE "
    ".recover`; check the disk"
)

# Files beside a journal that belong to it: SQLite's log and its index, the witness of its commits,
# and a gateway's secret.
_PARTS = ("-wal", "-shm", "-witness", ".gateway-secret")
# The marks at the beginning of a SQLite file.
_MAGIC = b"SQLite format 3\0"
_APPLICATION_AT = 68
# The byte of the -shm file that a writer locks.
_WRITE_LOCK_AT = 120

_TYPES = {
    "id": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "name": "text",
    "bytes": "blob",
    "half": "",
    "most": " WITHOUT ROWID",
    # The position of the log's last record: see `chain`.
    "last": ", last integer NOT NULL DEFAULT 0",
    "in": "",
}
_RECORDS = (
    # The table grows only at its end. Maintaining an index by trajectory took half of SQLite's
    # time, so records are linked (`previous`): see `chain`.
    """CREATE TABLE records(
        position INTEGER PRIMARY KEY, trajectory INTEGER NOT NULL, seq INTEGER NOT NULL,
        epoch INTEGER NOT NULL, crc INTEGER NOT NULL, previous INTEGER NOT NULL,
        body BLOB NOT NULL)""",
    # The number of each writer's last commit.
    """CREATE TABLE batches(name TEXT PRIMARY KEY, batch INTEGER NOT NULL)""",
)
_MIGRATIONS: dict[int, tuple[str, ...]] = {
    1: (*(statement.format(**_TYPES) for statement in TABLES), *_RECORDS),
}


def journal_of(path: Path) -> Path | None:
    """Returns the journal that the file is or belongs to; None for any other file, even if it does
    not exist."""
    if _is_journal(path):
        return path
    wholes = (path.name.removesuffix(part) for part in _PARTS if path.name.endswith(part))
    candidates = (path.with_name(name) for name in wholes if name)
    return next((journal for journal in candidates if _is_journal(journal)), None)


def _is_journal(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        header = file.read(_APPLICATION_AT + 4)
    if not header.startswith(_MAGIC):
        return False
    # In a new journal, only the log may contain the mark.
    marked = int.from_bytes(header[_APPLICATION_AT:], "big") == APPLICATION_ID
    return marked or log_size(path) > 0


def log_size(path: Path) -> int:
    """Returns the size in bytes of the write-ahead log beside the file; 0 if there is no log."""
    try:
        return log_of(path).stat().st_size
    except FileNotFoundError:
        # The last process that closes a journal may remove its log between two looks.
        return 0


WITHOUT_LOG = "mode=ro&immutable=1"


def mode_to_read(path: Path) -> str:
    """Returns the mode in which the file is opened for reading. SQLite creates files beside a
    journal to read it, which is impossible on a read-only medium. If there is also no log, the mode
    tells SQLite to do without these files. This is safe because no process can write."""
    is_fixed = path.exists() and os.statvfs(path).f_flag & os.ST_RDONLY
    return WITHOUT_LOG if is_fixed and not log_size(path) else "mode=ro"


def require(connection: sqlite3.Connection, path: Path | str) -> None:
    """Checks, for reading, that the connection is to a journal that was begun. Raises an error
    otherwise, and changes nothing."""
    if _is_special(path):
        raise _no_file(path, "read")
    with explained(path, reading=True):
        version = _version_now(connection, path)
    require_version(version, VERSION, path)


def prepare(connection: sqlite3.Connection, path: Path | str) -> None:
    """Makes sure that the connection is to a journal of this version, and migrates an older one.
    Raises an error for other files."""
    with explained(path):
        version = _version_now(connection, path)
        if version == VERSION and identity_of(connection) is not None:
            return
        if version == 0:
            connection.execute(f"PRAGMA page_size={PAGE_SIZE}")
            connection.execute("PRAGMA journal_mode=WAL")
        _migrate(connection, path)
        # Moves the identity into the file itself, so that a log of another journal does not fit.
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")


def make(connection: sqlite3.Connection, path: Path | str) -> None:
    """Creates a journal in an empty file that no other process knows yet. Writes without a log,
    because a log would need the same room again."""
    with explained(path):
        connection.execute(f"PRAGMA page_size={PAGE_SIZE}")
        _migrate(connection, path)
        connection.execute("PRAGMA journal_mode=WAL")


@contextmanager
def explained(path: Path | str, *, reading: bool = False) -> Iterator[None]:
    """Turns SQLite's errors within the block into journal errors that name a remedy."""
    try:
        yield
    except UnicodeDecodeError as error:
        # SQLite's message quotes the damaged schema, which may not be valid text.
        raise JournalDamaged(f"journal {path} is damaged (its schema): {SALVAGE}") from error
    except sqlite3.Error as error:
        raise explain(error, path, reading=reading) from error


def explain(error: sqlite3.Error, path: Path | str, *, reading: bool = False) -> JournalError:
    """Returns the journal error for an error of SQLite, with a remedy."""
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
    """Returns whether the disk is full. If SQLite's shared memory does not fit on a full disk,
    SQLite reports only an I/O error."""
    try:
        disk = os.statvfs(path.parent)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < PAGE_SIZE


def _lock_holder(path: Path) -> str:
    """Returns a text that names the process that holds the write lock. Reads Linux's list of locks,
    because opening SQLite's own file would drop the locks of this process."""
    with suppress(OSError):
        inode = beside(path, "-shm").stat().st_ino
        for line in Path("/proc/locks").read_text().splitlines():
            *_, mode, pid, place, begin, _end = line.split()
            if mode == "WRITE" and place.endswith(f":{inode}") and begin == str(_WRITE_LOCK_AT):
                return f"process {pid}"
    return "another process"


def not_creatable(error: OSError | sqlite3.Error, path: Path) -> JournalError:
    """Returns the error for a journal that could not be created."""
    if isinstance(error, sqlite3.Error):
        return explain(error, path)
    if error.errno == errno.ENOSPC:
        return explain(sqlite3.OperationalError("full"), path)
    return JournalError(f"journal {path} cannot be written: {error.strerror}; check the folder")


def _is_special(path: Path | str) -> bool:
    """Returns whether the path is a folder or a device. A device looks like an empty file."""
    return Path(path).exists() and not Path(path).is_file()


def _no_file(path: Path | str, done: str) -> JournalError:
    return JournalError(
        f"journal {path} cannot be {done}: it is not a regular file; name another one"
    )


def _unreadable(path: Path, text: str) -> JournalError:
    """Returns the error for a journal that cannot be read, with its cause and a remedy."""
    try:
        path.open("rb").close()
    except OSError as error:
        return JournalError(f"journal {path} cannot be read: {error.strerror}; check who may")
    # A new file has SQLite's `-journal` until it uses a write-ahead log.
    if beside(path, "-journal").exists():
        return JournalError(f"journal {path} is empty: its creation was interrupted; {BEGIN}")
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
    refuse_newer(version, VERSION, path)
    if version < 1:
        # Mark and version are written together with the tables. Without them, the journal would
        # look empty.
        raise JournalDamaged(
            f"journal {path} is damaged (its header says version {version}): {SALVAGE}"
        )
    return int(version)


def _migrate(connection: sqlite3.Connection, path: Path | str) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Two processes may open a new file at once, so look again under the lock.
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
    """Rolls back a transaction that is still open. SQLite may have ended it itself."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


# --- the journal's identity, and the numbers of its commits
#
# Both are in the database itself: the number of the last commit as the highest of table `batches`,
# the identity, a random number, among the counters. A writer's name begins with the identity, so
# that a log of another journal cannot pass for ours: each of its commits names a writer of its own.

_NUMBER_BYTES = 5


def give_identity(connection: sqlite3.Connection) -> None:
    """Gives the journal an identity, inside a transaction. A journal with an identity keeps it."""
    number = secrets.token_bytes(_NUMBER_BYTES)
    identity = int.from_bytes(number + _check_of(number), "big")
    connection.execute("INSERT OR IGNORE INTO counters VALUES ('identity', ?)", (identity,))


def identity_of(connection: sqlite3.Connection) -> int | None:
    """Returns the journal's identity; None if it is missing or damaged."""
    row = connection.execute("SELECT value FROM counters WHERE name = 'identity'").fetchone()
    if row is None or not isinstance(row[0], int) or not 0 <= row[0] < 1 << 8 * (_NUMBER_BYTES + 2):
        return None
    identity = row[0].to_bytes(_NUMBER_BYTES + 2, "big")
    return row[0] if _check_of(identity[:-2]) == identity[-2:] else None


def _check_of(number: bytes) -> bytes:
    """Returns the checksum that is stored in the identity. With it, a damaged identity is not
    mistaken for the identity of another journal."""
    return binascii.crc_hqx(number, 0xFFFF).to_bytes(2, "big")


def last_number(connection: sqlite3.Connection) -> int:
    (number,) = connection.execute("SELECT max(batch) FROM batches").fetchone()
    return number if isinstance(number, int) else 0


def has_foreign_writers(connection: sqlite3.Connection, identity: int) -> bool:
    """Returns whether a writer of another journal has committed here."""
    (count,) = connection.execute(
        "SELECT count(*) FROM batches WHERE name LIKE '%-%' AND name NOT LIKE ?",
        (f"{identity:016x}-%",),
    ).fetchone()
    return bool(count)


# --- creating: a new journal is whole or not there, whenever the power fails
#
# It is made under another name, synced, and gets its own by a rename. An empty file is no journal
# yet: it gives way to the new one.

_NEW = "-new"
_SIDES = ("-wal", "-shm", "-journal")


def create_if_missing(path: Path, connect: Callable[[str], sqlite3.Connection]) -> None:
    """Creates a journal unless the path has a file with content, of any kind."""
    file = beside(path, "")
    if _is_there(file):
        return
    make_folders(file.parent)
    with _alone(file.parent):
        if not _is_there(file):
            _create(file, connect)


def _is_there(file: Path) -> bool:
    return file.exists() and (not file.is_file() or file.stat().st_size > 0)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Prevents other processes from creating a journal in the folder during the block."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _create(file: Path, connect: Callable[[str], sqlite3.Connection]) -> None:
    new = beside(file, _NEW)
    # A process that was killed here has left them.
    _remove(new, *(beside(new, side) for side in _SIDES))
    new.touch(mode=0o600)
    if file.exists():
        make_alike(new, file)
    with closing(connect(f"{new.as_uri()}?mode=rw")) as connection:
        make(connection, file)
    sync_file(new)
    # Files beside a deleted journal would be read as a part of the new one.
    if beside(file, "-wal").exists():
        set_aside(beside(file, "-wal"))
    _remove(*(beside(file, side) for side in _SIDES))
    crashpoint.reach("journal.creating")
    new.replace(file)
    crashpoint.reach("journal.creating")
    sync_folder(file.parent)


def _remove(*files: Path) -> None:
    for file in files:
        with suppress(FileNotFoundError):
            file.unlink()


def set_aside(file: Path) -> Path:
    """Renames the file to the first free name of the form `NAME.kept-1`, and returns the new path.
    Removes an empty file instead."""
    if not file.stat().st_size:
        file.unlink()
        return file
    kept = aside_of(file)
    file.rename(kept)
    return kept


def aside_of(file: Path) -> Path:
    """Returns the first free name for a file that is set aside."""
    return next(
        kept for kept in (kept_name(file, number) for number in count(1)) if not kept.exists()
    )


def kept_name(file: Path, number: int) -> Path:
    return file.with_name(f"{file.name}.kept-{number}")


# --- one journal, one name
#
# SQLite finds the log of a file by the file's name. Under a second name the file has a second log,
# and two processes that use one each write over each other's pages. A folder may have as many names
# as it likes, and a symbolic link is followed: the log lies beside the file then. A hard link, and
# a mount of the single file, are refused, whether or not anyone else is there: what a process that
# was killed left in the other log is not seen from here.

_MOUNTS = Path("/proc/self/mountinfo")
_MOUNT_POINT = 4


def refuse_second_name(path: Path) -> None:
    """Raises `JournalError` for a file that has several names or is mounted as a single file,
    because its log may lie beside another name."""
    file = beside(path, "")
    if not file.is_file():
        return
    if (names := file.stat().st_nlink) > 1:
        raise JournalError(
            f"journal {path} has {names} names (hard links), and its log lies beside one of them: "
            "remove the others, or copy it to a name of its own"
        )
    if _is_mounted(file):
        raise JournalError(
            f"journal {path} is mounted as a single file, and its log (-wal) does not lie here: "
            "mount its folder instead"
        )


def _is_mounted(file: Path) -> bool:
    try:
        mounts = _MOUNTS.read_bytes().splitlines()
    except OSError:
        return False  # Without Linux's /proc, mounts of single files cannot be found.
    return any(_unescaped(mount.split()[_MOUNT_POINT]) == bytes(file) for mount in mounts)


def _unescaped(name: bytes) -> bytes:
    return re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), name)
