"""Accepting what is lost: the journal goes back to its last commit that is there.

What is damaged is kept beside the journal, under another name. Each step may be repeated: until the
last one, the loss is still found.
"""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from holdfast.journal.files import witness
from holdfast.journal.files.folders import make_alike, sync_file, sync_folder
from holdfast.journal.files.wal import beside, log_of
from holdfast.journal.sqlite.commits import identity_of, last_number
from holdfast.journal.sqlite.creation import aside_of, set_aside
from holdfast.journal.sqlite.losses import Loss
from holdfast.journal.sqlite.schema import prepare
from holdfast.records.errors import JournalError


def accept(path: Path, loss: Loss) -> str:
    """Of a log that is damaged, gone, older, or another's. Nobody may have the journal open. Says
    what was done."""
    log, file = log_of(path), beside(path, "")
    kept: list[Path] = []
    if log.exists() and log.stat().st_size:
        kept = [set_aside(log)] if loss.without_log else [_copied(log), _copied(file)]
        sync_folder(log.parent)
    number = make_last(path)
    names = " and ".join(each.name for each in kept)
    where = f"; what was there is kept in {names}" if kept else ""
    return f"{loss.what}; went back to commit {number:,}, the last one that is there{where}"


def _copied(file: Path) -> Path:
    kept = aside_of(file)
    shutil.copyfile(file, kept)
    make_alike(kept, file)
    sync_file(kept)
    return kept


def make_last(path: Path) -> int:
    """What the journal holds is all that there was, for the witness, too; no log is left.

    The number of its last commit.
    """
    uri = f"{beside(path, '').as_uri()}?mode=rw"
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
        prepare(connection, path)
        connection.execute("PRAGMA synchronous=FULL")
        busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise JournalError(f"journal {path} is in use; stop whoever uses it, then repair")
        identity, number = identity_of(connection), last_number(connection)
    witness.begin_anew(path, identity or 0, number)
    return number


def copy_to_mend(path: Path) -> Path:
    """A copy of a file that ends within a page, with its log, filled up with zeros."""
    copy = beside(path, "-mended")
    for side in ("-wal", "-shm", witness.SUFFIX):
        beside(copy, side).unlink(missing_ok=True)
    shutil.copyfile(beside(path, ""), copy)
    make_alike(copy, beside(path, ""))
    if log_of(path).exists():
        shutil.copyfile(log_of(path), log_of(copy))
    page_size = _page_size(copy)
    os.truncate(copy, -(-copy.stat().st_size // page_size) * page_size)
    return copy


def _page_size(file: Path) -> int:
    with file.open("rb") as content:
        content.seek(16)
        size = int.from_bytes(content.read(2), "big")
    return 65536 if size == 1 else size


def take_mended(path: Path, copy: Path) -> Path:
    """The copy takes the journal's place; where the damaged file is kept."""
    make_last(copy)
    sync_file(copy)
    file, kept = beside(path, ""), aside_of(beside(path, ""))
    if log_of(path).exists():
        set_aside(log_of(path))
    beside(path, "-shm").unlink(missing_ok=True)
    os.link(file, kept)  # There is no moment without a journal.
    copy.replace(file)
    sync_folder(file.parent)
    remove_copy(copy)
    make_last(path)
    return kept


def remove_copy(copy: Path) -> None:
    for side in ("", "-wal", "-shm", witness.SUFFIX):
        beside(copy, side).unlink(missing_ok=True)
