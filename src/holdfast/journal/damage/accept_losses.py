"""Accepts a loss: the journal goes back to its last existing commit.

The damaged files are kept beside the journal, under other names. A repair that was killed can be
started again. It keeps no file twice, loses nothing more, and has the same result as a repair that
was not killed.
"""

import filecmp
import os
import shutil
import sqlite3
from contextlib import closing
from itertools import count
from pathlib import Path

from holdfast import crashpoint
from holdfast.journal.files import witness
from holdfast.journal.files.folders import make_alike, sync_file, sync_folder
from holdfast.journal.files.wal import beside, log_of
from holdfast.journal.sqlite.losses import Loss
from holdfast.journal.sqlite.schema import identity_of, kept_name, last_number, prepare, set_aside
from holdfast.records.errors import JournalError

STEP = "journal.repairing"
_MENDING, _MENDED = "-mending", "-mended"


def accept(path: Path, loss: Loss) -> str:
    """Accepts the loss of a log that is damaged, missing, old, or of another journal, and describes
    what was lost. No process may have the journal open."""
    log, file = log_of(path), beside(path, "")
    kept: list[Path] = []
    if log.exists() and log.stat().st_size:
        kept = [set_aside(log)] if loss.without_log else _keep(log, file)
        sync_folder(log.parent)
        crashpoint.reach(STEP)
    number = make_last(path)
    names = " and ".join(each.name for each in kept)
    where = f"; what was there is kept in {names}" if kept else ""
    return f"{loss.what}; went back to commit {number:,}, the last one that is there{where}"


def _keep(first: Path, *others: Path) -> list[Path]:
    """Copies the files beside the journal, with one number in the names of all copies, and returns
    the copies.

    The copy of `first` is made last, so its existence means that all files were copied. A repair
    that was killed and starts again finds its copies and makes no second ones.
    """
    files = (first, *others)
    for number in count(1):
        kept = [kept_name(file, number) for file in files]
        if _is_copy(kept[0], first) and all(copy.exists() for copy in kept):
            break
        pairs = list(zip(files, kept, strict=True))
        if not kept[0].exists() and all(
            _is_copy(copy, file) or not copy.exists() for file, copy in pairs
        ):
            for file, copy in reversed(pairs):
                if not copy.exists():
                    _copy(file, copy)
            break
    return kept


def _is_copy(kept: Path, file: Path) -> bool:
    return kept.exists() and filecmp.cmp(kept, file, shallow=False)


def _copy(file: Path, kept: Path) -> None:
    """Copies a file, so that the new name has the whole content or does not exist."""
    unfinished = file.with_name(f"{file.name}.keeping")
    shutil.copyfile(file, unfinished)
    make_alike(unfinished, file)
    sync_file(unfinished)
    crashpoint.reach(STEP)
    unfinished.replace(kept)
    crashpoint.reach(STEP)


def make_last(path: Path) -> int:
    """Copies the log into the file, removes the log, and sets the witness to the file's last
    commit. Returns the number of that commit. Raises `JournalError` if another process uses the
    journal."""
    uri = f"{beside(path, '').as_uri()}?mode=rw"
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
        prepare(connection, path)
        connection.execute("PRAGMA synchronous=FULL")
        busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise JournalError(
                f"journal {path} is in use; stop the processes that use it, then repair"
            )
        crashpoint.reach(STEP)
        identity, number = identity_of(connection), last_number(connection)
    crashpoint.reach(STEP)
    witness.begin_anew(path, identity or 0, number)
    crashpoint.reach(STEP)
    return number


# --- a file that ends within a page ------------------------------------------------------------


def copy_to_mend(path: Path) -> Path:
    """Copies a file that ends too early, with its log, and fills up the copy's last page with
    zeros. Returns the path of the copy."""
    copy = beside(path, _MENDING)
    remove_copy(copy)
    shutil.copyfile(beside(path, ""), copy)
    make_alike(copy, beside(path, ""))
    if log_of(path).exists():
        shutil.copyfile(log_of(path), log_of(copy))
    page_size = _page_size(copy)
    os.truncate(copy, -(-copy.stat().st_size // page_size) * page_size)
    crashpoint.reach(STEP)
    return copy


def _page_size(file: Path) -> int:
    with file.open("rb") as content:
        content.seek(16)
        size = int.from_bytes(content.read(2), "big")
    return 65536 if size == 1 else size


def take_mended(path: Path, copy: Path) -> Path:
    """Replaces the damaged journal by the mended copy. Returns the path at which the damaged file
    is kept."""
    make_last(copy)
    sync_file(copy)
    log, file = log_of(path), beside(path, "")
    _keep(*((log, file) if log.exists() and log.stat().st_size else (file,)))
    sync_folder(copy.parent)
    copy.replace(beside(path, _MENDED))
    sync_folder(copy.parent)
    crashpoint.reach(STEP)
    return finish_mending(path)


def has_unfinished_mending(path: Path) -> bool:
    """Returns whether a killed repair left a mended copy that has not replaced the journal yet."""
    file, mended = beside(path, ""), beside(path, _MENDED)
    return mended.exists() and _kept_of(file) is not None


def finish_mending(path: Path) -> Path:
    """Replaces the journal by the mended copy. Removes the log first, because SQLite would read it
    as part of the mended file. Copies of both files are already kept."""
    file = beside(path, "")
    kept = _kept_of(file)
    assert kept is not None, "it was kept before the copy got its name"
    remove_copy(beside(path, _MENDING))  # Removes what belonged to the copy.
    for side in ("-wal", "-shm"):
        beside(path, side).unlink(missing_ok=True)
    crashpoint.reach(STEP)
    beside(path, _MENDED).replace(file)  # At every moment there is a journal.
    sync_folder(file.parent)
    crashpoint.reach(STEP)
    make_last(path)
    return kept


def _kept_of(file: Path) -> Path | None:
    """Returns the kept copy of the file; None if there is none."""
    for number in count(1):
        kept = kept_name(file, number)
        if not kept.exists():
            return None
        if _is_copy(kept, file):
            return kept
    raise AssertionError("it counts on")


def remove_copy(copy: Path) -> None:
    """Removes the copy and all files beside it, including files that the repair of the copy
    kept."""
    for file in list(copy.parent.iterdir()):
        if file.name.startswith(copy.name):
            file.unlink(missing_ok=True)
