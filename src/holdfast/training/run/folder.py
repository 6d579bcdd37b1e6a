"""The folder of a training: it holds nothing else, and one process at a time writes into it."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.records.errors import HoldfastError, UsageError

CHECKPOINTS, WEIGHTS, CURVE = "checkpoints", "weights", "curve.svg"
_OURS = (CHECKPOINTS, WEIGHTS, "metrics.", CURVE, "tensorboard", "wandb", ".")


class FolderInUse(HoldfastError):
    """Another process trains in this folder."""


class DiskTooSmall(HoldfastError):
    """The first checkpoint would not fit."""


@contextmanager
def use_folder(folder: Path) -> Iterator[None]:
    """Makes the folder and holds it until the end. Raises `UsageError` for one that holds something
    else, and `FolderInUse`. A new one in which nothing was written is removed again."""
    _check(folder)
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        _lock(handle, folder)
        yield
    finally:
        os.close(handle)
        if is_new:
            with suppress(OSError):
                folder.rmdir()


def _check(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; --out is a folder")
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if other := [name for name in names if not name.startswith(_OURS)]:
        raise UsageError(
            f"{folder} holds something else ({', '.join(other[:3])}): give an empty folder, or one "
            "that `holdfast train` made"
        )


def _lock(handle: int, folder: Path) -> None:
    """The kernel gives it back with the process, however that ends. It is held by a frozen process,
    too: one that wakes up cannot write between the files of its successor."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise FolderInUse(
            f"another process trains in {folder}: wait for it, or stop it; a frozen one has to be "
            "killed"
        ) from error
    except OSError:
        return  # A network file system without locks: the consumer's lease is left.


def check_disk(folder: Path, needed: int) -> None:
    """Raises `DiskTooSmall` where fewer than `needed` bytes are free."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DiskTooSmall(
            f"{folder} has {free / 1e9:.1f} GB free, and a checkpoint with its weights takes "
            f"{needed / 1e9:.1f} GB: make room, or give another --out"
        )
