"""Has the journal lost commits? Looked at before anything is written, and before anyone reads.

Three things are held against each other: what SQLite will read, what the witness knows, and what
lies in the log behind the point where SQLite stops. See `wal` and `witness` for what each can tell.
Nothing here writes, and a live writer gives no false alarm: the witness is read before the
database, which then knows at least as much.
"""

import sqlite3
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from holdfast.journal.commits import has_foreign_writers, identity_of, last_number
from holdfast.journal.schema import (
    APPLICATION_ID,
    WITHOUT_LOG,
    JournalDamaged,
    log_size,
    mode_to_read,
)
from holdfast.journal.wal import LogScan, beside, log_of, scan
from holdfast.journal.witness import Note, notes

# As long as whoever opens it afterwards would wait.
BUSY_SECONDS = 30.0
# A file that a live process copies its log into may show half of a page: then it is read again.
_TRIES, _PAUSE = 5, 0.05


class Loss(Struct, frozen=True):
    """What is gone, and how that is known."""

    what: str
    remedy: str
    is_foreign: bool = False
    """The log is one of another journal: nothing of it may be read, or written into the file."""
    is_cut: bool = False
    """It is the file that ends too early, not the log."""


class _State(Struct, frozen=True):
    """What a journal says of itself."""

    identity: int | None
    number: int
    pages: int
    page_size: int
    has_foreign_writers: bool


def refuse_losses(path: Path) -> None:
    """`JournalDamaged` where something is lost: what may not be done twice may be among it."""
    loss = find_loss(path)
    if loss is not None:
        raise JournalDamaged(f"journal {path} {loss.what}; {loss.remedy}")


def find_loss(path: Path, *, thoroughly: bool = False) -> Loss | None:
    """None where all is there, or where nobody can tell.

    Where the witness vouches for the last commit, the log is read only `thoroughly`.
    """
    noted = notes(path)
    try:
        state = _read(path, mode_to_read(path))
    except (sqlite3.Error, UnicodeDecodeError):
        return None  # Whoever opens it is told what is the matter with it.
    if log_size(path) and _is_foreign(path, state):
        what = "has the log (-wal) of another journal beside it"
        return Loss(what, _put_back(path), is_foreign=True)
    if state is None:
        return None
    note = None if state.identity is None else noted.get(state.identity)
    if note is not None and note.number > state.number:
        return Loss(_told_by(note, state, path), _put_back(path))
    found = None
    if thoroughly or not _is_vouched_for(path, state, note):
        found = scan(log_of(path))
        if found.is_damaged:
            what = (
                f"has lost {_commits(found.beyond)} at least: its log (-wal) is damaged at byte "
                f"{found.bad:,}, and the {found.size - found.bad:,} bytes from there on are lost"
            )
            return Loss(what, _put_back(path))
    return _cut(path, state, found)


def _read(path: Path, mode: str) -> _State | None:
    """None for a file that is no journal, or one that no version with numbers has written."""
    uri = f"{path.absolute().as_uri()}?{mode}"
    with closing(
        sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_SECONDS)
    ) as connection:
        connection.execute("BEGIN")
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if application != APPLICATION_ID or version < 2:
            return None
        identity = identity_of(connection)
        return _State(
            identity=identity,
            number=last_number(connection),
            pages=connection.execute("PRAGMA page_count").fetchone()[0],
            page_size=connection.execute("PRAGMA page_size").fetchone()[0],
            has_foreign_writers=identity is not None and has_foreign_writers(connection, identity),
        )


def _is_foreign(path: Path, state: _State | None) -> bool:
    """Whether the log makes another journal of the file than it is without it."""
    if state is not None and state.has_foreign_writers:
        return True
    for _ in range(_TRIES):
        alone = _identity_without_log(path)
        if alone is None or (state is not None and state.identity == alone):
            return False
        time.sleep(_PAUSE)
    return True


def _identity_without_log(path: Path) -> int | None:
    """None where it cannot be read: after a power loss, a page may be half of what the log has."""
    try:
        alone = _read(path, WITHOUT_LOG)
    except (sqlite3.Error, UnicodeDecodeError):
        return None
    return None if alone is None else alone.identity


def _is_vouched_for(path: Path, state: _State, note: Note | None) -> bool:
    """Whether the witness has seen the last commit, and has forgotten nothing since."""
    if note is None or state.identity is None or not note.is_of_this_boot:
        return False
    now = notes(path).get(state.identity)  # A live writer may have gone on meanwhile.
    return now is not None and state.number <= now.number


def _told_by(note: Note, state: _State, path: Path) -> str:
    when = datetime.fromtimestamp(note.time, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    found = scan(log_of(path))
    if not log_size(path):
        why = "its log (-wal) is gone, or the file is an older one"
    elif found.beyond:
        why = (
            f"its log (-wal) is damaged at byte {found.bad:,}, and the "
            f"{found.size - found.bad:,} bytes from there on are lost"
        )
    else:
        why = f"its log (-wal) ends at byte {found.end:,}, before them, or is an older one"
    return f"has lost {_commits(note.number - state.number)}, the last one of {when}: {why}"


def _commits(number: int) -> str:
    return "1 commit" if number == 1 else f"{number:,} commits"


def _put_back(path: Path) -> str:
    return (
        f"put the right log back beside it, or go back to a copy of all; `holdfast journal check "
        f"{path} --repair` accepts the loss and goes back to the last commit that is there"
    )


def _cut(path: Path, state: _State, log: LogScan | None) -> Loss | None:
    """Whether the file ends too early, with pages missing that the log does not have, either.

    Where nobody has read the log, only an end inside a page is a reason to do so: while it is not
    copied into the file, the file is always shorter.
    """
    whole = state.pages * state.page_size
    size = beside(path, "").stat().st_size
    if size >= whole or (log is None and size % state.page_size == 0):
        return None
    in_log = (log or scan(log_of(path))).pages
    size = beside(path, "").stat().st_size  # After the log, which others may copy meanwhile.
    missing = range(size // state.page_size + 1, state.pages + 1)
    if size >= whole or in_log.issuperset(missing):
        return None
    remedy = (
        f"go back to a copy of it, or let `holdfast journal check {path} --repair` see whether it "
        "can be mended; check the disk"
    )
    return Loss(f"is cut: {whole - size:,} bytes at its end are missing", remedy, is_cut=True)
