"""Confinement: a program that cannot look into the other processes of its user.

A process shows its variables, and its memory, to all others of the same user: an agent would find
the driver's keys, and those of the shell that started it, in /proc. The kernel refuses that to
whoever has fewer capabilities, or is in a user namespace within. So root's programs are started
without the capabilities that open processes, and all others in a user namespace in which the user
is still the same. It is no sandbox: files, network and signals are as before.
"""

import functools
import logging
import os
import shutil
import subprocess

from msgspec import Struct

SECONDS = 10.0
_log = logging.getLogger("holdfast.environments")
_OPENING = (8, 16, 17, 19, 21, 38, 39, 40)
"""Capabilities: SETPCAP, SYS_MODULE, SYS_RAWIO, SYS_PTRACE, SYS_ADMIN, PERFMON, BPF,
CHECKPOINT_RESTORE. By number, since tools know fewer names than kernels do."""


class Confinement(Struct, frozen=True):
    """`words` stand before a command's own; `trouble` says why there are none."""

    words: tuple[str, ...] = ()
    trouble: str = ""


@functools.cache
def confinement() -> Confinement:
    """What confines programs here, tried out once: whether this very process stays closed. Blocks
    for a moment when it is called for the first time."""
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
    dropped = ",".join(f"-cap_{number}" for number in _OPENING if number <= last)
    return Confinement((setpriv, f"--bounding-set={dropped}", f"--inh-caps={dropped}", "--"))


def _as_user() -> Confinement:
    if (unshare := shutil.which("unshare")) is None:
        return Confinement(trouble="there is no `unshare` (util-linux)")
    return Confinement((unshare, "--user", "--map-current-user", "--"))


def _tried(found: Confinement) -> Confinement:
    """Nothing, if it cannot be had, or does not help."""
    if found.trouble:
        return found
    look = f"if cat /proc/{os.getpid()}/environ > /dev/null 2>&1; then exit 9; fi"
    try:
        done = subprocess.run(  # noqa: S603 - words of our own
            [*found.words, "/bin/sh", "-c", look],
            capture_output=True,
            timeout=SECONDS,
            check=False,
            env={"PATH": os.defpath},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Confinement(trouble=str(error))
    if done.returncode == 0:
        return found
    said = done.stderr.decode("utf-8", "replace").strip()
    return Confinement(trouble=said or "its programs are as powerful as it is itself")
