"""Moves the write-ahead log into the main file, off the writer's path.

SQLite itself would copy inside the commit that crosses a threshold, and the append would wait until
all pages are copied. Here, another thread copies the pages while the writer goes on. The log can be
used again from its start only when all of it is copied. When the thread is done, the writer
therefore copies the small rest itself, between two batches.

Using the log again is worthwhile: a commit that makes the log's file longer takes twice as long on
the disk as a commit into existing parts of the file (benchmarks/journal.py). On a small disk it is
also necessary. The log may be many times as long as its content, and once it has filled the disk,
there is no room to copy it.
"""

import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

from holdfast.journal.files.wal import PAGE_SIZE
from holdfast.records.errors import JournalError

# Copies this much at once, because each copy syncs the log.
START_BYTES = 16 * 1024 * 1024
# From this size on, the log is restarted. SQLite then syncs the file, and one batch waits until all
# copies are on disk. This is rare enough not to show in the 99th percentile of an append.
RESTART_BYTES = 128 * 1024 * 1024
# The writer copies at most this much itself. If more is left, the thread copies again.
REST_BYTES = START_BYTES // 2
# If the thread never catches up, one batch waits for everything at this size. After a crash,
# reading this much takes a fraction of a second.
MOST_BYTES = 512 * 1024 * 1024
# What a commit writes beside its records: the last pages of three tables.
COMMIT_BYTES = 3 * PAGE_SIZE
_PASSIVE = "PRAGMA wal_checkpoint(PASSIVE)"


class Checkpointer:
    """Counts the bytes that the writer wrote. Delays the writer only to copy the rest of a long
    log."""

    def __init__(
        self,
        folder: Path,
        connect: Callable[[], sqlite3.Connection],
        copied: Callable[[], None] = lambda: None,
    ):
        """`copied` is called after each copy, in the thread that copied."""
        self._folder = folder
        self._connect = connect
        self._copied = copied
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._wake = threading.Event()
        self._copying = threading.Lock()
        """Held while copying, because SQLite refuses a second thread that copies."""
        self._stopping = False
        self._written = 0
        """The number of bytes in the log since it was last used from its start: the sum of what the
        writer wrote, which is a little too small, or the length at the last copy if that is
        larger."""
        self._found = 0
        """The length of the log at the last copy."""
        self._requested_at = 0
        """The value of `_written` when the thread was last asked to copy."""
        self._next_rest = 0
        """The writer copies again only when `_written` has reached this value, because a copy that
        just failed would fail again at once."""
        self._is_copied = False
        """Whether the thread has copied the log since the writer last looked."""

    def after_commit(self, size: int) -> bool:
        """Counts a commit. Returns whether the writer must call `copy_rest` before its next
        transaction."""
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
        """Copies the rest of the log. If all of it is copied, the next transaction begins at the
        log's start, unless a reader still uses the log."""
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
        """Returns the free bytes on the disk. Let the log use only half of them, because the log is
        longer than the writer's count, and the file grows by up to the log's length."""
        try:
            disk = os.statvfs(self._folder)
        except OSError:
            return 2 * MOST_BYTES  # The writer meets the same error and reports it.
        return disk.f_bavail * disk.f_frsize

    def _start(self) -> None:
        with self._starting:
            if self._thread is not None or self._stopping:
                return
            thread = threading.Thread(target=self._work, name="holdfast-checkpoint", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return  # No thread is available: the writer copies when the log is long enough.
            self._thread = thread

    def _work(self) -> None:
        try:
            connection = self._connect()
        except JournalError:
            return  # The writer meets the same error and reports it to its callers.
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
            return  # The disk is full: the log keeps everything, and the writer tries again.

    def stop(self) -> None:
        with self._starting:
            self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()


def _copy(connection: sqlite3.Connection) -> tuple[int, bool]:
    """Copies the log. Returns its length in bytes, and whether all of it is copied."""
    busy, frames, copied = connection.execute(_PASSIVE).fetchone()
    return frames * PAGE_SIZE, not busy and copied == frames
