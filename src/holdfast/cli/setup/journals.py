"""Opens the journal that a command names."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from holdfast.journal import check_address, is_server, opened_journal
from holdfast.journal.sql.journal import Journal
from holdfast.records.errors import UsageError


def to_change(where: str, *, how: str = "with --journal") -> AbstractAsyncContextManager[Journal]:
    """Opens an existing journal for changes; never creates one. `how` tells the user how to name
    another journal."""
    _check_there(where, how=how)
    return opened_journal(where)


def to_read(where: str) -> AbstractAsyncContextManager[Journal]:
    _check_there(where)
    return opened_journal(where, read_only=True)


def _check_there(where: str, *, how: str = "with --journal") -> None:
    check_address(where)
    if is_server(where):
        return
    if Path(where).exists() and not Path(where).is_file():
        raise UsageError(f"journal {where} is not a regular file; name another one {how}")
    if not Path(where).is_file():
        raise UsageError(f"there is no journal at {where}; name one {how}")


def refuse_journal(target: Path, journal: str) -> None:
    """Raises `UsageError` if a command would overwrite the journal that it reads."""
    for name in ("", "-wal", "-shm"):
        part = Path(f"{journal}{name}")
        if target.exists() and part.exists() and target.samefile(part):
            raise UsageError(f"{target} is the journal itself; name another file with --out")
