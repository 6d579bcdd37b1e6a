"""Caches verdicts by question, in memory or in a file that later runs share.

If a score is recorded, its judge is not asked again. The cache helps where there is no record: in
another run with the same question, for a second scorer, or after a process was killed between the
verdict and its record. The cache holds answers of judges, but no keys and no conversations.
"""

import asyncio
import hashlib
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from holdfast.records.errors import UsageError
from holdfast.records.message import Message
from holdfast.records.sampling import Sampling

_TABLE = "CREATE TABLE IF NOT EXISTS verdicts(digest BLOB PRIMARY KEY, answer TEXT NOT NULL)"
BUSY_SECONDS = 30.0


def digest_of_question(model: str, sampling: Sampling, messages: tuple[Message, ...]) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode((model, sampling, messages))).digest()


class VerdictCache:
    """Keeps the answers of judges by question, in the file `path`. Without a path, keeps them in
    memory as long as the judge exists.

    Access to a file runs in a thread, because another process may be writing to the file.
    """

    def __init__(self, path: Path | None):
        self._path = path
        self._known: dict[bytes, str] = {}
        self._connection: sqlite3.Connection | None = None
        self._using = threading.Lock()

    async def get(self, digest: bytes) -> str | None:
        if self._path is None:
            return self._known.get(digest)
        return await asyncio.to_thread(self._read, digest)

    async def put(self, digest: bytes, answer: str) -> None:
        if self._path is None:
            self._known[digest] = answer
        else:
            await asyncio.to_thread(self._write, digest, answer)

    def _read(self, digest: bytes) -> str | None:
        with self._usable() as connection:
            stored = connection.execute("SELECT answer FROM verdicts WHERE digest = ?", (digest,))
            row = stored.fetchone()
        return None if row is None else str(row[0])

    def _write(self, digest: bytes, answer: str) -> None:
        with self._usable() as connection:
            connection.execute("INSERT OR IGNORE INTO verdicts VALUES (?, ?)", (digest, answer))

    def check(self) -> None:
        """Raises `UsageError` if the cache's file cannot be read and written."""
        if self._path is not None:
            with self._usable() as connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("ROLLBACK")
            self.close()  # The next use opens it again.

    @contextmanager
    def _usable(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._using:
                yield self._open()
        except sqlite3.Error as error:
            raise UsageError(
                f"the judge's cache {self._path} cannot be used: {error}; name another file with "
                "cache=, or leave it out"
            ) from None

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = sqlite3.connect(
                str(self._path), timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            connection.execute(_TABLE)
            self._connection = connection
        return self._connection

    def close(self) -> None:
        with self._using:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
