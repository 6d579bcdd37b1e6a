"""A part as a child process: this Python, a session and a log of its own, pipes that are read.

It ends with its parent, however that ends: its stdin is a pipe that closes with it. When it has
ended, nothing of its session is left.
"""

import asyncio
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from msgspec import Struct

LAST_LINES = 20


class PipelinePart(Struct, frozen=True):
    """What is run, and where its output goes."""

    name: str
    command: tuple[str, ...]
    log: Path


class ChildProcess:
    """One life of a part. `on_line` gets its lines in the loop: the stream's name and the text."""

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
        """The last thing that it wrote to stderr; "" for nothing."""
        return next((line for line in reversed(self._last) if line.strip()), "")

    def start(self) -> None:
        self._part.log.parent.mkdir(parents=True, exist_ok=True)
        self._process = subprocess.Popen(  # noqa: S603 - our own module, our own arguments
            list(self._part.command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        log = self._part.log.open("ab", buffering=0)
        for name in ("stdout", "stderr"):
            pipe = getattr(self._process, name)
            reader = threading.Thread(
                target=self._read, args=(name, pipe, log), name=f"{self._part.name} {name}"
            )
            reader.daemon = True
            reader.start()
            self._readers.append(reader)
        waiter = threading.Thread(target=self._wait, args=(log,), name=f"{self._part.name} end")
        waiter.daemon = True
        waiter.start()

    def _read(self, name: str, pipe: IO[bytes], log: IO[bytes]) -> None:
        """Always: a child whose pipe is full would stand still."""
        for line in pipe:
            with suppress(OSError, ValueError):  # A full disk is no reason to stop reading.
                log.write(line)
            text = line.decode("utf-8", "replace").rstrip("\n")
            with suppress(RuntimeError):  # The loop may be closed by now.
                self._loop.call_soon_threadsafe(self._take, name, text)

    def _take(self, name: str, text: str) -> None:
        if name == "stderr":
            self._last.append(text)
        self._on_line(name, text)

    def _wait(self, log: IO[bytes]) -> None:
        code = self._process.wait()
        self.kill_session()
        for reader in self._readers:
            reader.join()
        log.close()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None, "all three are pipes"
            with suppress(OSError):
                pipe.close()
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._end, code)

    def _end(self, code: int) -> None:
        if not self._ended.done():
            self._ended.set_result(code)

    async def wait(self) -> int:
        """Its exit status, when its output has been read to the end; below 0: the signal."""
        return await asyncio.shield(self._ended)

    async def end(self, *, within: float) -> int:
        """SIGTERM, and SIGKILL after so many seconds: everything acknowledged is durable."""
        self._signal(signal.SIGTERM)
        try:
            return await asyncio.wait_for(self.wait(), within)
        except TimeoutError:
            self._signal(signal.SIGKILL)
            return await self.wait()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            if not self._ended.done():
                os.kill(self._process.pid, number)

    def kill_session(self) -> None:
        """What the part had started, and left behind."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


def is_crash(code: int, *, final: Sequence[int]) -> bool:
    """Whether another start may help: it was killed, or failed by something that passes. `final`
    are the exit codes of what will be the same again."""
    return code != 0 and code not in final
