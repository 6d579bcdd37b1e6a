"""Folders and files that only this user can change, even in shared places such as /tmp.

A new folder gets mode 0700. An existing folder must belong to the user, must not be another user's
link, and must not be writable for others. A file gets mode 0600 and is never opened through a link.
"""

import contextlib
import os
import secrets
import stat
from pathlib import Path

from holdfast.records.errors import UsageError

_ELSEWHERE = "name another folder (for temporary files, set TMPDIR to it)"


def private_folder(path: Path | str) -> Path:
    """Returns the real path of the folder. Creates the folder and its parents if they are missing.
    Raises `UsageError` if another user can change the folder or the path is not a folder, and
    `OSError` if the folder cannot be created."""
    # Without a slash at the end, which would follow a link.
    folder = os.path.abspath(path)
    try:
        _make(folder)
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageError(f"{folder} is not a folder: {_ELSEWHERE}") from error
    # Checked after it exists, because nobody else can replace it then, even in a shared folder.
    if os.path.islink(folder) and os.lstat(folder).st_uid not in (0, os.geteuid()):
        raise UsageError(f"{folder} is a link of somebody else's: {_ELSEWHERE}")
    status = os.stat(folder)
    if status.st_uid != os.geteuid():
        raise UsageError(f"{folder} belongs to somebody else: {_ELSEWHERE}")
    if stat.S_IMODE(status.st_mode) & 0o022:
        raise UsageError(f"others may write to {folder}: chmod go-w, or {_ELSEWHERE}")
    return Path(os.path.realpath(folder))


def open_private(path: Path | str, flags: int = os.O_RDWR) -> int:
    """Opens the file and returns its descriptor. Creates the file if it is missing. Raises
    `OSError`, for example if the path is a link."""
    flags |= os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o600)


def write_private(path: Path, content: bytes) -> None:
    """Replaces the content of the file atomically: the file has its old content or all of the new
    one."""
    new = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        _write_new(new, content)
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


def stored_secret(path: Path, fresh: bytes) -> bytes:
    """Returns the content of the file. If the file is missing, writes `fresh` to it first.
    Processes that do this at the same time get the same content. Raises `UsageError` if others can
    read the file, and `OSError` if the file cannot be read or written."""
    new = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    if not os.path.lexists(path):
        try:
            _write_new(new, fresh)
            with contextlib.suppress(FileExistsError):
                os.link(new, path)
        finally:
            new.unlink(missing_ok=True)
    return read_private(path)


def read_private(path: Path) -> bytes:
    """Returns the content of the file. Raises `UsageError` if others can read the file, and
    `OSError` if the file cannot be read."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
            raise UsageError(f"others can read the secret {path}: remove it, and another is made")
        return file.read()


def _make(folder: str) -> None:
    missing = []
    while not os.path.lexists(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for path in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
    if not os.path.isdir(missing[0] if missing else folder):
        raise NotADirectoryError(folder)


def _write_new(path: Path, content: bytes) -> None:
    with open(open_private(path, os.O_WRONLY | os.O_EXCL), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
