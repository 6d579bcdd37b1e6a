"""Creates and flushes files and folders so that they survive a power loss.

A file is durable after it was synced. Its name is durable after its folder was synced.
"""

import os
from pathlib import Path


def make_folders(folder: Path) -> None:
    """Creates the folder and its parents, and makes each durable in its parent."""
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
    """Flushes a file to disk. Do not use it on a journal that this process has open, because
    closing the file would drop SQLite's locks."""
    _sync(file, 0)


def make_alike(file: Path | int, model: Path) -> None:
    """Gives a file the permissions of `model`, and if root runs this process, the owner of `model`.
    SQLite treats its own files in the same way, so that a command that root ran does not lock out
    the owner."""
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
