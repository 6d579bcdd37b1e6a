"""One process of an isolated tool, seen from the driver.

Everything here blocks, and belongs in a thread; only `kill` may be called from anywhere, at any
time. Whatever happens to the process, `end` leaves nothing of it: no process of its group, no
zombie, no open descriptor.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import msgspec

from holdfast.records.errors import EnvironmentBroken
from holdfast.rollout.tools.isolated.wire import (
    Answer,
    BadFrame,
    Broken,
    FunctionHome,
    WorkerRequest,
    frame,
    read,
)

START_SECONDS = 300.0
"""Seconds that the import of a module may take."""
POLL_SECONDS = 0.5
"""How often a silent process is checked: its children may hold the connection open."""
EXIT_SECONDS = 2.0
"""Seconds for a process that closed its connection to end by itself."""
REAP_SECONDS = 10.0
MAX_FAULT_BYTES = 100_000
_BOOT = (
    "import json, sys\n"
    "connection, faults, driver, path = sys.argv[1:]\n"
    "sys.path[:] = json.loads(path)\n"
    "from holdfast.rollout.tools.isolated.worker import main\n"
    "main(int(connection), int(faults), int(driver))\n"
)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


class RemoteTraceback(Exception):
    """Where it happened, in the other process."""


class Process:
    """Makes a process. To be made by a thread that outlives it: it dies with that thread."""

    def __init__(self, home: FunctionHome):
        self.calls = 0
        self.idle_since = 0.0
        self._home = home
        self._is_ready = False
        self._lock = threading.Lock()
        self.is_gone = False
        self._last_output = ""
        self._faults = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `_close`)
        self._connection, child_end = socket.socketpair()
        try:
            with child_end:
                self._child = _start(child_end.fileno(), self._faults.fileno())
        except BaseException:
            self._close()
            raise

    @property
    def pid(self) -> int:
        return self._child.pid

    def get_ready(self) -> None:
        """Returns when the module is imported."""
        if not self._is_ready:
            self._wait_for_import()

    def call(self, request: WorkerRequest, timeout: float) -> Answer:
        """The answer of a process that is ready."""
        self.calls += 1
        try:
            return self._exchange(frame(request), timeout)
        except TimeoutError as error:
            raise EnvironmentBroken(
                f"it did not end within {timeout:g} s; its process was killed"
            ) from error

    def _wait_for_import(self) -> None:
        where = f"its module {self._home.module} ({self._home.file})"
        try:
            answer = self._exchange(frame(self._home), START_SECONDS)
        except TimeoutError as error:
            raise EnvironmentBroken(f"{where} took over {START_SECONDS:g} s to import") from error
        if isinstance(answer, Broken):
            raise EnvironmentBroken(
                f"{where} cannot be imported in a process of its own: "
                f"{answer.kind}: {answer.message}"
            ) from RemoteTraceback(answer.traceback)
        self._is_ready = True

    def _exchange(self, message: bytes, timeout: float) -> Answer:
        deadline = time.monotonic() + timeout
        try:
            self._connection.settimeout(timeout)
            self._connection.sendall(message)
            body = read(lambda size: self._receive(size, deadline))
            return _answers.decode(body)
        except (EOFError, ConnectionError) as error:
            died = self._crash_error()
            raise died from RemoteTraceback(self._last_output) if self._last_output else error
        except (BadFrame, msgspec.MsgspecError) as error:
            raise EnvironmentBroken(f"its process wrote what is no answer: {error}") from error

    def _receive(self, size: int, deadline: float) -> bytes:
        while (left := deadline - time.monotonic()) > 0:
            self._connection.settimeout(min(left, POLL_SECONDS))
            try:
                return self._connection.recv(size)
            except TimeoutError:
                if self.has_ended():
                    raise EOFError from None
        raise TimeoutError

    def _crash_error(self) -> EnvironmentBroken:
        by_itself = self._wait(EXIT_SECONDS)
        code = self.end()
        if not by_itself:
            return EnvironmentBroken("its process closed its connection; it was killed")
        if code >= 0:
            return EnvironmentBroken(f"its process ended itself with exit code {code}")
        return EnvironmentBroken(f"its process was ended by {_signal(-code)}")

    def has_ended(self) -> bool:
        with self._lock:
            if self.is_gone:
                return True
            # Looked at, not reaped: its number stays its own until nothing is sent to it any more.
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, self._child.pid, flags) is not None

    def kill(self) -> None:
        """Ends the process and all that it started in its group; returns at once."""
        with self._lock:
            if not self.is_gone:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._child.pid, signal.SIGKILL)

    def end(self) -> int:
        """Nothing is left of it when this returns: its exit code, negative for a signal.

        One that the kernel does not let die yet is left to its signal.
        """
        self.kill()
        if not self._wait(REAP_SECONDS):
            return -signal.SIGKILL
        with self._lock:
            self.is_gone = True
            code = self._child.wait()
            self._close()
        return code

    def _wait(self, seconds: float) -> bool:
        deadline, pause = time.monotonic() + seconds, 0.0005
        while not self.has_ended():
            if time.monotonic() > deadline:
                return False
            time.sleep(pause)
            pause = min(pause * 2, 0.05)
        return True

    def _close(self) -> None:
        self._connection.close()
        if not self._faults.closed:
            self._faults.seek(0)
            self._last_output = self._faults.read(MAX_FAULT_BYTES).decode("utf-8", "replace")
            self._faults.close()


def _start(connection: int, faults: int) -> "subprocess.Popen[bytes]":
    path = json.dumps([str(entry) for entry in sys.path])
    numbers = [str(connection), str(faults), str(os.getpid())]
    return subprocess.Popen(  # noqa: S603  (this interpreter, with our own code)
        [sys.executable, "-u", "-c", _BOOT, *numbers, path],
        stdin=subprocess.DEVNULL,
        pass_fds=(connection, faults),
        # A group of its own, to be killed as a whole; and Ctrl-C is the driver's business.
        start_new_session=True,
    )


def _signal(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return f"{name} (out of memory, or killed from outside)" if number == signal.SIGKILL else name
