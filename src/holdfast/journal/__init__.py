"""The data plane: durable, fenced, append-only.

Knows how records are kept, leased and delivered. Never knows what they mean.

- `journal`: The interface, and what every journal promises.
- `find_run`: A run by the name that a user typed.
- `changes`: Waiting for what this process changes.
- `rules`: What every journal refuses, in the same words.
- `memory`, `memory_ledger`: A journal that keeps nothing: for tests and notebooks.
- `process`, `lease_clock`: Which process is gone, and when a lease is over.
- `sqlite`: The journal in one SQLite file.
- `files`: The files beside its database.
- `damage`: Checking and repairing it.
"""

import re
from pathlib import Path

from holdfast.journal.journal import Journal
from holdfast.records.errors import UsageError

MEMORY = "memory:"
"""The address of a journal that keeps nothing."""


_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
"""With one slash: a `Path` has made one of two."""


def open_journal(where: str | Path, *, read_only: bool = False) -> Journal:
    """A journal by its address: a file path (SQLite), or `memory:` for one that keeps nothing."""
    check_address(where)
    if str(where) == MEMORY:
        from holdfast.journal.memory import MemoryJournal

        return MemoryJournal()
    from holdfast.journal.sqlite.journal import SqliteJournal

    return SqliteJournal(Path(where), read_only=read_only)


def check_address(where: object) -> None:
    """Refuses the address of a server, which would be taken for the path of a file."""
    if not isinstance(where, str | Path) or not str(where):
        raise UsageError(f"a journal is the path of a file, or {MEMORY}, not {where!r:.100}")
    if found := _URL.match(str(where)):
        # No more of it is said: it may hold a password.
        raise UsageError(
            f"journal {found[1]}://…: a journal is a file, like holdfast.db, or {MEMORY}; "
            "PostgreSQL and other servers are not there yet"
        )
