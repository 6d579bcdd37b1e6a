"""Runs an engine as a child process: `holdfast serve`, with the embedded engine or a vLLM.

The child listens on a free port of 127.0.0.1. It ends with its parent, however the parent ends,
because the parent holds the other end of a pipe. A start may take minutes if the model is large and
the machine is busy. The start is given up if the child neither computes nor reads for a while, or
after a limit set by the caller.
"""

import asyncio
import os
import selectors
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from holdfast.embedded.arguments import NOTE, STARTING, VllmSettings
from holdfast.log_files import open_log
from holdfast.records.errors import HoldfastError, UsageError

IDLE_SECONDS = 120.0
"""How long a child may neither compute nor read before it is ready."""
REPORT_SECONDS = 15.0
RESTART_SECONDS = 0.5
"""Seconds between two tries to start the child again."""
_POLL_SECONDS = 0.2
_STOP_SECONDS = 70.0
_TAIL_BYTES = 2000


class EngineDidNotStart(HoldfastError):
    """The child ended or was given up. The message includes the end of its log."""


class EmbeddedEngine:
    """`holdfast serve` in a child process. Use it as a context manager, or call `start` and
    `stop`."""

    def __init__(
        self,
        model: Path | None = None,
        *,
        log: Path | None = None,
        options: tuple[str, ...] = (),
        ready_within: float | None = None,
        idle_within: float = IDLE_SECONDS,
        report: Callable[[str], None] | None = None,
        vllm: VllmSettings | None = None,
    ):
        """`vllm` is the vLLM to start. If None, the embedded engine serves.

        `ready_within` is the limit in seconds for a whole start. If None, a start may take as long
        as it makes progress. `idle_within` is how many seconds it may do nothing. `report` is
        called in the thread that starts the child. It gets the stage of a long start and the
        reasons why the engine is slow.
        """
        self._folder = model
        self._log = log
        self._options = options
        self._ready_within = ready_within
        self._idle_within = idle_within
        self._report = report
        self._vllm = vllm
        self._title = "the embedded engine" if vllm is None else "vLLM"
        self._starting = True
        self._child: subprocess.Popen[bytes] | None = None
        self._port = 0
        self._logged = 0
        """The length of the log before this start."""
        self.url = ""
        """The address after the start, for example http://127.0.0.1:41234."""
        self.model = ""
        """The name under which the model is served, after the start."""

    @property
    def pid(self) -> int:
        assert self._child is not None, "not started"
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def start(self) -> None:
        """Returns when the engine takes requests. Raises `UsageError` and `EngineDidNotStart`."""
        assert self._child is None, "started once"
        with self._open_log() as log:
            self._logged = log.tell()
            self._child = subprocess.Popen(  # noqa: S603  # our own module, our own arguments
                self._command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C goes to the parent, which then ends this process.
            )
        try:
            line = self._first_line(Start(self._child))
            _, self.model, _, self.url = line.split(" ")
        except ValueError as error:
            code = self._end()
            kind = UsageError if code == 2 else EngineDidNotStart
            how = "did not start" if code >= 0 else f"was killed by signal {-code} as it started"
            raise kind(f"{self._title} {how}: {self._tail()}") from error
        except BaseException:
            self._end()
            raise

    def serve_instead(self, model: Path, *, options: tuple[str, ...]) -> None:
        """Sets the folder and the options for the next start."""
        self._folder, self._options = model, options

    async def start_in_thread(self) -> None:
        """Runs `start` in a thread, or `restart` if the child was started before. If the caller is
        cancelled, the child ends at once."""
        self._starting = True
        start = self.start if self._child is None else self.restart
        # Not a task: code that cancels all tasks would not wait for the thread.
        starting = asyncio.get_running_loop().run_in_executor(None, start)
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            self._starting = False
            await asyncio.wait({starting})
            _ = starting.cancelled() or starting.exception()
            raise

    async def wait_ended(self) -> None:
        """Waits until the child has ended in any way, which closes the pipe of its output."""
        if self._child is None or not self.running:
            return
        assert self._child.stdout is not None, "it is read from"
        pipe, loop, ended = self._child.stdout.fileno(), asyncio.get_running_loop(), asyncio.Event()

        def read() -> None:
            if not os.read(pipe, 4096):
                loop.remove_reader(pipe)
                ended.set()

        loop.add_reader(pipe, read)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(pipe)

    async def keep_alive(self, notify: Callable[[str], None]) -> None:
        """Starts the child again whenever it has ended. Until the child is back, calls to the
        engine wait as in any other outage. Then they continue."""
        while True:
            await self.wait_ended()
            try:
                await self.start_in_thread()
            except HoldfastError as error:
                notify(f"{self._title} died, and cannot be started again yet: {error}")
                await asyncio.sleep(RESTART_SECONDS)

    def kill(self) -> None:
        """Kills the child with SIGKILL, as in an accident."""
        assert self._child is not None, "not started"
        self._child.kill()
        self._child.wait()

    def restart(self) -> None:
        """Starts the engine again at the same address after it has ended."""
        assert self._child is not None, "not started"
        self._end()
        self._port = int(self.url.rpartition(":")[2])
        self._child = None
        self.start()

    def stop(self) -> int:
        """Ends the engine, waits, and returns its exit status. A second call does nothing more."""
        assert self._child is not None, "not started"
        return self._end()

    def __enter__(self) -> "EmbeddedEngine":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _command(self) -> list[str]:
        command = [sys.executable, "-m", "holdfast", "serve", "--port", str(self._port)]
        command += ["--until-stdin-closes", "--progress"]
        if self._folder is not None:
            command += ["--model", str(self._folder)]
        if self._vllm is not None:
            command += self._vllm.words()
        return [*command, *self._options]

    def _by_hand(self) -> str:
        arguments = () if self._vllm is None else self._vllm.words()
        return shlex.join(["holdfast", "serve", *arguments, "--port", "8000"])

    def _open_log(self) -> IO[bytes]:
        if self._log is None:
            handle, name = tempfile.mkstemp(prefix="holdfast-serve-", suffix=".log")
            self._log = Path(name)
            return os.fdopen(handle, "wb")
        return open_log(self._log)

    def _first_line(self, start: "Start") -> str:
        """Waits for the line with which the child says that it is ready, and returns the line.
        Returns "" if the child ended instead."""
        reported = start.seconds
        while (line := start.next_line(_POLL_SECONDS)) is None:
            if not self._starting:
                raise EngineDidNotStart(f"the start of {self._title} was given up")
            self._check_limits(start)
            self._report_notes(start)
            if self._report is not None and start.seconds - reported >= REPORT_SECONDS:
                reported = start.seconds
                self._report(f"{self._title} is {start.stage} ({reported:.0f} s so far)")
        self._report_notes(start)
        return line

    def _report_notes(self, start: "Start") -> None:
        notes, start.notes = start.notes, []
        if self._report is not None:
            for note in notes:
                self._report(f"{'engine' if self._vllm else self._title}: {note}")

    def _check_limits(self, start: "Start") -> None:
        limit = self._ready_within
        if limit is not None and start.seconds > limit:
            why = f"was not ready within {limit:g} s, and is still {start.stage}"
        elif start.idle_seconds() > self._idle_within:
            why = f"did nothing for {self._idle_within:g} s while it was {start.stage}"
        else:
            return
        raise EngineDidNotStart(
            f"{self._title} {why}; start it yourself ({self._by_hand()}), see "
            f"where it stops, and name it with --policy http://127.0.0.1:8000. {self._tail()}"
        )

    def _end(self) -> int:
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
        """Returns the end of the child's output since this start."""
        if self._log is None or not self._log.exists():
            return "(it has no log)"
        output = self._log.read_bytes()[self._logged :][-_TAIL_BYTES:]
        text = output.decode("utf-8", "replace").strip()
        # The message and its quote both begin with "holdfast: ". vLLM's log comes before it.
        *_, last = f"\n{text}".rpartition("\nholdfast: ")
        return last.strip() or f"(it wrote nothing to {self._log})"


class Start:
    """The progress of a child process that is not ready yet."""

    def __init__(self, child: "subprocess.Popen[bytes]"):
        assert child.stdout is not None, "it is read from"
        self._out, self._pid = child.stdout, child.pid
        self._read = b""
        self._since = self._active = time.monotonic()
        self._work = 0
        self.stage = "beginning to start"
        """The stage that the child reported last."""
        self.notes: list[str] = []
        """Messages for the caller that waits for the child."""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._since

    def idle_seconds(self) -> float:
        """Seconds since the child last computed, read or printed something."""
        if (work := work_of(self._pid)) != self._work:
            self._work, self._active = work, time.monotonic()
        return time.monotonic() - self._active

    def next_line(self, seconds: float) -> str | None:
        """Waits up to `seconds` for the line with which the child says that it is ready, and
        returns the line. Returns "" if the child ended, and None if it does not say so in time."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._out, selectors.EVENT_READ)
            if not selector.select(seconds):
                return None
        if not (piece := os.read(self._out.fileno(), 4096)):
            return ""
        self._active = time.monotonic()
        *lines, self._read = (self._read + piece).split(b"\n")
        for line in map(bytes.decode, lines):
            if line.startswith(STARTING):
                self.stage = line.removeprefix(STARTING)
            elif line.startswith(NOTE):
                self.notes.append(line.removeprefix(NOTE))
            else:
                return line.strip()
        return None


def work_of(pid: int) -> int:
    """Returns a number that grows while a process computes or reads. On a system without such a
    number, returns a clock's time, which always grows. Then only `ready_within` ends a start."""
    try:
        times = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
        read = Path(f"/proc/{pid}/io").read_text().split()[1]
    except (OSError, IndexError):
        return time.monotonic_ns()
    return sum(map(int, (*times, read)))
