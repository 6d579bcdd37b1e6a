"""Opening a journal to read, and finding a run in it by name."""

from pathlib import Path

from holdfast.journal import open_journal
from holdfast.journal.journal import Journal
from holdfast.records.errors import UsageError
from holdfast.records.run import Run


def to_read(where: str) -> Journal:
    if Path(where).exists() and not Path(where).is_file():
        raise UsageError(f"journal {where} is no regular file; name another one with --journal")
    if not Path(where).is_file():
        raise UsageError(f"there is no journal at {where}; name one with --journal")
    return open_journal(where, read_only=True)


async def named(journal: Journal, name: str) -> Run:
    run = await journal.find_run(name)
    if run is None:
        names = ", ".join(row.name for row in await journal.runs()) or "none"
        raise UsageError(f"there is no run {name!r} in the journal; it has: {names}")
    return run
