"""Runs first in each of vLLM's processes, so that it ends with its owner and leaves nothing behind.

vLLM's server, its engine and its workers are separate processes. A kill that hits only one of them,
or the process that started them, would leave the others with the GPU's memory. So each process
watches the owner. The first process that sees the owner gone removes leftover files and kills the
whole group.

This file is vLLM's main module. multiprocessing imports it again in each process that it spawns,
and a hook starts the watch in forked processes. It is run by vLLM's Python, so it uses only the
standard library.
"""

import contextlib
import glob
import os
import runpy
import select
import shutil
import signal
import sys
import threading
from multiprocessing import shared_memory

OWNER, PLACE = "HOLDFAST_ENGINE_OWNER", "HOLDFAST_ENGINE_PLACE"
"""Environment variables. The first names the owner: these processes end when it ends. The second
names the folder of their files."""
SHARED_MEMORY = "/dev/shm"  # noqa: S108  # where Linux keeps it
_SERVER = "vllm.entrypoints.openai.api_server"


def identity(pid: int) -> str:
    """Returns a process's number and start time, which identify the process. The number alone would
    not, because numbers are used again."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return f"{pid}:{file.read().rsplit(')', 1)[1].split()[19]}"


def watch() -> None:
    """Makes this process end when its owner ends."""
    owner = os.environ[OWNER]
    pid = int(owner.partition(":")[0])
    try:
        handle = os.pidfd_open(pid)
        is_there = identity(pid) == owner
    except (ProcessLookupError, FileNotFoundError):
        is_there = False
    if not is_there:
        end_group()
    threading.Thread(target=_follow, args=(handle,), name="holdfast-owner", daemon=True).start()


def _follow(handle: int) -> None:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    while not poll.poll():
        pass
    end_group()


def end_group() -> None:
    """Removes leftover files and kills all processes of this group, including this one."""
    with contextlib.suppress(OSError):
        remove_leftovers(os.environ[PLACE])
    os.killpg(0, signal.SIGKILL)


def name_shared_memory(place: str) -> None:
    """Gives the shared memory of these processes names that begin with the name of their folder
    `place`, so that leftovers can be found and removed."""
    prefix = f"/{shared_prefix(place)}"
    shared_memory._SHM_NAME_PREFIX = prefix  # type: ignore[attr-defined]  # noqa: SLF001
    shared_memory._SHM_SAFE_NAME_LENGTH = len(prefix) + 8  # type: ignore[attr-defined]  # noqa: SLF001


def shared_prefix(place: str) -> str:
    return f"holdfast-{os.path.basename(place)}-"


def remove_leftovers(place: str) -> None:
    """Removes the folder of an engine, and its shared memory."""
    for path in glob.glob(os.path.join(SHARED_MEMORY, f"{shared_prefix(place)}*")):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    shutil.rmtree(place, ignore_errors=True)


if __name__ in ("__main__", "__mp_main__"):
    # Modules must not be imported from this file's folder.
    sys.path[:] = [path for path in sys.path if path != os.path.dirname(os.path.abspath(__file__))]
    name_shared_memory(os.environ[PLACE])
    watch()
    os.register_at_fork(after_in_child=watch)

if __name__ == "__main__":
    runpy.run_module(_SERVER, run_name="__main__")
