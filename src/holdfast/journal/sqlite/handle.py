"""Handle: the connection that writes, from one error to the next.

After an error it is never used again, since pages that failed to reach the disk look clean to it. A
commit whose fsync failed is not in the journal, but it is in the log's file, and where no other
connection is open, the next one reads the log from there: it would find the commit, and take for
durable what is in memory only. So a second connection stays open beside the first. It does nothing
but remember, as all connections to a file do together, where the log ends.
"""

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from holdfast.journal.sqlite.store import SqliteStore
from holdfast.records.errors import JournalError

Connect = Callable[[], sqlite3.Connection]


class Handle:
    """Opened when it is first needed, and again after it was given up."""

    def __init__(self, file: Path, open_store: Callable[[], SqliteStore], keep: Connect):
        """`file`: an absolute path; `keep`: makes the connection that is opened once."""
        self._file = file
        self._open = open_store
        self._keep = keep
        self._store: SqliteStore | None = None
        self._keeper: sqlite3.Connection | None = None
        self._inode: tuple[int, int] | None = None

    @property
    def store(self) -> SqliteStore:
        if self._store is None:
            self.check_place()
            self._store = self._open()
            self._inode = _inode_of(self._file)
        if self._keeper is None:
            self._keeper = self._keep()
        return self._store

    def check_place(self) -> None:
        """SQLite would go on writing to a file that nobody finds any more."""
        if self._inode is not None and _inode_of(self._file) != self._inode:
            raise JournalError(
                f"journal {self._file} was deleted, moved or replaced while it was in use; put it "
                "back and run the same command again, or begin another journal"
            )

    def give_up(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            with suppress(sqlite3.Error):  # The next connection rolls back what it held.
                store.connection.close()

    def close(self) -> None:
        """The last connection that is closed moves the log into the file."""
        self.give_up()
        if self._keeper is not None:
            with suppress(sqlite3.Error):  # What cannot be moved stays in the log.
                self._keeper.close()
            self._keeper = None


def _inode_of(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
