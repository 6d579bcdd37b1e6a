"""Processes that a command left behind.

Without a sandbox they are found by what they inherited: a home or a working folder within the
workspace, or, of an agent, a task beside it. One that cleaned its environment and left the folder
is not found; only a pid namespace (bubblewrap) leaves no way out. Those in a sandbox whose driver
is gone are found by their mounts.
"""

import contextlib
import os
import signal
import time

from holdfast.records.errors import EnvironmentBroken

ROUNDS = 100
PAUSE = 0.02
PLACE = b"/workspace"
TASK = b"HOLDFAST_TASK="
"""Where an agent finds its task: in the folder of its attempt."""


def kill_all(folder: str, *, sandboxed: bool = False) -> None:
    """Until none is left: they may fork while they are looked for."""
    for _ in range(ROUNDS):
        found = of_folder(folder, sandboxed=sandboxed)
        if not found:
            return
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(PAUSE)
    raise EnvironmentBroken(f"processes {found} of a workspace cannot be killed")


def of_folder(folder: str, *, sandboxed: bool = False) -> list[int]:
    ours = os.getpid()
    inside = os.fsencode(folder)
    return [
        int(name)
        for name in os.listdir("/proc")
        if name.isdigit()
        and int(name) != ours
        and (_is_inside(name, inside) or (sandboxed and _has_mounted(name, inside)))
    ]


def _is_inside(process: str, folder: bytes) -> bool:
    try:
        with open(f"/proc/{process}/environ", "rb") as file:
            variables = file.read().split(b"\0")
        if b"HOME=" + folder in variables:
            return True
        task = TASK + os.path.dirname(folder) + b"/"
        if any(variable.startswith(task) for variable in variables):
            return True
        where = os.readlink(f"/proc/{process}/cwd".encode())
    except OSError:
        return False  # Gone, a zombie, or somebody else's.
    return where == folder or where.startswith(folder + b"/")


def _has_mounted(process: str, folder: bytes) -> bool:
    # The path is told from the top of its file system: only its end is certain. It has the random
    # name of a room in it.
    end = b"/".join(folder.split(b"/")[-3:])
    try:
        with open(f"/proc/{process}/mountinfo", "rb") as file:
            return any(
                fields[3].endswith(b"/" + end) and fields[4] == PLACE
                for line in file
                if len(fields := line.split()) > 4
            )
    except OSError:
        return False
