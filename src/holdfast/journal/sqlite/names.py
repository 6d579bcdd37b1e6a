"""One journal, one name. SQLite finds the log of a file by the file's name.

Under a second name the file has a second log, and two processes that use one each write over each
other's pages. A folder may have as many names as it likes, and a symbolic link is followed: the log
lies beside the file then. A hard link, and a mount of the single file, are refused, whether or not
anyone else is there: what a process that was killed left in the other log is not seen from here.
"""

import re
from pathlib import Path

from holdfast.journal.files.wal import beside
from holdfast.records.errors import JournalError

_MOUNTS = Path("/proc/self/mountinfo")
_MOUNT_POINT = 4


def refuse_second_name(path: Path) -> None:
    """`JournalError` for a file with a log that may lie elsewhere."""
    file = beside(path, "")
    if not file.is_file():
        return
    if (names := file.stat().st_nlink) > 1:
        raise JournalError(
            f"journal {path} has {names} names (hard links), and its log lies beside one of them: "
            "remove the others, or copy it to a name of its own"
        )
    if _is_mounted(file):
        raise JournalError(
            f"journal {path} is mounted as a single file, and its log (-wal) does not lie here: "
            "mount its folder instead"
        )


def _is_mounted(file: Path) -> bool:
    try:
        mounts = _MOUNTS.read_bytes().splitlines()
    except OSError:
        return False  # No Linux: there are no mounts of single files.
    return any(_unescaped(mount.split()[_MOUNT_POINT]) == bytes(file) for mount in mounts)


def _unescaped(name: bytes) -> bytes:
    return re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), name)
