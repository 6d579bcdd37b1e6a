"""Files and folders that a power loss does not take away.

A file is durable when it was synced, its name when the folder was that it is in.
"""

import os
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


def sync_folder(folder: Path) -> None:
    _sync(folder, os.O_DIRECTORY)


def sync_file(file: Path) -> None:
    """Not of a journal that this process has open: closing a file ends SQLite's locks on it."""
    _sync(file, 0)


def make_alike(file: Path | int, model: Path) -> None:
    """For those to read and write who may do so with the model, as SQLite does it with its own
    files: one command of root does not lock out the owner."""
    status = model.stat()
    if os.geteuid() == 0:
        os.chown(file, status.st_uid, status.st_gid)
    os.chmod(file, status.st_mode & 0o777)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, os.O_RDONLY | flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
