"""Moves the write-ahead log into the main file, off the writer's path.

SQLite would do it inside the commit that crosses a threshold, and that one append would wait for
all the pages. Here a thread of its own copies them while the writer goes on. The log can only be
used again from its start at a moment when all of it is copied, so when the thread is done, the
writer itself copies, between two batches, the little that came meanwhile.

It is worth being used again: a commit that makes its file longer takes twice as long on the disk as
one that writes where the file has been written before (benchmarks/journal.py). And it has to be,
where the disk is small: the log may be many times as long as what is in it, and once it has filled
the disk, there is no room to copy it.
"""

import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

from holdfast.journal.files.wal import PAGE_SIZE
from holdfast.records.errors import JournalError

# So much is copied at once: many small copies would sync the log as often.
START_BYTES = 16 * 1024 * 1024
# From here on the log is worth using again. SQLite syncs the file when all of the log is copied, so
# one batch waits until the disk has what all copies wrote: so seldom that the 99th percentile of an
# append does not feel it.
RESTART_BYTES = 128 * 1024 * 1024
# More than this is not copied by the writer: the thread goes over it once more.
REST_BYTES = START_BYTES // 2
# Where the thread never catches up, one batch waits for all. To read so much again after a crash
# takes a fraction of a second.
MOST_BYTES = 512 * 1024 * 1024
# What a commit writes beside its records: the last pages of three tables.
COMMIT_BYTES = 3 * PAGE_SIZE
_PASSIVE = "PRAGMA wal_checkpoint(PASSIVE)"


class Checkpointer:
    """Counts what the writer wrote; holds it up only for the rest of a long log."""

    def __init__(
        self,
        folder: Path,
        connect: Callable[[], sqlite3.Connection],
        copied: Callable[[], None] = lambda: None,
    ):
        """`copied` is called after each copy, in the thread that made it."""
        self._folder = folder
        self._connect = connect
        self._copied = copied
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._wake = threading.Event()
        self._copying = threading.Lock()
        """Held while copying: SQLite lets only one thread, and sends the other away."""
        self._stopping = False
        self._written = 0
        """Bytes, since the log was used from its start: as the writer counts, which does not see
        all that is written around its records, or as the last copy found."""
        self._found = 0
        """How long the log was when it was last copied."""
        self._requested_at = 0
        """How many of these there were when the thread was last asked to copy them."""
        self._next_rest = 0
        """The writer does not copy before so many: what it could not do, it cannot do at once."""
        self._is_copied = False
        """They are copied, and the writer has not looked since."""

    def after_commit(self, size: int) -> bool:
        """Called by the writer between two transactions; whether it is to `copy_rest` first."""
        self._written = max(self._written + size + COMMIT_BYTES, self._found)
        left = self._written - self._requested_at
        is_long = self._is_copied and self._written >= RESTART_BYTES
        if self._written >= max(min(MOST_BYTES, self._room() // 2), self._next_rest):
            return True
        if is_long and left <= REST_BYTES and self._written >= self._next_rest:
            return True
        if is_long or left >= START_BYTES:
            self._is_copied = False
            self._requested_at = self._written
            self._start()
            self._wake.set()
        return False

    def copy_rest(self, connection: sqlite3.Connection) -> None:
        """Where all is copied, the next transaction begins at the log's start, unless someone
        reads from it."""
        with self._copying:
            self._is_copied = False
            self._next_rest = self._written + min(START_BYTES, self._written // 4)
            self._found, is_all = _copy(connection)
            self._copied()
            if is_all:
                self._written = self._found = self._requested_at = self._next_rest = 0
                return
        self._requested_at = self._written

    def _room(self) -> int:
        """Bytes that are left on the disk. Half of that is as much as the log may be: it is longer
        than the writer counts, and the file grows by no more than the log has."""
        try:
            disk = os.statvfs(self._folder)
        except OSError:
            return 2 * MOST_BYTES  # Who writes meets the same trouble and reports it.
        return disk.f_bavail * disk.f_frsize

    def _start(self) -> None:
        with self._starting:
            if self._thread is not None or self._stopping:
                return
            thread = threading.Thread(target=self._work, name="holdfast-checkpoint", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return  # No more threads here: the writer copies when the log is long enough.
            self._thread = thread

    def _work(self) -> None:
        try:
            connection = self._connect()
        except JournalError:
            return  # The writer meets the same trouble and reports it to its callers.
        try:
            while self._wake.wait() and not self._stopping:
                self._wake.clear()
                self._copy_some(connection)
        finally:
            connection.close()

    def _copy_some(self, connection: sqlite3.Connection) -> None:
        try:
            with self._copying:
                self._found, self._is_copied = _copy(connection)
                self._copied()
        except sqlite3.Error:
            return  # Out of space: the log keeps everything, and the writer tries again.

    def stop(self) -> None:
        with self._starting:
            self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()


def _copy(connection: sqlite3.Connection) -> tuple[int, bool]:
    """The length of the log in bytes, and whether all of it that was there is copied."""
    busy, frames, copied = connection.execute(_PASSIVE).fetchone()
    return frames * PAGE_SIZE, not busy and copied == frames
