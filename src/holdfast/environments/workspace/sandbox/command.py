"""Running one command to its end, within bounds of time, output and disk.

Invariants: it never blocks for longer than its timeout (and a moment); when `run` returns, nothing
that the command started is alive (as far as its `Launch` can tell); what the command does is an
answer, never an error. `run` blocks: it belongs in a thread that lives as long as the command.
"""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Protocol

from msgspec import Struct

from holdfast.environments.workspace.limits import MIB, amount
from holdfast.environments.workspace.sandbox.output import Output
from holdfast.records.errors import EnvironmentBroken

FLOOD = 64 * MIB
"""A command that prints more than this is stopped: nobody reads it."""
CHUNK = 1 << 18
FIRST_LOOK = 1.0
"""Seconds until the watch is asked for the first time."""
WATCH_SHARE = 20
"""The watch takes at most one part in this many of the time."""
INTERRUPTED = "interrupted"


class Bounds(Struct, frozen=True):
    seconds: float
    output: int


class CommandEnded(Struct, frozen=True):
    """How a command ended. `stopped` says why it was not allowed to end by itself."""

    exit_code: int
    output: Output
    stopped: str = ""


class Launch(Protocol):
    """How a command is started, and how everything that it started is ended."""

    def start(self, stdout: int) -> "subprocess.Popen[bytes]": ...

    def end(self) -> None:
        """Called once the command itself is over: ends the rest, and returns when it is gone."""
        ...

    def trouble(self, ended: CommandEnded) -> str:
        """Why the command never ran, or nothing."""
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


def run(
    launch: Launch, bounds: Bounds, *, stop: CommandStop, watch: Callable[[], str] = no_watch
) -> CommandEnded:
    """`watch` is asked now and then, and stops the command by giving a reason."""
    with ExitStack() as stack:
        stack.callback(launch.close)
        reading, writing = os.pipe2(os.O_CLOEXEC)
        stack.callback(os.close, reading)
        os.set_blocking(reading, False)
        try:
            process = launch.start(writing)
        finally:
            os.close(writing)
        output = Output(bounds.output)
        try:
            stopped = _follow(process, reading, output, bounds, stop=stop, watch=watch)
        finally:
            _kill(process)
            code = process.wait()
            launch.end()
        _drain(reading, output)
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
    """Reads until the command is over; the reason, if it has to be stopped."""
    deadline = time.monotonic() + bounds.seconds
    look = time.monotonic() + FIRST_LOOK
    ending = os.pidfd_open(process.pid)
    with selectors.DefaultSelector() as selector:
        try:
            for fd in (ending, reading, stop.fd):
                selector.register(fd, selectors.EVENT_READ)
            while True:
                now = time.monotonic()
                if now >= deadline:
                    return f"timed out after {bounds.seconds:g} s"
                if now >= look:
                    if reason := watch():
                        return reason
                    cost = time.monotonic() - now
                    look = time.monotonic() + max(FIRST_LOOK, WATCH_SHARE * cost)
                ready = {key.fd for key, _ in selector.select(min(deadline, look) - now)}
                if stop.fd in ready:
                    return INTERRUPTED
                if reading in ready and not _read(reading, output):
                    selector.unregister(reading)
                if output.total > FLOOD:
                    return f"stopped after it had printed {amount(FLOOD)}"
                if ending in ready:
                    return ""
        finally:
            os.close(ending)


def _read(reading: int, output: Output) -> bool:
    """Whether there may be more."""
    try:
        chunk = os.read(reading, CHUNK)
    except BlockingIOError:
        return True
    output.add(chunk)
    return bool(chunk)


def _drain(reading: int, output: Output) -> None:
    """What is left in the pipe. Nobody is waited for: a process that got away may hold it open."""
    while output.total <= FLOOD:
        try:
            chunk = os.read(reading, CHUNK)
        except BlockingIOError:
            return
        if not chunk:
            return
        output.add(chunk)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    # Not reaped yet, so that the number cannot have become somebody else's.
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
    """In a session of its own, with nothing of ours: no environment, no files, no terminal."""
    return subprocess.Popen(  # noqa: S603 - running what the policy says is what this is for
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
