"""Finds and kills processes that a command left behind.

Without a sandbox they are found by what they inherited: a home or working folder in the workspace,
or an agent's task file beside it. A process that changed both is not found; only a pid namespace
(bubblewrap) is safe against that. Processes in a sandbox whose driver was killed are found by their
mounts.
"""

import contextlib
import os
import signal
import time

from holdfast.records.errors import EnvironmentBroken

TRIES, PAUSE_SECONDS = 100, 0.02
WORKSPACE = b"/workspace"
TASK = b"HOLDFAST_TASK="
"""The variable with an agent's task file, which is in the folder of its attempt."""


def kill_all(folder: str, *, sandboxed: bool = False) -> None:
    """Repeats until none is left: processes may fork meanwhile."""
    for _ in range(TRIES):
        found = find(folder, sandboxed=sandboxed)
        if not found:
            return
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(PAUSE_SECONDS)
    raise EnvironmentBroken(f"processes {found} of a workspace cannot be killed")


def find(folder: str, *, sandboxed: bool = False) -> list[int]:
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
        return False  # It ended, or belongs to another user.
    return where == folder or where.startswith(folder + b"/")


def _has_mounted(process: str, folder: bytes) -> bool:
    # The path begins at the top of its file system: only its end, with a random name, is certain.
    end = b"/".join(folder.split(b"/")[-3:])
    try:
        with open(f"/proc/{process}/mountinfo", "rb") as file:
            return any(
                fields[3].endswith(b"/" + end) and fields[4] == WORKSPACE
                for line in file
                if len(fields := line.split()) > 4
            )
    except OSError:
        return False
