"""Which process is this, and is that one gone?

After a `kill -9` the same command must go on at once, not when a lease runs out. Where the old
process would be seen if it lived, the kernel knows. A pid means something within one boot and one
PID namespace only: in any other, such as a second container's, nobody is looked up, and the lease
decides.
"""

import os
import socket
import sys
from functools import cache
from pathlib import Path

from holdfast.journal.journal import WorkerIdentity

_UNKNOWN = ""


def this_process() -> WorkerIdentity:
    return WorkerIdentity(
        host=socket.gethostname(), pid=os.getpid(), born=_born("self"), namespace=_namespace()
    )


def is_gone(worker: WorkerIdentity) -> bool:
    """True only when it is certain: its pid is one of ours to look up, and is no longer it."""
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
    """The kernel's name for the time since boot; "" if it has none."""
    return _read("/proc/sys/kernel/random/boot_id").strip()


def time_namespace() -> str:
    """Within it, clocks that count from boot agree, and so do the start times of processes."""
    return _link("/proc/self/ns/time")


def _is_ours(worker: WorkerIdentity) -> bool:
    here = _namespace()
    same = (worker.host, worker.namespace) == (socket.gethostname(), here)
    return same and here != _UNKNOWN


@cache
def _namespace() -> str:
    """Where our pids mean something: the boot, the PID namespace, the clock of start times.

    A process stays where it was started, and only a child of it may be elsewhere. It is read once:
    a thousand workers are looked up in a row.
    """
    if not sys.platform.startswith("linux"):
        return sys.platform  # One table of processes for the whole machine.
    boot, processes = boot_id(), _link("/proc/self/ns/pid")
    if not boot or not processes:
        return _UNKNOWN
    return f"{boot} {processes} {time_namespace()}"


os.register_at_fork(after_in_child=_namespace.cache_clear)


def _proc_is_ours() -> bool:
    """/proc may be that of another PID namespace: there, our numbers are other processes."""
    return _link("/proc/self") == str(os.getpid())


def _born(name: str) -> str:
    """The start of process `name` in ticks since boot, with the boot's own id, if /proc says it."""
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
