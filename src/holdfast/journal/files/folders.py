"""Files and folders that a power loss does not take away.

A file is durable when it was synced, its name when the folder was that it is in.
"""

import errno
import os
import stat
from pathlib import Path


def make_folders(folder: Path) -> None:
    """Makes the folder and those above it, each durable in its parent."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        sync_folder(each.parent)


def make_private_folder(folder: Path) -> None:
    """Makes it for this user alone; `OSError` where it is a link or somebody else's."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(errno.EPERM, "it is no folder of this user alone", str(folder))


def sync_folder(folder: Path) -> None:
    _sync(folder, os.O_DIRECTORY)


def sync_file(file: Path) -> None:
    """Not of a journal that this process has open: closing a file ends SQLite's locks on it."""
    _sync(file, 0)


def make_alike(file: Path | int, model: Path) -> None:
    """For those to read and write who may do so with the model, as SQLite does it with its own
    files: one command of root does not lock out the owner."""
    found = model.stat()
    if os.geteuid() == 0:
        os.chown(file, found.st_uid, found.st_gid)
    os.chmod(file, found.st_mode & 0o777)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, os.O_RDONLY | flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
