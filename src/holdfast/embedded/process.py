"""The embedded engine as a child process.

It listens on a free port of 127.0.0.1 and ends with whoever started it, however that one ends: it
holds the other end of a pipe that closes with its parent.
"""

import os
import selectors
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

from holdfast.records.errors import HoldfastError, UsageError

_READY_SECONDS = 180.0
_STOP_SECONDS = 20.0
_TAIL = 2000


class EngineDidNotStart(HoldfastError):
    """The child ended or was not ready in time; the end of its log is in the message."""


class EmbeddedEngine:
    """`holdfast serve` in a child process. Use as a context manager, or `start` and `stop` it."""

    def __init__(
        self,
        model: Path | None = None,
        *,
        log: Path | None = None,
        options: tuple[str, ...] = (),
        ready_within: float = _READY_SECONDS,
    ):
        self._folder = model
        self._log = log
        self._options = options
        self._ready_within = ready_within
        self._child: subprocess.Popen[bytes] | None = None
        self._port = 0
        self.url = ""
        """Like http://127.0.0.1:41234, once it is started."""
        self.model = ""
        """The name that it serves, once it is started."""

    @property
    def pid(self) -> int:
        assert self._child is not None, "not started"
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def start(self) -> None:
        """Returns when it takes requests. Raises `UsageError` for what it refuses to serve, and
        `EngineDidNotStart`."""
        assert self._child is None, "started once"
        with self._opened_log() as log:
            self._child = subprocess.Popen(  # noqa: S603  # our own module, our own arguments
                self._command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        try:
            line = self._first_line()
            _, self.model, _, self.url = line.split(" ")
        except ValueError as error:
            code = self._ended()
            refused = UsageError if code == 2 else EngineDidNotStart
            raise refused(f"the embedded engine did not start: {self._tail()}") from error
        except BaseException:
            self._ended()
            raise

    def kill(self) -> None:
        """SIGKILL, as an accident would."""
        assert self._child is not None, "not started"
        self._child.kill()
        self._child.wait()

    def restart(self) -> None:
        """Starts it again at the same address, after it ended."""
        assert self._child is not None, "not started"
        self._ended()
        self._port = int(self.url.rpartition(":")[2])
        self._child = None
        self.start()

    def stop(self) -> int:
        """Ends it and waits; its exit status. Does nothing a second time."""
        assert self._child is not None, "not started"
        return self._ended()

    def __enter__(self) -> "EmbeddedEngine":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _command(self) -> list[str]:
        command = [sys.executable, "-m", "holdfast", "serve", "--port", str(self._port)]
        command.append("--until-stdin-closes")
        if self._folder is not None:
            command += ["--model", str(self._folder)]
        return [*command, *self._options]

    def _opened_log(self) -> IO[bytes]:
        if self._log is None:
            handle, name = tempfile.mkstemp(prefix="holdfast-serve-", suffix=".log")
            self._log = Path(name)
            return os.fdopen(handle, "wb")
        return self._log.open("ab")

    def _first_line(self) -> str:
        """What it says when it is ready; "" when it ended instead."""
        assert self._child is not None
        out = self._child.stdout
        assert out is not None
        deadline = time.monotonic() + self._ready_within
        said = b""
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            while not said.endswith(b"\n"):
                if not selector.select(max(deadline - time.monotonic(), 0)):
                    raise EngineDidNotStart(
                        f"the embedded engine was not ready within {self._ready_within:g} s: "
                        f"{self._tail()}"
                    )
                piece = os.read(out.fileno(), 4096)
                if not piece:
                    return ""
                said += piece
        return said.decode().strip()

    def _ended(self) -> int:
        child = self._child
        assert child is not None
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.close()
        try:
            code = child.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            code = child.wait()
        child.stdout.close()
        return code

    def _tail(self) -> str:
        if self._log is None or not self._log.exists():
            return "(it has no log)"
        text = self._log.read_bytes()[-_TAIL:].decode("utf-8", "replace").strip()
        return text or f"(its log {self._log} is empty)"
