"""Folders of workspaces: one per process, in it one per workspace.

A process holds a lock for as long as it lives. Whoever comes next removes the folders of those that
were killed, with everything that still runs in them. Nothing else that lies there is touched: a
root is a folder that the user may have other uses for.
"""

import atexit
import contextlib
import fcntl
import itertools
import logging
import os
import re
import secrets
import shutil
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable

from holdfast.environments.workspace.sandbox.processes import kill_all
from holdfast.records.errors import EnvironmentBroken, UsageError

LOCK = ".lock"
IN_USE = b"in use"
"""In the lock of a folder that was claimed; it is gone when somebody else has the lock."""
ROUNDS, PAUSE = 500, 0.02
_ELSEWHERE = "set TMPDIR to another folder (or, of workspaces, name another `root`)"
_OURS = re.compile(r"[0-9a-f]{12}\.lock").fullmatch
"""The lock of a room. Other programs call their files .lock as well, and those are theirs."""
_log = logging.getLogger("holdfast.environments")
_lock = threading.Lock()
_rooms: dict[str, "Room"] = {}


class Room:
    """This process's folder within `root`."""

    def __init__(self, root: str):
        self._numbers = itertools.count(1)
        self._process = os.getpid()
        _make_private(root)
        _remove_abandoned(root)
        while True:
            self.path = os.path.join(root, secrets.token_hex(6))
            self._held = _hold(self.path + LOCK)
            if self._held is not None:
                break
        os.mkdir(self.path, 0o700)
        atexit.register(self._leave)

    def _leave(self) -> None:
        """A process that is killed leaves this to the next one."""
        if self.is_ours and self._held is not None:
            _empty_if_possible(self.path, self._held)

    @property
    def is_ours(self) -> bool:
        """Not after a fork: two processes would count the same numbers."""
        return self._process == os.getpid() and os.path.isdir(self.path)

    def place(self) -> str:
        """A new folder; its name is always as long, so that outputs are."""
        path = os.path.join(self.path, f"{next(self._numbers):06d}")
        os.mkdir(path, 0o700)
        return path


class FolderClaim:
    """A folder whose path is known beforehand, and that one at a time may have.

    What was left there is removed first, and whatever still runs in it is ended: nothing of an
    earlier holder is there, or writes there later, as far as it can be found.
    """

    def __init__(self, root: str, names: Iterable[str]):
        self._root = root
        self._names = names
        self._path = ""
        self._held: int | None = None

    @property
    def name(self) -> str:
        """The one of the names that it got."""
        return os.path.basename(self._path)

    def take(self) -> str:
        """An empty folder at the first of the names that can be had. Blocks."""
        where = _resolved(self._root)
        _make_private(where)
        for name in self._names:
            path = os.path.join(where, name)
            if (held := _hold_unless_in_use(path + LOCK)) is not None and _is_emptied(path, held):
                self._path, self._held = path, held
                os.write(held, IN_USE)
                place = os.path.join(path, f"{1:06d}")
                os.makedirs(place, 0o700)
                return place
        raise EnvironmentBroken(f"no folder can be had in {where}: {_ELSEWHERE}")

    def give_up(self) -> None:
        """Ends what runs in it, and removes it. Harmless where it was never taken."""
        if self._held is not None:
            held, self._held = self._held, None
            _empty_if_possible(self._path, held, sandboxed=False)


def _hold_unless_in_use(lock: str) -> int | None:
    """Whoever only removes what a killed process left is done soon, and is waited for."""
    for _ in range(ROUNDS):
        if (held := _hold(lock)) is not None:
            return held
        with contextlib.suppress(FileNotFoundError):
            if os.stat(lock).st_size:
                return None
        time.sleep(PAUSE)
    return None


def _is_emptied(path: str, held: int) -> bool:
    """Whether nothing is left there; otherwise it is not held any more, either."""
    try:
        _end_all_in(path, sandboxed=False)
        remove(path)
    except (EnvironmentBroken, OSError) as error:
        _log.warning("what an attempt has left stays for now: %s", error)
        os.close(held)
        return False
    return True


def new_place(root: str | None) -> str:
    """An empty folder that nobody else has. Blocks."""
    where = _resolved(
        root or os.path.join(tempfile.gettempdir(), f"holdfast-workspaces-{os.geteuid()}")
    )
    with _lock:
        room = _rooms.get(where)
        if room is None or not room.is_ours:
            room = _rooms[where] = Room(where)
        return room.place()


def make(path: str) -> None:
    """As everybody makes folders, whatever the driver's umask is: modes are part of a snapshot."""
    os.makedirs(path)
    os.chmod(path, 0o755)  # noqa: S103 - what leads to it is closed to others


def remove(path: str) -> None:
    """Whatever is in it: read-only folders, a million files, folders nested without end."""
    if os.path.islink(path) or not os.path.isdir(path):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        return
    # What it cannot do is done, or told, below.
    with contextlib.suppress(OSError, RecursionError):
        shutil.rmtree(path)
    if not os.path.lexists(path):
        return
    # rm walks by file descriptors: no depth is too much for it.
    subprocess.run(["/bin/chmod", "-R", "u+rwX", "--", path], capture_output=True, check=False)  # noqa: S603
    done = subprocess.run(["/bin/rm", "-rf", "--", path], capture_output=True, check=False)  # noqa: S603
    if os.path.lexists(path):
        words = done.stderr.decode("utf-8", "replace")[-300:].strip()
        raise EnvironmentBroken(f"the workspace {path} cannot be removed: {words}")


def _resolved(root: str) -> str:
    """The folder that a path leads to, made if need be. In a folder that all may write to, anyone
    can put a link by that name, to any folder of the user's: it is not followed."""
    path = os.path.abspath(root)
    try:
        os.makedirs(path, 0o700, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageError(f"{root} is no folder: {_ELSEWHERE}") from error
    # Only now: whoever comes in between cannot put a link where a folder is.
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode) and found.st_uid not in (0, os.geteuid()):
        raise UsageError(f"{root} is a link of somebody else's: {_ELSEWHERE}")
    return os.path.realpath(path)


def _make_private(root: str) -> None:
    os.makedirs(root, 0o700, exist_ok=True)
    found = os.stat(root)
    if found.st_uid != os.geteuid():
        raise UsageError(f"{root} belongs to somebody else: {_ELSEWHERE}")
    if stat.S_IMODE(found.st_mode) & 0o022:
        raise UsageError(f"others may write to {root}: {_ELSEWHERE}")


def _remove_abandoned(root: str) -> None:
    for entry in list(os.scandir(root)):
        if _OURS(entry.name):
            held = _hold(entry.path)
            if held is not None:
                _empty_if_possible(entry.path.removesuffix(LOCK), held)


def _empty_if_possible(path: str, held: int, *, sandboxed: bool = True) -> None:
    """What cannot be removed (a container has left files of another user in it) is no reason not to
    work beside it; the next process tries again."""
    try:
        _end_all_in(path, sandboxed=sandboxed)
        remove(path)
        os.unlink(path + LOCK)
    except (EnvironmentBroken, OSError) as error:
        _log.warning("what a process has left stays for now: %s", error)
    finally:
        os.close(held)


def _end_all_in(path: str, *, sandboxed: bool = True) -> None:
    with contextlib.suppress(FileNotFoundError):
        for entry in list(os.scandir(path)):
            kill_all(os.path.join(entry.path, FILES), sandboxed=sandboxed)


FILES = "files"
"""The workspace itself, within its place."""


def _hold(path: str) -> int | None:
    """The lock, unless a living process has it, or it was removed in this very moment."""
    held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.stat(path).st_ino == os.fstat(held).st_ino:
            os.ftruncate(held, 0)
            return held
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(held)
    return None
