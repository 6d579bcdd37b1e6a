"""A start that goes no further than the import of torch, held there until a test lets go."""

import os
import sys
import time
from pathlib import Path

SECONDS = 60
# As its own libraries do while they are loaded: in C, with the interpreter's lock, and deaf to
# Python's handlers of signals.
_IN_C = """
import ctypes
library, lock = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
library.pthread_mutex_lock(lock)
library.pthread_mutex_lock(lock)
"""
IDLE = "import time; time.sleep(600)"
BUSY = """
end = {released!r}
while not os.path.exists(end):
    sum(range(100_000))
raise SystemExit("released")
"""


class HeldStart:
    """The environment of a process in which torch cannot be imported to its end."""

    def __init__(self, folder: Path, how: str = _IN_C):
        self._pid, self._released = folder / "pid", folder / "released"
        module = folder / "torch" / "__init__.py"
        module.parent.mkdir(parents=True)
        waiting = how.format(released=str(self._released)) if "{" in how else how
        module.write_text(
            f"import os, pathlib\n"
            f"beside = pathlib.Path({str(self._pid)!r} + '.part')\n"
            f"beside.write_text(str(os.getpid()))\n"
            f"beside.rename({str(self._pid)!r})\n"
            f"{waiting}\n"
        )
        self.environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}

    def pid(self) -> int:
        """Of the engine, once it is held."""
        deadline = time.monotonic() + SECONDS
        while not self._pid.exists():
            assert time.monotonic() < deadline, "it never came to import torch"
            time.sleep(0.01)
        return int(self._pid.read_text())

    def release(self) -> None:
        self._released.touch()


SERVE = [sys.executable, "-m", "holdfast", "serve", "--port", "0"]
