"""Opening a journal to read."""

from pathlib import Path

from holdfast.journal import open_journal
from holdfast.journal.journal import Journal
from holdfast.records.errors import UsageError


def to_read(where: str) -> Journal:
    if Path(where).exists() and not Path(where).is_file():
        raise UsageError(f"journal {where} is no regular file; name another one with --journal")
    if not Path(where).is_file():
        raise UsageError(f"there is no journal at {where}; name one with --journal")
    return open_journal(where, read_only=True)
