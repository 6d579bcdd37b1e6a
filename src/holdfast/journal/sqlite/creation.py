"""A journal that is new is whole or not there, whenever the power fails; and it has one name.

It is made under another name, synced, and gets its own by a rename. An empty file is no journal
yet: it gives way to the new one.
"""

import fcntl
import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import count
from pathlib import Path

from holdfast import crashpoint
from holdfast.journal.files.folders import make_alike, make_folders, sync_file, sync_folder
from holdfast.journal.files.wal import beside
from holdfast.journal.sqlite.schema import make
from holdfast.records.errors import JournalError

_NEW = "-new"
_SIDES = ("-wal", "-shm", "-journal")


def create_if_missing(path: Path, connect: Callable[[str], sqlite3.Connection]) -> None:
    """Returns when there is a file with something in it, of whatever kind."""
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
    """Until the end no other process creates a journal in the folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _create(file: Path, connect: Callable[[str], sqlite3.Connection]) -> None:
    new = beside(file, _NEW)
    _remove(new, *(beside(new, side) for side in _SIDES))  # Left by one who was killed here.
    new.touch(mode=0o600)
    if file.exists():
        make_alike(new, file)
    with closing(connect(f"{new.as_uri()}?mode=rw")) as connection:
        make(connection, file)
    sync_file(new)
    # What lies beside a file that is gone would be read as a part of the new one.
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
    """Gives the file a name under which nobody but its owner looks for it; empty, it is removed."""
    if not file.stat().st_size:
        file.unlink()
        return file
    kept = aside_of(file)
    file.rename(kept)
    return kept


def aside_of(file: Path) -> Path:
    """The first such name that is free."""
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
    """`JournalError` for a file with a log that may lie elsewhere."""
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
        return False  # No Linux: there are no mounts of single files.
    return any(_unescaped(mount.split()[_MOUNT_POINT]) == bytes(file) for mount in mounts)


def _unescaped(name: bytes) -> bytes:
    return re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), name)
