"""Confinement: starts programs that cannot read the variables and memory of other processes.

In /proc, a process can read the variables and the memory of all processes of its user, and with
them the driver's keys. The kernel forbids that to a process with fewer capabilities, or in an inner
user namespace. So root's programs start without these capabilities, and those of other users in a
user namespace with the same user. It is no sandbox: files, network and signals are as before.
"""

import functools
import logging
import os
import shutil
import subprocess

from msgspec import Struct

PROBE_SECONDS = 10.0
_log = logging.getLogger("holdfast.environments")
_CAPABILITIES = (8, 16, 17, 19, 21, 38, 39, 40)
"""SETPCAP, SYS_MODULE, SYS_RAWIO, SYS_PTRACE, SYS_ADMIN, PERFMON, BPF,
CHECKPOINT_RESTORE. By number, since tools know fewer names than kernels do."""


class Confinement(Struct, frozen=True):
    """`words` is the prefix of a command; `trouble` is the reason why there is none."""

    words: tuple[str, ...] = ()
    trouble: str = ""


@functools.cache
def confinement() -> Confinement:
    """How programs are confined on this machine; tested once. The first call blocks a moment."""
    found = _tried(_as_root() if os.geteuid() == 0 else _as_user())
    if found.trouble:
        _log.warning(
            "agents and commands without a sandbox can read the variables of this user's other "
            "processes: %s",
            found.trouble,
        )
    return found


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


def _tried(found: Confinement) -> Confinement:
    """The confinement if it works, or else one with `trouble`."""
    if found.trouble:
        return found
    look = f"if cat /proc/{os.getpid()}/environ > /dev/null 2>&1; then exit 9; fi"
    try:
        done = subprocess.run(  # noqa: S603 - a command of our own
            [*found.words, "/bin/sh", "-c", look],
            capture_output=True,
            timeout=PROBE_SECONDS,
            check=False,
            env={"PATH": os.defpath},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Confinement(trouble=str(error))
    if done.returncode == 0:
        return found
    reason = done.stderr.decode("utf-8", "replace").strip()
    return Confinement(trouble=reason or "its programs are as powerful as it is itself")
