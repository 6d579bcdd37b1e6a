"""The commits of a journal are numbered, and the journal has an identity.

Both are in the database itself: the number of the last commit as the highest of table `batches`,
the identity, a random number, among the counters. A writer's name begins with the identity, so that
a log of another journal cannot pass for ours: each of its commits names a writer of its own.
"""

import binascii
import secrets
import sqlite3
from pathlib import Path

from holdfast.journal.files.witness import Witness, witness_of
from holdfast.records.errors import JournalError

# Of so many writers the last number is kept. A writer needs its own right after an error.
KEPT = 64
_NUMBER_BYTES = 5
_NUMBERED = """INSERT INTO batches SELECT ?, coalesce(max(batch), 0) + 1 FROM batches WHERE true
    ON CONFLICT DO UPDATE SET batch = excluded.batch RETURNING batch"""
_OLD = """DELETE FROM batches WHERE name NOT IN
    (SELECT name FROM batches ORDER BY batch DESC LIMIT ?)"""


def give_identity(connection: sqlite3.Connection) -> None:
    """Within a transaction; a journal that has one keeps it."""
    number = secrets.token_bytes(_NUMBER_BYTES)
    identity = int.from_bytes(number + _check_of(number), "big")
    connection.execute("INSERT OR IGNORE INTO counters VALUES ('identity', ?)", (identity,))


def identity_of(connection: sqlite3.Connection) -> int | None:
    """None for a journal that only older versions have written, and for one that is garbage."""
    row = connection.execute("SELECT value FROM counters WHERE name = 'identity'").fetchone()
    if row is None or not isinstance(row[0], int) or not 0 <= row[0] < 1 << 8 * (_NUMBER_BYTES + 2):
        return None
    found = row[0].to_bytes(_NUMBER_BYTES + 2, "big")
    return row[0] if _check_of(found[:-2]) == found[-2:] else None


def _check_of(number: bytes) -> bytes:
    """A part of the identity itself: half a page must not pass for another journal."""
    return binascii.crc_hqx(number, 0xFFFF).to_bytes(2, "big")


def last_number(connection: sqlite3.Connection) -> int:
    (number,) = connection.execute("SELECT max(batch) FROM batches").fetchone()
    return number if isinstance(number, int) else 0


def has_foreign_writers(connection: sqlite3.Connection, identity: int) -> bool:
    """Whether a writer of another journal has committed here."""
    (count,) = connection.execute(
        "SELECT count(*) FROM batches WHERE name LIKE '%-%' AND name NOT LIKE ?",
        (f"{identity:016x}-%",),
    ).fetchone()
    return bool(count)


def _remedy(error: OSError, journal: Path) -> str:
    witness = witness_of(journal)
    if isinstance(error, PermissionError) and witness.exists():
        return f"it belongs to somebody else: chown {witness} to the journal's owner, or remove it"
    return "check the folder"


class Commits:
    """One writer's commits: their numbers, and the witness of them."""

    def __init__(self, file: Path):
        self._file = file
        self._name = ""
        self._witness: Witness | None = None

    def next_number(self, connection: sqlite3.Connection) -> int:
        """For the transaction that is open: written in it, and higher than any before."""
        if self._witness is None:
            self._begin(connection)
        (number,) = connection.execute(_NUMBERED, (self._name,)).fetchone()
        return int(number)

    def _begin(self, connection: sqlite3.Connection) -> None:
        identity = identity_of(connection) or 0
        self._name = f"{identity:016x}-{secrets.token_hex(8)}"
        try:
            self._witness = Witness(witness_of(self._file), identity, like=self._file)
        except OSError as error:
            raise JournalError(
                f"journal {self._file} cannot be written: no witness of its commits can be kept "
                f"beside it ({error.strerror}); {_remedy(error, self._file)}"
            ) from error
        connection.execute(_OLD, (KEPT,))

    def last_number(self, connection: sqlite3.Connection) -> int | None:
        """Of this writer's commits in the journal."""
        row = connection.execute(
            "SELECT batch FROM batches WHERE name = ?", (self._name,)
        ).fetchone()
        return None if row is None else int(row[0])

    def note(self, number: int) -> None:
        """That commit was synced: to be noted before its callers wake."""
        if self._witness is not None:
            self._witness.note(number)

    def sync(self) -> None:
        if self._witness is not None:
            self._witness.sync()

    def close(self) -> None:
        if self._witness is not None:
            self._witness.close()
            self._witness = None
