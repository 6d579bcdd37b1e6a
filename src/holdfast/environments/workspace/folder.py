"""Creates, locks and removes the folders of workspaces. Each process has one folder, which contains
the folders of its workspaces.

Each process holds a lock while it lives. The next process removes the folders of killed processes,
and kills everything that still runs in them. Other files in the root, which may be a user's folder,
are left alone.
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
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable

from holdfast.environments.workspace.sandbox.processes import kill_all
from holdfast.private_files import open_private, private_folder
from holdfast.records.errors import EnvironmentBroken

LOCK = ".lock"
IN_USE = b"in use"
"""The content of the lock of a folder that is in use. The lock is empty while a process only
removes the folder."""
TRIES, PAUSE_SECONDS = 500, 0.02
_is_room_lock = re.compile(r"[0-9a-f]{12}\.lock").fullmatch
"""Matches the names of the processes' locks. Other programs may have .lock files in the same
folder."""
_log = logging.getLogger("holdfast.environments")
_lock = threading.Lock()
_rooms: dict[str, "Room"] = {}


class Room:
    """The folder of this process within `root`."""

    def __init__(self, root: str):
        self._numbers = itertools.count(1)
        self._process = os.getpid()
        _remove_abandoned(root)
        while True:
            self.path = os.path.join(root, secrets.token_hex(6))
            self._held = _hold(self.path + LOCK)
            if self._held is not None:
                break
        os.mkdir(self.path, 0o700)
        atexit.register(self._leave)

    def _leave(self) -> None:
        """Removes the folder when the process exits. If the process is killed, the next process
        does this."""
        if self.is_ours and self._held is not None:
            _empty_if_possible(self.path, self._held)

    @property
    def is_ours(self) -> bool:
        """Whether this process created the folder and it still exists. False after a fork, because
        both processes would give the same names to their workspaces."""
        return self._process == os.getpid() and os.path.isdir(self.path)

    def place(self) -> str:
        """Creates a folder for a workspace and returns its path. All paths have the same length, so
        that the same output that contains such a path always has the same length."""
        path = os.path.join(self.path, f"{next(self._numbers):06d}")
        os.mkdir(path, 0o700)
        return path


class FolderClaim:
    """A folder with a fixed path that one process at a time may use.

    When the folder is taken, the files of the earlier process are removed, and its processes are
    killed if they can be found.
    """

    def __init__(self, root: str, names: Iterable[str]):
        self._root = root
        self._names = names
        self._path = ""
        self._held: int | None = None

    @property
    def name(self) -> str:
        """The name of the folder that `take` found free."""
        return os.path.basename(self._path)

    def take(self) -> str:
        """Takes the first free name, and returns an empty folder there. Blocks."""
        root = private_folder(self._root)
        for name in self._names:
            path = os.path.join(root, name)
            if (held := _hold_unless_in_use(path + LOCK)) is not None and _empty(path, held):
                self._path, self._held = path, held
                os.write(held, IN_USE)
                place = os.path.join(path, f"{1:06d}")
                os.makedirs(place, 0o700)
                return place
        raise EnvironmentBroken(f"no folder can be had in {root}: set TMPDIR to another folder")

    def give_up(self) -> None:
        """Kills the processes in the folder and removes it. Does nothing if the folder was not
        taken.
        """
        if self._held is not None:
            held, self._held = self._held, None
            _empty_if_possible(self._path, held, sandboxed=False)


def _hold_unless_in_use(lock: str) -> int | None:
    """Takes the lock and returns its file descriptor. Returns None if another process uses the
    folder.

    Waits while another process only removes the folder.
    """
    for _ in range(TRIES):
        if (held := _hold(lock)) is not None:
            return held
        with contextlib.suppress(FileNotFoundError):
            if os.stat(lock).st_size:
                return None
        time.sleep(PAUSE_SECONDS)
    return None


def _empty(path: str, held: int) -> bool:
    """Removes the folder, but keeps its lock. If the folder cannot be removed, releases the
    lock and returns False.
    """
    try:
        _kill_all_in(path, sandboxed=False)
        remove(path)
    except (EnvironmentBroken, OSError) as error:
        _log.warning("what an attempt has left stays for now: %s", error)
        os.close(held)
        return False
    return True


def new_place(root: str | None) -> str:
    """Creates a new, empty folder. Blocks."""
    root = root or os.path.join(tempfile.gettempdir(), f"holdfast-workspaces-{os.geteuid()}")
    root = str(private_folder(root))
    with _lock:
        room = _rooms.get(root)
        if room is None or not room.is_ours:
            room = _rooms[root] = Room(root)
        return room.place()


def make(path: str) -> None:
    """Creates a folder with mode 755. The mode does not depend on the driver's umask, because modes
    are part of a snapshot."""
    os.makedirs(path)
    os.chmod(path, 0o755)  # noqa: S103 - its parent is closed to other users


def remove(path: str) -> None:
    """Removes a folder or file, even if it is read-only, very deep, or has a million files."""
    if os.path.islink(path) or not os.path.isdir(path):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        return
    with contextlib.suppress(OSError, RecursionError):
        shutil.rmtree(path)
    if not os.path.lexists(path):
        return
    # rm can remove folders of any depth.
    subprocess.run(["/bin/chmod", "-R", "u+rwX", "--", path], capture_output=True, check=False)  # noqa: S603
    done = subprocess.run(["/bin/rm", "-rf", "--", path], capture_output=True, check=False)  # noqa: S603
    if os.path.lexists(path):
        reason = done.stderr.decode("utf-8", "replace")[-300:].strip()
        raise EnvironmentBroken(f"the workspace {path} cannot be removed: {reason}")


def _remove_abandoned(root: str) -> None:
    for entry in list(os.scandir(root)):
        if _is_room_lock(entry.name):
            held = _hold(entry.path)
            if held is not None:
                _empty_if_possible(entry.path.removesuffix(LOCK), held)


def _empty_if_possible(path: str, held: int, *, sandboxed: bool = True) -> None:
    """Removes the folder and its lock.

    A file that cannot be removed, such as another user's file that a container left, stays until
    the next process tries again.
    """
    try:
        _kill_all_in(path, sandboxed=sandboxed)
        remove(path)
        os.unlink(path + LOCK)
    except (EnvironmentBroken, OSError) as error:
        _log.warning("what a process has left stays for now: %s", error)
    finally:
        os.close(held)


def _kill_all_in(path: str, *, sandboxed: bool = True) -> None:
    with contextlib.suppress(FileNotFoundError):
        for entry in list(os.scandir(path)):
            kill_all(os.path.join(entry.path, FILES), sandboxed=sandboxed)


FILES = "files"
"""The name of the folder with the workspace's files, within the workspace's folder."""


def _hold(path: str) -> int | None:
    """Takes the lock and returns its file descriptor. Returns None if another process holds the
    lock or has just removed it."""
    held = open_private(path)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.stat(path).st_ino == os.fstat(held).st_ino:
            os.ftruncate(held, 0)
            return held
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(held)
    return None
