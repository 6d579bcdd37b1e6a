"""Runs a part as a child process with this Python, its own session and log, and reads its pipes.

It ends whenever its parent ends, because its stdin is a pipe that closes with the parent. When it
has ended, no process of its process group is left. A process that it started in another group or
session may live on and hold its pipes. The supervisor does not wait for such a process, but still
reads its output.
"""

import asyncio
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

from msgspec import Struct

from holdfast.log_files import open_log
from holdfast.pipeline.settings import RestartPolicy

LAST_LINES = 20
READ_SECONDS = 2.0
"""Seconds to read the rest of a part's output after its end. Reading can take longer only if
another process holds the part's pipe."""
KILL_SECONDS = 10.0
"""Seconds to wait for the end of a killed process. It takes longer only if the kernel cannot end
the process."""
_STREAMS = ("stdout", "stderr")


class PipelinePart(Struct, frozen=True):
    """A command to run, and the place of its output."""

    name: str
    command: tuple[str, ...]
    log: Path


class ChildProcess:
    """One process of a part, from its start to its end. `on_line` is called in the event loop with
    each line: the name of the stream and the text."""

    def __init__(self, part: PipelinePart, on_line: Callable[[str, str], None]):
        self._part = part
        self._on_line = on_line
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._readers: list[threading.Thread] = []
        self._process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def last_line(self) -> str:
        """The last line that the part wrote to stderr; "" if there is none."""
        return next((line for line in reversed(self._last) if line.strip()), "")

    def start(self) -> None:
        with ExitStack() as opened:
            # Open logs first: if one cannot be opened, no process is left behind.
            logs = [opened.enter_context(open_log(self._part.log)) for _ in _STREAMS]
            self._process = subprocess.Popen(  # noqa: S603 - our own module, our own arguments
                list(self._part.command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            opened.pop_all()
        for name, log in zip(_STREAMS, logs, strict=True):
            pipe = getattr(self._process, name)
            self._readers.append(self._in_thread(name, self._read, name, pipe, log))
        self._in_thread("end", self._wait)

    def _in_thread(
        self, what: str, work: Callable[..., None], *arguments: object
    ) -> threading.Thread:
        name = f"{self._part.name} {what}"
        thread = threading.Thread(target=work, args=arguments, name=name, daemon=True)
        thread.start()
        return thread

    def _read(self, name: str, pipe: IO[bytes], log: IO[bytes]) -> None:
        """Copies a pipe into the log and passes its lines on. Reads without a pause, because a
        child with a full pipe would stand still. Closes pipe and log at the end; no other code may
        close them before."""
        with pipe, log:
            for line in pipe:
                with suppress(OSError):  # If the disk is full, reading must go on.
                    log.write(line)
                text = line.decode("utf-8", "replace").rstrip("\n")
                with suppress(RuntimeError):  # The loop may be closed by now.
                    self._loop.call_soon_threadsafe(self._take, name, text)

    def _take(self, name: str, text: str) -> None:
        if name == "stderr":
            self._last.append(text)
        self._on_line(name, text)

    def _wait(self) -> None:
        code = self._process.wait()
        self._kill_group()
        for reader in self._readers:
            reader.join(READ_SECONDS)
        assert self._process.stdin is not None, "it is a pipe"
        with suppress(OSError):
            self._process.stdin.close()
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._end, code)

    def _end(self, code: int) -> None:
        if not self._ended.done():
            self._ended.set_result(code)

    async def wait(self) -> int:
        """Returns the exit status, below 0 for a signal. The output has been read by then: to its
        end, or for a while if another process holds the pipes."""
        return await asyncio.shield(self._ended)

    async def end(self, *, within: float) -> int:
        """Sends SIGTERM, and SIGKILL after `within` seconds. Returns the exit status. Acknowledged
        work is durable by then. If the process survives even SIGKILL for a while, returns without
        waiting longer."""
        self._signal(signal.SIGTERM)
        with suppress(TimeoutError):
            return await asyncio.wait_for(self.wait(), within)
        self._signal(signal.SIGKILL)
        with suppress(TimeoutError):
            return await asyncio.wait_for(self.wait(), KILL_SECONDS)
        return -signal.SIGKILL

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            if not self._ended.done():
                os.kill(self._process.pid, number)

    def _kill_group(self) -> None:
        """Kills the processes that the part started in its process group and left behind."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


def is_crash(code: int, *, final: Sequence[int]) -> bool:
    """Returns whether the part should be started again, because it was killed or its failure may be
    temporary. `final` has the exit codes of failures that would repeat."""
    return code != 0 and code not in final


class Restarts:
    """Counts the crashes and restarts of one part, and decides when the part is started again."""

    def __init__(self, policy: RestartPolicy):
        self._policy = policy
        self._crashes: deque[float] = deque()
        self.count = 0
        """The number of restarts so far."""

    def after_crash(self) -> float | None:
        """Counts a crash at this moment. Returns the seconds until the next start, or None if the
        restart policy allows no further start."""
        now = time.monotonic()
        self._crashes.append(now)
        while self._crashes[0] < now - self._policy.within:
            self._crashes.popleft()
        wait = self._policy.wait(len(self._crashes))
        self.count += wait is not None
        return wait


def last_cause(cause: str, restarts: int) -> str:
    """Describes why a part is not started again: its last failure, and the number of its
    restarts."""
    return f"{cause} (and so {restarts} times before)"


def how_ended(name: str, code: int) -> str:
    """Describes the exit status of a part in words."""
    how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
    return f"the {name} {how}"
