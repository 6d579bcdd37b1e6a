"""SandboxedProcess: an agent's process in its workspace, within the workspace's sandbox.

It is started and waited for in one thread, since it dies with the thread that started it.
When `run` is over, nothing that it started is alive, as far as its sandbox can see.
"""

import contextlib
import os
import select
import signal
import subprocess
from pathlib import Path

from holdfast.environments.workspace.sandbox.command import CommandEnded, CommandStop, Launch
from holdfast.environments.workspace.sandbox.output import Output
from holdfast.environments.workspace.threads import in_thread
from holdfast.gateway.agents.process import TAIL_CHARACTERS, end_of
from holdfast.records.errors import EnvironmentBroken

SIGNAL_CODE_BASE = 128
"""A sandbox reports a signal by an exit code above this."""


class SandboxedProcess:
    """One attempt of an agent. What it writes, to stdout and stderr, is in one file."""

    def __init__(self, launch: Launch, output: Path):
        self._launch = launch
        self._output = output

    async def run(self) -> int:
        """Its exit code; negative for a signal."""
        stop = CommandStop()
        try:
            return await in_thread(lambda: self._run(stop), interrupt=stop.set)
        finally:
            stop.close()

    def _run(self, stop: CommandStop) -> int:
        try:
            with self._output.open("wb") as file:
                process = self._launch.start(file.fileno())
            try:
                is_stopped = _over_or_stopped(process, stop)
            finally:
                _kill(process)
                code = process.wait()
                self._launch.end()
            output = Output(TAIL_CHARACTERS)
            output.add(self.last_output.encode("utf-8", "replace"))
            if not is_stopped and (trouble := self._launch.trouble(CommandEnded(code, output))):
                raise EnvironmentBroken(trouble)
            return SIGNAL_CODE_BASE - code if code > SIGNAL_CODE_BASE else code
        finally:
            self._launch.close()

    @property
    def last_output(self) -> str:
        return end_of(self._output)


def _over_or_stopped(process: "subprocess.Popen[bytes]", stop: CommandStop) -> bool:
    """Whether it was stopped."""
    ending = os.pidfd_open(process.pid)
    try:
        poll = select.poll()
        for fd in (ending, stop.fd):
            poll.register(fd, select.POLLIN)
        return stop.fd in {fd for fd, _ in poll.poll()}
    finally:
        os.close(ending)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    # Not reaped yet, so that the number cannot have become somebody else's.
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
