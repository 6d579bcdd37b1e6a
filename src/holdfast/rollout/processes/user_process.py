"""Starts and ends a process of user code, in the parent.

Whatever happens to the process, `end` kills every process of its group and reaps it. The process
dies with the thread that started it.
"""

import asyncio
import contextlib
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

POLL_SECONDS = 0.5
"""How often a silent process is checked. Its connection does not show that it has ended if its
children hold the connection open."""
REAP_SECONDS = 10.0
STREAM_LIMIT = 1024 * 1024
_BOOT = (
    "import importlib, json, sys\n"
    "module, path, *numbers = sys.argv[1:]\n"
    "sys.path[:] = json.loads(path)\n"
    "importlib.import_module(module).main(*map(int, numbers))\n"
)
_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class UserProcess:
    """A process that runs the function `main` of a module. `main` gets the descriptor of a
    connection to the parent, and the parent's pid."""

    def __init__(self, module: str, *, faults: int | None = None, output: int | None = None):
        """Starts the process.

        `faults` is another descriptor that `main` gets. `output` is the descriptor to which the
        process prints; without it, the process prints to the same place as this process.
        """
        self._lock = threading.Lock()
        self.is_gone = False
        """Whether the process has ended and was reaped."""
        self._connection, theirs = socket.socketpair()
        more = () if faults is None else (faults,)
        numbers = [str(number) for number in (theirs.fileno(), os.getpid(), *more)]
        try:
            with theirs:
                self._process = subprocess.Popen(  # noqa: S603  (this interpreter, our own code)
                    [sys.executable, "-u", "-c", _BOOT, module, json.dumps(sys.path), *numbers],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(theirs.fileno(), *more),
                    # A separate group, which can be killed as a whole. Ctrl-C goes to the parent
                    # only.
                    start_new_session=True,
                )
        except BaseException:
            self._connection.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    async def connect(self) -> _Connection:
        """Opens the connection. Call it once. The caller closes the connection."""
        return await asyncio.open_connection(sock=self._connection, limit=STREAM_LIMIT)

    def has_ended(self) -> bool:
        with self._lock:
            if self.is_gone:
                return True
            # WNOWAIT does not reap the process, so its pid stays valid as long as signals may be
            # sent.
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, self._process.pid, flags) is not None

    def kill(self) -> None:
        """Kills the process and all processes of its group, without waiting for their end."""
        with self._lock:
            if not self.is_gone:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)

    def end(self, *, grace: float = 0.0) -> str:
        """Ends the process and its group, and returns in words how the process ended. Blocks.

        The process has `grace` seconds to end by itself, and is killed afterwards. If the killed
        process has not ended after `REAP_SECONDS`, the function returns without waiting longer.
        """
        by_itself = self._wait(grace)
        self.kill()
        code = -signal.SIGKILL
        if self._wait(REAP_SECONDS):
            with self._lock:
                self.is_gone = True
                code = self._process.wait()
        return (
            _how(code) if by_itself else "its process closed its connection, or hung; it was killed"
        )

    def _wait(self, seconds: float) -> bool:
        deadline, pause = time.monotonic() + seconds, 0.0005
        while not self.has_ended():
            if time.monotonic() >= deadline:
                return False
            time.sleep(pause)
            pause = min(pause * 2, 0.05)
        return True


@functools.cache
def tie() -> tuple[str, ...]:
    """Returns the words to put before a command so that the kernel kills the command when the
    thread that starts it ends. Returns no words if the system does not support this."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        return ()
    prefix = (setpriv, "--pdeathsig", "KILL", "--")
    # Some versions of setpriv lack this option.
    probe = subprocess.run([*prefix, "true"], capture_output=True, timeout=10, check=False)  # noqa: S603
    return prefix if probe.returncode == 0 else ()


def _how(code: int) -> str:
    if code >= 0:
        return f"its process ended itself with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    more = " (out of memory, or killed from outside)" if code == -signal.SIGKILL else ""
    return f"its process was ended by {name}{more}"
