"""Writes a file so that it is either whole or absent.

The content goes to a new file beside the target. When everything is on disk, the new file replaces
the target. A kill leaves the old file, or no file. A journal is never overwritten.
"""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from holdfast.journal.sqlite.schema import journal_of
from holdfast.records.errors import UsageError


def target_of(path: Path) -> Path:
    """Returns the file to replace. For a link, returns the file that the link points to.

    Raises `UsageError` for a device, for a journal, and for the files that belong to a journal.
    """
    if str(path) == "-":
        raise UsageError("this cannot be written to standard output; name a file instead of '-'")
    target = path.resolve() if path.is_symlink() else path
    if not target.name or (target.exists() and not target.is_file()):
        raise UsageError(f"{str(path)!r} cannot be written: it is not a regular file")
    try:
        journal = journal_of(target)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
    if journal is not None:
        what = "is" if journal == target else "belongs to"
        raise UsageError(
            f"{path} {what} the Holdfast journal {journal}, which is never written over; name "
            "another file"
        )
    return target


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields the path of a new file, which replaces the target if the block ends without an
    error.
    """
    target = target_of(path)
    try:
        part = _part(target)
        try:
            yield part
            _make_durable(part, target)
        finally:
            with contextlib.suppress(OSError):
                part.unlink()
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error


def _part(target: Path) -> Path:
    """Creates a new file beside the target. Its name is random, so that nobody can create a file or
    a link of that name first."""
    part = target.parent / f".holdfast-{secrets.token_hex(8)}.part"
    os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666))
    return part


def _make_durable(part: Path, target: Path) -> None:
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(target)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
