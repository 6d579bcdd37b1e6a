"""Runs one command to its end, within limits of time, output and disk.

`run` blocks for little longer than its timeout at most. Call it in a thread that lives as long as
the command. When it returns, all processes of the command that its `Launch` can find are dead.
Whatever the command does is a result, never an error.
"""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Protocol, TypeVar

from msgspec import Struct

from holdfast.environments.workspace.threads import in_thread
from holdfast.records.encoding.redaction import redact
from holdfast.records.errors import EnvironmentBroken
from holdfast.worlds.contract.output import MIB, Output, amount

MAX_PRINTED_BYTES = 64 * MIB
"""A command that prints more bytes is stopped."""
CHUNK_BYTES = 1 << 18
WATCH_SECONDS = 1.0
"""The shortest time between two calls of `watch`."""
WATCH_SHARE = 20
"""The pause after a call of `watch` is at least this many times as long as the call."""
INTERRUPTED = "interrupted"
_BEFORE = 8_000
"""How many more bytes before the end of a file are read than are returned. A secret that begins
before the returned part would not be recognized otherwise."""
Result = TypeVar("Result")


class Bounds(Struct, frozen=True):
    seconds: float
    output: int


class CommandEnded(Struct, frozen=True):
    """The exit code and the output of a command. `stopped` is the reason why it was killed, or
    ""."""

    exit_code: int
    output: Output
    stopped: str = ""


class Launch(Protocol):
    """Starts a command, and kills all processes that it started."""

    def start(self, stdout: int) -> "subprocess.Popen[bytes]": ...

    def end(self) -> None:
        """Kills the other processes of a command and waits for their end. Called when the command
        itself has ended."""
        ...

    def trouble(self, ended: CommandEnded) -> str:
        """Returns the reason if the command never ran, or "" if it ran."""
        ...

    def close(self) -> None: ...


class CommandStop:
    """Ends a running command from another thread."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def set(self) -> None:
        os.eventfd_write(self.fd, 1)

    def close(self) -> None:
        os.close(self.fd)


def no_watch() -> str:
    return ""


async def run_in_thread(work: Callable[[CommandStop], Result]) -> Result:
    """Runs blocking work in a thread. `work` gets a `CommandStop`, which is set if the caller is
    cancelled."""
    stop = CommandStop()
    try:
        return await in_thread(lambda: work(stop), interrupt=stop.set)
    finally:
        stop.close()


def run(
    launch: Launch,
    bounds: Bounds,
    *,
    stop: CommandStop,
    watch: Callable[[], str] = no_watch,
    into: Path | None = None,
) -> CommandEnded:
    """Runs a command and returns how it ended.

    `watch` is called from time to time, and stops the command if it returns a reason. If `into` is
    given, all of the output is written to this file, and only its end is returned.
    """
    with ExitStack() as stack:
        stack.callback(launch.close)
        reading, writing = os.pipe2(os.O_CLOEXEC)
        stack.callback(os.close, reading)
        os.set_blocking(reading, False)
        with (
            open(writing, "wb") as pipe,
            nullcontext(pipe) if into is None else into.open("wb") as stdout,
        ):
            process = launch.start(stdout.fileno())
        output = Output(bounds.output)
        try:
            stopped = _follow(process, reading, output, bounds, stop=stop, watch=watch)
        finally:
            _kill(process)
            code = process.wait()
            launch.end()
        _drain(reading, output)
        if into is not None:
            output.add(end_of(into, bounds.output).encode("utf-8", "replace"))
        ended = CommandEnded(code if code >= 0 else 128 - code, output, stopped)
        if not stopped and (trouble := launch.trouble(ended)):
            raise EnvironmentBroken(trouble)
        return ended


def _follow(
    process: "subprocess.Popen[bytes]",
    reading: int,
    output: Output,
    bounds: Bounds,
    *,
    stop: CommandStop,
    watch: Callable[[], str],
) -> str:
    """Reads the output until the command has ended. Returns "", or the reason if the command has to
    be stopped first."""
    deadline = time.monotonic() + bounds.seconds
    next_watch = time.monotonic() + WATCH_SECONDS
    ending = os.pidfd_open(process.pid)
    with selectors.DefaultSelector() as selector:
        try:
            for fd in (ending, reading, stop.fd):
                selector.register(fd, selectors.EVENT_READ)
            while True:
                now = time.monotonic()
                if now >= deadline:
                    return f"timed out after {bounds.seconds:g} s"
                if now >= next_watch:
                    if reason := watch():
                        return reason
                    cost = time.monotonic() - now
                    next_watch = time.monotonic() + max(WATCH_SECONDS, WATCH_SHARE * cost)
                ready = {key.fd for key, _ in selector.select(min(deadline, next_watch) - now)}
                if stop.fd in ready:
                    return INTERRUPTED
                if reading in ready and _read(reading, output) == 0:
                    selector.unregister(reading)
                if output.total > MAX_PRINTED_BYTES:
                    return f"stopped after it had printed {amount(MAX_PRINTED_BYTES)}"
                if ending in ready:
                    return ""
        finally:
            os.close(ending)


def _read(reading: int, output: Output) -> int | None:
    """Reads output, and returns the number of bytes: 0 at the end of the output, and None if there
    is no output yet."""
    try:
        chunk = os.read(reading, CHUNK_BYTES)
    except BlockingIOError:
        return None
    output.add(chunk)
    return len(chunk)


def _drain(reading: int, output: Output) -> None:
    """Reads the output that is left in the pipe, without waiting for its end. A process that was
    not found may hold the pipe open."""
    while output.total <= MAX_PRINTED_BYTES and _read(reading, output):
        pass


def end_of(path: Path, characters: int) -> str:
    """Returns the last characters of a file, without secrets. Reads only the end of the file."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - characters - _BEFORE))
        text = file.read(characters + _BEFORE).decode("utf-8", "replace")
    return redact(text.strip())[-characters:].strip()


def _kill(process: "subprocess.Popen[bytes]") -> None:
    # The process is not reaped yet, so its pid is still its own.
    if process.returncode is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            process.kill()


def spawn(
    argv: list[str],
    *,
    stdout: int,
    cwd: str,
    env: Mapping[str, str],
    pass_fds: tuple[int, ...] = (),
) -> "subprocess.Popen[bytes]":
    """Starts a program in a new session, without the driver's variables, open files or terminal."""
    return subprocess.Popen(  # noqa: S603 - it runs the policy's commands
        argv,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stdout,
        cwd=cwd,
        env=dict(env),
        start_new_session=True,
        umask=0o022,
        pass_fds=pass_fds,
    )
