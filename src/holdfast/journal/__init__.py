"""The data plane: durable, fenced, append-only.

Knows how records are kept, leased and delivered. Never knows what they mean.
"""

from pathlib import Path

from holdfast.journal.journal import Journal

MEMORY = "memory:"
"""The address of a journal that keeps nothing."""


def open_journal(where: str | Path, *, read_only: bool = False) -> Journal:
    """A journal by its address: a file path (SQLite), or `memory:` for one that keeps nothing."""
    if str(where) == MEMORY:
        from holdfast.journal.memory import MemoryJournal

        return MemoryJournal()
    from holdfast.journal.sqlite import SqliteJournal

    return SqliteJournal(Path(where), read_only=read_only)
