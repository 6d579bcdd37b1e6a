"""Hides other processes from a command, and kills processes that a command left behind.

Without a sandbox, the processes that a command left are recognized by what they inherited: a home
or working folder in the workspace, or the variable with an agent's task file. A process that
changed all of these is not found; only a pid namespace (bubblewrap) is safe against that. Processes
in a sandbox whose driver was killed are found by their mounts.

In /proc, a process can read the variables and the memory of all processes of its user, and with
them the driver's keys. The kernel forbids this to a process with fewer capabilities, or in an inner
user namespace. For this reason, `confinement` starts root's programs without these capabilities,
and programs of other users in a user namespace with the same user. This is not a sandbox: files,
network and signals are as before.
"""

import contextlib
import functools
import logging
import os
import shutil
import signal
import subprocess
import time

from msgspec import Struct

from holdfast.records.errors import EnvironmentBroken

TRIES, PAUSE_SECONDS = 100, 0.02
WORKSPACE = b"/workspace"
TASK = b"HOLDFAST_TASK="
"""The variable with the path of an agent's task file, which lies beside the workspace."""


def kill_all(folder: str, *, sandboxed: bool = False) -> None:
    """Kills all processes that run in the folder. Repeats this until none is left, because
    processes may fork meanwhile."""
    for _ in range(TRIES):
        candidate = find(folder, sandboxed=sandboxed)
        if not candidate:
            return
        for process in candidate:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(PAUSE_SECONDS)
    raise EnvironmentBroken(f"processes {candidate} of a workspace cannot be killed")


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
    # The path begins at the root of its file system, so only its end, with a random name, is known.
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


PROBE_SECONDS = 10.0
_log = logging.getLogger("holdfast.environments")
_CAPABILITIES = (8, 16, 17, 19, 21, 38, 39, 40)
"""The capabilities SETPCAP, SYS_MODULE, SYS_RAWIO, SYS_PTRACE, SYS_ADMIN, PERFMON, BPF and
CHECKPOINT_RESTORE. They are given by number, because older tools do not know the newer names."""


class Confinement(Struct, frozen=True):
    """How programs are confined. `words` are put before their commands. If confinement does not
    work, `trouble` is the reason."""

    words: tuple[str, ...] = ()
    trouble: str = ""


@functools.cache
def confinement() -> Confinement:
    """Returns how programs are confined on this machine. The first call tests this and blocks for a
    moment."""
    candidate = _tried(_as_root() if os.geteuid() == 0 else _as_user())
    if candidate.trouble:
        _log.warning(
            "agents and commands without a sandbox can read the variables of this user's other "
            "processes: %s",
            candidate.trouble,
        )
    return candidate


def _as_root() -> Confinement:
    if (setpriv := shutil.which("setpriv")) is None:
        return Confinement(trouble="there is no `setpriv` (util-linux)")
    try:
        with open("/proc/sys/kernel/cap_last_cap") as file:
            last = int(file.read())
    except OSError as error:
        return Confinement(trouble=str(error))
    dropped = ",".join(f"-cap_{number}" for number in _CAPABILITIES if number <= last)
    return Confinement((setpriv, f"--bounding-set={dropped}", f"--inh-caps={dropped}", "--"))


def _as_user() -> Confinement:
    if (unshare := shutil.which("unshare")) is None:
        return Confinement(trouble="there is no `unshare` (util-linux)")
    return Confinement((unshare, "--user", "--map-current-user", "--"))


def _tried(candidate: Confinement) -> Confinement:
    """Returns the candidate if it works, or else a confinement with the reason as `trouble`."""
    if candidate.trouble:
        return candidate
    look = f"if cat /proc/{os.getpid()}/environ > /dev/null 2>&1; then exit 9; fi"
    try:
        done = subprocess.run(  # noqa: S603 - a command of our own
            [*candidate.words, "/bin/sh", "-c", look],
            capture_output=True,
            timeout=PROBE_SECONDS,
            check=False,
            env={"PATH": os.defpath},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Confinement(trouble=str(error))
    if done.returncode == 0:
        return candidate
    reason = done.stderr.decode("utf-8", "replace").strip()
    return Confinement(trouble=reason or "its programs are as powerful as it is itself")
