"""A journal that is new is whole or not there, whenever the power fails.

It is made under another name, synced, and gets its own by a rename. An empty file is no journal
yet: it gives way to the new one.
"""

import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import count
from pathlib import Path

from holdfast import crashpoint
from holdfast.journal.files.folders import make_alike, make_folders, sync_file, sync_folder
from holdfast.journal.files.wal import beside
from holdfast.journal.sqlite.schema import make

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
