"""Which process is this, and is that one gone?

After a `kill -9` the same command must go on at once, not when a lease runs out. On the same
machine the kernel knows whether the old process still lives.
"""

import os
import socket
from pathlib import Path

from holdfast.journal.journal import WorkerIdentity

_UNKNOWN = ""


def this_process() -> WorkerIdentity:
    return WorkerIdentity(host=_machine(), pid=os.getpid(), born=_born(os.getpid()))


def is_gone(worker: WorkerIdentity) -> bool:
    """True only when it is certain: same machine, and no such process any more."""
    if worker.host != _machine():
        return False
    try:
        os.kill(worker.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    born = _born(worker.pid)
    return worker.born != _UNKNOWN and born != _UNKNOWN and born != worker.born


def _machine() -> str:
    return socket.gethostname()


def _born(pid: int) -> str:
    """The process's start in ticks since boot, with the boot's own id, where /proc tells it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return _UNKNOWN
    fields = stat.rpartition(")")[2].split()
    if fields[0] == "Z":
        return "zombie"
    return f"{boot}:{fields[19]}"
