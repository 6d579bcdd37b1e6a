"""Finds out whether the journal has lost commits, before anything is written or read.

The check compares four things: the state that SQLite will read, the state of the file without its
log, the notes of the witness, and the log behind the point where SQLite stops. See `wal` and
`witness` for what each can show. The log may already be copied into the file beyond the point where
it is damaged. SQLite would then put old pages over newer ones, and only the file is usable.

The check writes nothing. A live writer causes no false alarm: the witness is read before the
database, which then knows at least as much.
"""

import sqlite3
import time
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from holdfast.journal.files.wal import LogScan, beside, log_of, scan
from holdfast.journal.files.witness import Note, notes, witness_of
from holdfast.journal.sqlite import schema
from holdfast.records.errors import LostCommits

# As long as opening the journal would wait afterwards.
BUSY_SECONDS = 30.0
# If a live process is copying its log into the file, a page may be half copied. Then the file is
# read again.
_TRIES, _PAUSE = 5, 0.05


class Loss(Struct, frozen=True):
    """Commits that a journal has lost: what shows it, and what the user can do."""

    what: str
    remedy: str
    without_log: bool = False
    """Whether only the file is usable, so that its log must be neither read nor copied into the
    file. The reason is that the log belongs to another journal, is older than the file, or has no
    commit that SQLite sees."""
    is_foreign: bool = False
    """Whether the log belongs to another journal."""
    is_cut: bool = False
    """Whether the database file ends too early. Otherwise the log is the cause of the loss."""


class _State(Struct, frozen=True):
    """The state of a journal according to its own content."""

    identity: int | None
    number: int
    pages: int
    page_size: int
    has_foreign_writers: bool


def refuse_losses(path: Path) -> None:
    """Raises `LostCommits` if commits are lost. The lost commits may belong to calls that must not
    happen twice."""
    loss = find_loss(path)
    if loss is not None:
        raise LostCommits(f"journal {path} {loss.what}; {loss.remedy}")


def find_loss(path: Path, *, thoroughly: bool = False) -> Loss | None:
    """Returns what the journal has lost; None if nothing is lost, or if this cannot be known. If
    the witness has noted the last commit, reads the log only with `thoroughly`."""
    noted = notes(witness_of(path))
    try:
        state = _read(path, schema.mode_to_read(path))
    except (sqlite3.Error, UnicodeDecodeError) as error:
        # Unless the log is the cause, opening the journal reports the error.
        return _unreadable_with_log(path, noted) if _is_of_content(error) else None
    if schema.log_size(path) and _is_foreign(path, state):
        what = "has the log (-wal) of another journal beside it"
        return Loss(what, _put_back(path, _alone(path)), without_log=True, is_foreign=True)
    if state is None:
        return None
    note = None if state.identity is None else noted.get(state.identity)
    newer = _newer_without_log(path, state)
    if newer is not None:
        return _left_alone(path, newer, note)
    if note is not None and note.number > state.number:
        log = scan(log_of(path))
        return _lost(path, state, log, _describe_loss(note, state, _why(log)))
    loss = None
    if thoroughly or not _is_vouched_for(path, state, note):
        loss = scan(log_of(path))
        if loss.is_damaged and not loss.commits and _is_vouched_for(path, state, note):
            return _left_alone(path, state, note)
        if loss.is_damaged:
            what = f"has lost {_commits(loss.beyond)} at least: {_why(loss)}"
            return _lost(path, state, loss, what)
    return _cut(path, state, loss)


def _is_of_content(error: Exception) -> bool:
    """Returns whether the error means damaged content rather than an unreadable file."""
    content = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF in content


def _unreadable_with_log(path: Path, noted: dict[int, Note]) -> Loss | None:
    """Returns what a journal lost if SQLite can read its file, but not the file together with its
    log. Returns None if SQLite cannot read the file in any way."""
    alone = _alone(path) if schema.log_size(path) else None
    if alone is None or alone.identity is None:
        return None
    return _left_alone(path, alone, noted.get(alone.identity))


def _left_alone(path: Path, alone: _State, note: Note | None) -> Loss:
    """Returns the loss of a journal whose file has newer pages than the readable part of its log,
    because later parts of the log were already copied into the file."""
    why = f"{_why(scan(log_of(path)))}, and the file has newer pages already"
    if note is None:
        what = f"has a log that must not be read, and may have lost commits: {why}"
    elif note.number > alone.number:
        what = _describe_loss(note, alone, why)
    else:
        what = f"has lost no commit, but has a log that must not be read: {why}"
    return Loss(what, _put_back(path, alone), without_log=True)


def _lost(path: Path, state: _State, log: LogScan, what: str) -> Loss:
    if not log.commits:
        return Loss(what, _put_back(path, state), without_log=True)
    left = (
        f"keeps the file with the good part of its log, up to commit {state.number:,}, and both as "
        "they were under other names"
    )
    return Loss(what, _remedy(path, left))


def _read(path: Path, mode: str) -> _State | None:
    """Reads the state of a journal; None if the file is not a journal."""
    uri = f"{path.absolute().as_uri()}?{mode}"
    with closing(
        sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_SECONDS)
    ) as connection:
        connection.execute("BEGIN")
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if application != schema.APPLICATION_ID or version < 1:
            return None
        identity = schema.identity_of(connection)
        return _State(
            identity=identity,
            number=schema.last_number(connection),
            pages=connection.execute("PRAGMA page_count").fetchone()[0],
            page_size=connection.execute("PRAGMA page_size").fetchone()[0],
            has_foreign_writers=identity is not None
            and schema.has_foreign_writers(connection, identity),
        )


def _is_foreign(path: Path, state: _State | None) -> bool:
    """Returns whether the log belongs to another journal than the file."""
    if state is not None and state.has_foreign_writers:
        return True
    for _ in range(_TRIES):
        alone = _alone(path)
        if alone is None or alone.identity is None:
            return False
        if state is not None and state.identity == alone.identity:
            return False
        time.sleep(_PAUSE)
    return True


def _newer_without_log(path: Path, state: _State) -> _State | None:
    """Returns the state of the file without its log, if that state has more commits; None
    otherwise."""
    for _ in range(_TRIES):
        alone = _alone(path) if schema.log_size(path) else None
        if alone is None or alone.number <= state.number:
            return None
        time.sleep(_PAUSE)
        # If this fails, the earlier state counts.
        with suppress(sqlite3.Error, UnicodeDecodeError):
            # After the file, because a live writer may have written more in the meantime.
            state = _read(path, schema.mode_to_read(path)) or state
    return alone


def _alone(path: Path) -> _State | None:
    """Returns the state of the file without its log; None if it cannot be read, for example because
    a power loss left half of a page."""
    try:
        return _read(path, schema.WITHOUT_LOG)
    except (sqlite3.Error, UnicodeDecodeError):
        return None


def _is_vouched_for(path: Path, state: _State, note: Note | None) -> bool:
    """Returns whether the witness has noted the last commit during this boot."""
    if note is None or state.identity is None or not note.is_of_this_boot:
        return False
    # A live writer may have committed in the meantime.
    now = notes(witness_of(path)).get(state.identity)
    return now is not None and state.number <= now.number


def _describe_loss(note: Note, left: _State, why: str) -> str:
    when = datetime.fromtimestamp(note.time, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"has lost {_commits(note.number - left.number)}, the last one of {when}: {why}"


def _why(log: LogScan) -> str:
    if not log.size:
        return "its log (-wal) is gone, or the file is an older one"
    if log.beyond:
        return (
            f"its log (-wal) is damaged at byte {log.bad:,}, and the {log.size - log.bad:,} bytes "
            "from there on are lost"
        )
    return f"its log (-wal) ends at byte {log.end:,}, too early, or is an older one"


def _commits(number: int) -> str:
    return "1 commit" if number == 1 else f"{number:,} commits"


def _put_back(path: Path, alone: _State | None) -> str:
    """Returns the remedy for a journal of which only the file is usable."""
    upto = "" if alone is None else f", up to commit {alone.number:,}"
    return _remedy(path, f"keeps the file without its log{upto}, and the log under another name")


def _remedy(path: Path, left: str) -> str:
    return (
        f"put the right log back beside it, or go back to a copy of all; `holdfast journal check "
        f"{path} --repair` accepts the loss: it {left}"
    )


def _cut(path: Path, state: _State, log: LogScan | None) -> Loss | None:
    """Returns a loss if the file ends too early and the log does not have the missing pages.

    If the log has not been read, it is read only if the file ends inside a page. Before the log is
    copied into the file, the file is always shorter than its page count says.
    """
    whole = state.pages * state.page_size
    size = beside(path, "").stat().st_size
    if size >= whole or (log is None and size % state.page_size == 0):
        return None
    in_log = (log or scan(log_of(path))).pages
    # After the log, which other processes may copy in the meantime.
    size = beside(path, "").stat().st_size
    missing = range(size // state.page_size + 1, state.pages + 1)
    if size >= whole or in_log.issuperset(missing):
        return None
    remedy = (
        f"go back to a copy of it, or let `holdfast journal check {path} --repair` see whether it "
        "can be mended; check the disk"
    )
    return Loss(f"is cut: {whole - size:,} bytes at its end are missing", remedy, is_cut=True)
