"""The folder of a training. It must be empty at the beginning, and only one process at a time may
write into it. It belongs to the journal that is opened with it."""

import errno
import fcntl
import os
import shutil
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from holdfast.journal import is_server, open_journal
from holdfast.journal.sql.journal import Journal
from holdfast.records.errors import HoldfastError, UsageError
from holdfast.records.exit_codes import Exit

CHECKPOINTS, WEIGHTS, CURVE, ENGINE_LOG = "checkpoints", "weights", "curve.svg", "engine.log"
PARTS = "pipeline"
"""The name of the folder with the logs and states of parts that run in their own processes."""
RANKS = "ranks"
"""The name of the folder with the logs of the ranks other than rank 0."""
_PROCESS = ".process"
"""The name of the file that says which process uses the folder."""
_OURS = (
    *(CHECKPOINTS, WEIGHTS, "metrics.", CURVE, ENGINE_LOG, PARTS, RANKS),
    *("tensorboard", "wandb", "."),
)


class FolderInUse(HoldfastError):
    """Another process trains in this folder."""

    exit_code = Exit.HELD


class DiskTooSmall(UsageError):
    """The disk has no room for the first checkpoint."""


class DiskFull(HoldfastError):
    """The disk has no room for a file of the training."""


class OtherTraining(UsageError):
    """The folder's checkpoint was made with other settings."""

    exit_code = Exit.CHANGED


@contextmanager
def use_folder(folder: Path, *, holds_parts: bool = False) -> Iterator[None]:
    """Creates the folder if needed, and holds its lock until the end of the block. Removes a new
    folder if nothing was written into it. Set `holds_parts` only for the subfolder of a training's
    folder that all parts of the training share. Raises `UsageError` if the folder holds anything
    else than a training, and `FolderInUse` if another process trains in it."""
    try:
        if not holds_parts:
            check_folder(folder)
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise _unwritable(folder, error) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        os.close(handle)
        raise _unwritable(folder, PermissionError("it belongs to somebody else"))
    try:
        _lock(handle, folder)
        with name_full_disk(folder):
            (folder / _PROCESS).write_text(f"pid {os.getpid()} on {socket.gethostname()}")
        try:
            yield
        finally:
            with suppress(OSError):  # The lock is what counts.
                (folder / _PROCESS).unlink()
    finally:
        os.close(handle)
        if is_new:
            with suppress(OSError):
                folder.rmdir()


def _unwritable(folder: Path, error: OSError) -> UsageError:
    why = error.strerror or error
    return UsageError(f"{folder} cannot be written ({why}): give another --out")


def check_folder(folder: Path) -> None:
    """Raises `UsageError` if the folder holds anything else than a training. Other files next to a
    training's checkpoints, such as a report, are allowed."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; --out is a folder")
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    other = [name for name in names if not name.startswith(_OURS)]
    if other and not any(folder.glob(f"{CHECKPOINTS}/step-*/manifest.json")):
        raise UsageError(
            f"{folder} holds something else ({', '.join(other[:3])}): give an empty folder, or one "
            "that `holdfast train` made"
        )


def _lock(handle: int, folder: Path) -> None:
    """Locks the folder. The kernel releases the lock when the process ends. A frozen process keeps
    the lock, so that it cannot wake up and write between the files of another process."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        who = ""
        with suppress(FileNotFoundError):  # The other process has not written it yet.
            who = f" ({(folder / _PROCESS).read_text()})"
        raise FolderInUse(
            f"another process trains in {folder}{who}: wait for it, or stop it; a frozen one has "
            "to be killed"
        ) from error
    except OSError:
        return  # A network file system without locks. The consumer's lease still protects the run.


def check_disk(folder: Path, needed: int) -> None:
    """Raises `DiskTooSmall` if fewer than `needed` bytes are free."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DiskTooSmall(
            f"{folder} has {_size(free)} free, and a checkpoint with its weights takes "
            f"{_size(needed)}: make room, or give another --out"
        )


def _size(number: int) -> str:
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{number / 1e6:.0f} MB"


@contextmanager
def name_full_disk(folder: Path) -> Iterator[None]:
    """Raises `DiskFull` in place of an error about a full disk."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        is_full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        if not is_full and "os error 28" not in str(error):
            raise
        raise DiskFull(
            f"the disk that holds {folder} is full; free some space and run the same command again"
        ) from error


@asynccontextmanager
async def use_journal(journal: Journal | Path | str, must_exist: bool) -> AsyncIterator[Journal]:
    """Yields the journal. Closes it if it was given by its path; the caller's own journal stays
    open."""
    if not isinstance(journal, Path | str):
        yield journal
        return
    if must_exist and not is_server(journal) and not Path(journal).exists():
        raise UsageError(
            f"there is no journal at {journal}: give the one that --out was trained with, or "
            "another --out"
        )
    opened = open_journal(str(journal))
    try:
        yield opened
    finally:
        await opened.close()
