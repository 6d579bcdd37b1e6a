"""The journal has durable, append-only logs. Only the present holder of a log's lease writes it.

The package keeps, leases and delivers records. It does not know what the records mean.

- `types`: The basic data types of a journal, such as leases and batches.
- `worlds`: The rows of the ledger of worlds.
- `changes`: Waits for changes of this process.
- `rules`: Checks and errors that every journal shares.
- `rows`: What must be true of the rows of tasks and trajectories.
- `references`: Finds the blobs to which a record refers.
- `process`, `lease_clock`: Find out whether a process is gone, and when a lease is over.
- `ledger`: The rules of the ledger of a run's groups.
- `entries`: Encodes records for a database.
- `sql`: The logic, written once over a store.
- `sqlite`: The store in one SQLite file, or in memory.
- `files`: The files beside a database.
- `postgres`: The store on a PostgreSQL server.
- `damage`: Checks and repairs a journal.
- `copying`: Copies runs from one journal to another.
"""

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import json

from holdfast.extras import needed_by
from holdfast.journal.sql.journal import Journal
from holdfast.journal.types import MEMORY
from holdfast.records.encoding.redaction import public_address
from holdfast.records.errors import UsageError

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
"""Matches a URL with one slash, because a `Path` turns two slashes into one."""
_DSN = re.compile(r"\s*(?:host|hostaddr|port|user|password|dbname)\s*=.*\b(?:host|user|dbname)\s*=")
"""Matches a connection string of libpq, such as `host=… dbname=…`."""
POSTGRES = ("postgresql", "postgres")
PASSWORDS = "HOLDFAST_JOURNAL_PASSWORDS"
"""The environment variable that passes passwords to our child processes."""


def is_server(where: object) -> bool:
    """Returns whether the address is the URL of a server rather than the path of a file."""
    return isinstance(where, str) and where.startswith(tuple(f"{name}://" for name in POSTGRES))


def shown_address(where: str | Path) -> str:
    """Returns the address without its password, for messages."""
    if not is_server(where):
        return str(where)
    return public_address(str(where))


def take_password(where: str) -> str:
    """Returns the address without its password. This process remembers the password and uses it
    when it opens the returned address."""
    if not is_server(where):
        return where
    from holdfast.journal.postgres.address import keep_password

    return keep_password(where)


def share_passwords() -> None:
    """Sets the environment variable from which child processes learn the passwords that this
    process knows. Only child processes that are started later get them."""
    from holdfast.journal.postgres.address import taken_passwords

    if taken_passwords:
        os.environ[PASSWORDS] = json.encode(taken_passwords).decode()


def adopt_passwords() -> None:
    """Removes the shared passwords from this process's environment and remembers them, so that
    agents and tools do not inherit them."""
    from holdfast.journal.postgres.address import taken_passwords

    if passwords := os.environ.pop(PASSWORDS, None):
        taken_passwords.update(json.decode(passwords, type=dict[str, str]))


def open_journal(where: str | Path, *, read_only: bool = False) -> Journal:
    """Opens a journal by its address: a file path (SQLite), the URL of a PostgreSQL server, or
    `memory:` for a journal in memory.

    Opening a journal on a server does not connect to the server; the first use does.
    """
    check_address(where)
    if str(where) == MEMORY:
        from holdfast.journal.sqlite.journal import MemoryJournal

        return MemoryJournal()
    if is_server(where):
        return _open_server(str(where), read_only=read_only)
    from holdfast.journal.sqlite.journal import SqliteJournal

    return SqliteJournal(Path(where), read_only=read_only)


def _open_server(where: str, *, read_only: bool) -> Journal:
    require_driver(where)
    from holdfast.journal.postgres.journal import PostgresJournal

    return PostgresJournal(where, read_only=read_only)


def require_driver(where: str) -> None:
    """Raises `UsageError` if the PostgreSQL driver is not installed. Call it before importing code
    that talks to the server."""
    with needed_by(f"journal {shown_address(where)}", extra="postgres"):
        import psycopg  # noqa: F401 - Whether it is there.


@asynccontextmanager
async def opened_journal(where: str | Path, *, read_only: bool = False) -> AsyncIterator[Journal]:
    """Opens a journal like `open_journal`, and closes it at the end of the block."""
    journal = open_journal(where, read_only=read_only)
    try:
        yield journal
    finally:
        await journal.close()


def check_journal(journal: object) -> None:
    """Raises `UsageError` unless the argument is an open journal or the address of a journal."""
    if not hasattr(journal, "find_run"):
        check_address(journal)


def check_address(where: object) -> None:
    """Raises `UsageError` unless the argument is the address of a journal. Without this check, the
    URL of an unknown kind of server would be treated as a file name."""
    if not isinstance(where, str | Path) or not str(where):
        raise UsageError(f"a journal is the path of a file, or {MEMORY}, not {where!r:.100}")
    if is_server(where):
        from holdfast.journal.postgres.address import address_of

        address_of(str(where))
        return
    if _DSN.match(str(where)):
        raise UsageError(
            "a journal on a server is a URL: write postgresql://USER@HOST/DATABASE for it, not "
            "user=… host=… dbname=…"
        )
    if match := _URL.match(str(where)):
        # The error quotes no more of the address, which may contain a password.
        raise UsageError(
            f"journal {match[1]}://…: a journal is a file, like holdfast.db, or {MEMORY}, or "
            "postgresql://USER@HOST/DATABASE, as text"
        )
