"""Identifies processes, and finds out whether a process is gone.

After a `kill -9`, the same command must go on at once, without waiting for the old lease to end. If
the old process ran where this process would see it, the kernel knows whether it lives. A pid is
valid only within one boot and one PID namespace. For a worker elsewhere, such as in another
container, only the lease decides.
"""

import os
import socket
import sys
from functools import cache
from pathlib import Path

from holdfast.journal.types import WorkerIdentity

_UNKNOWN = ""


def this_process() -> WorkerIdentity:
    return WorkerIdentity(
        host=socket.gethostname(), pid=os.getpid(), born=_born("self"), namespace=_namespace()
    )


def is_gone(worker: WorkerIdentity) -> bool:
    """Returns True only if the process is certainly gone. That is so if its pid is valid here, but
    now belongs to no process, to a zombie, or to a process with another start time."""
    if not _is_ours(worker):
        return False
    try:
        os.kill(worker.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    born = _born(str(worker.pid)) if _proc_is_ours() else _UNKNOWN
    return worker.born != _UNKNOWN and born != _UNKNOWN and born != worker.born


def boot_id() -> str:
    """Returns the kernel's id of the current boot; "" if there is no id."""
    return _read("/proc/sys/kernel/random/boot_id").strip()


def time_namespace() -> str:
    """Returns the time namespace. Within one namespace, clocks since boot and start times of
    processes agree."""
    return _link("/proc/self/ns/time")


def _is_ours(worker: WorkerIdentity) -> bool:
    here = _namespace()
    same = (worker.host, worker.namespace) == (socket.gethostname(), here)
    return same and here != _UNKNOWN


@cache
def _namespace() -> str:
    """Returns the name of the namespace in which this process's pids are valid. On Linux, it
    consists of the boot, the PID namespace and the time namespace.

    The value is cached, because a process never changes its own namespace, and a thousand workers
    may be looked up in a row.
    """
    if not sys.platform.startswith("linux"):
        return sys.platform  # The whole machine has one table of processes.
    boot, processes = boot_id(), _link("/proc/self/ns/pid")
    if not boot or not processes:
        return _UNKNOWN
    return f"{boot} {processes} {time_namespace()}"


os.register_at_fork(after_in_child=_namespace.cache_clear)


def _proc_is_ours() -> bool:
    """Returns whether /proc shows our own PID namespace. Otherwise our pids would name other
    processes there."""
    return _link("/proc/self") == str(os.getpid())


def _born(name: str) -> str:
    """Returns the start of process `name` as the boot id and ticks since boot. Returns "" if /proc
    does not show the start."""
    stat, boot = _read(f"/proc/{name}/stat"), boot_id()
    if not stat or not boot:
        return _UNKNOWN
    fields = stat.rpartition(")")[2].split()
    if fields[0] == "Z":
        return "zombie"
    return f"{boot}:{fields[19]}"


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return _UNKNOWN


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return _UNKNOWN
