"""Starts, watches and ends an agent's process.

The process gets the addresses and keys that its SDKs read. On this machine, and in the sandbox of a
workspace, it is ended together with everything that it started. In a container, only the process
itself is ended, and what it started goes on with the container.
"""

import asyncio
import contextlib
import math
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from holdfast.environments.workspace.sandbox.command import (
    Bounds,
    Launch,
    end_of,
    run,
    run_in_thread,
)
from holdfast.environments.workspace.sandbox.processes import confinement
from holdfast.gateway.protocol.keys import PREFIX
from holdfast.gateway.server import Binding
from holdfast.records.errors import Truncated, UsageError
from holdfast.records.task import Task
from holdfast.records.trajectory import Truncation
from holdfast.rollout.processes.user_process import tie
from holdfast.worlds.contract.world import World
from holdfast.worlds.forwarding import forward

GRACE_SECONDS = 5.0
MARK = "HOLDFAST_URL"
MAX_ROUNDS = 5
"""The most rounds of searching for an agent's leftover processes. They may start further processes
meanwhile."""
TAIL_CHARACTERS = 2_000
MAX_VARIABLE_BYTES = 100_000
"""The most bytes of a variable. The operating system limits the length of each."""
TASK_FILE = "task.json"
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "PYTHONPATH", "VIRTUAL_ENV", "USER")
"""The driver's variables that an agent gets. It gets no other variables of the driver, so it gets
none of the driver's keys."""


def environment(
    binding: Binding, task: Task, *, model: str, folder: Path, more: Mapping[str, str]
) -> dict[str, str]:
    """Returns all environment variables of an agent on this machine."""
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return passed | variables(binding, task, model=model, folder=folder, more=more)


def variables(
    binding: Binding, task: Task, *, model: str, folder: Path, more: Mapping[str, str]
) -> dict[str, str]:
    """Returns the variables that common SDKs read. Writes the task to a file, because the task may
    be large."""
    (folder / TASK_FILE).write_bytes(msgspec.json.encode(task))
    return {
        "OPENAI_BASE_URL": f"{binding.url}/v1",
        "OPENAI_API_BASE": f"{binding.url}/v1",
        "OPENAI_API_KEY": binding.key,
        "ANTHROPIC_BASE_URL": binding.url,
        "ANTHROPIC_API_KEY": binding.key,
        MARK: binding.bound_url,
        "HOLDFAST_MODEL": model,
        "HOLDFAST_TASK": str(folder / TASK_FILE),
        "INSTRUCTION": instruction_of(task),
        **more,
    }


def instruction_of(task: Task) -> str:
    """Returns the text of the task's last message, or "" if it is too large for a variable."""
    text = "".join(message.text for message in task.messages[-1:]).replace("\0", "")
    return text if len(text.encode("utf-8", "replace")) <= MAX_VARIABLE_BYTES else ""


class AgentProcess(Struct):
    """The process of one attempt of an agent. Its output goes to two files in its folder."""

    command: Sequence[str]
    folder: Path
    env: Mapping[str, str]
    cwd: Path
    confined: bool = True
    _process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        out, err = self.folder / "stdout", self.folder / "stderr"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *self._full_command(),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    env=self.env,
                    cwd=self.cwd,
                    # A separate group, so that processes which the agent starts end with it.
                    start_new_session=True,
                )
            except OSError as error:
                raise UsageError(f"the agent cannot be started: {error}") from error

    def _full_command(self) -> list[str]:
        """Returns the command with prefixes that confine the agent. If the system allows it, a
        prefix also ends the agent when its driver is killed."""
        name = self.command[0]
        executable = shutil.which(name, path=self.env.get("PATH")) or (self.cwd / name).exists()
        if not executable:
            # A missing command must differ from a command that fails.
            return list(self.command)
        prefix = confinement().words if self.confined else ()
        # `tie` comes last, because a process that changes its credentials may lose it.
        return [*prefix, *tie(), *self.command]

    async def wait(self) -> int:
        assert self._process is not None, "it was started"
        return await self._process.wait()

    async def end(self) -> None:
        """Ends the agent's whole process group: first with SIGTERM, then with SIGKILL. Also ends
        processes that left the group, if they can be found."""
        process = self._process
        if process is None:
            return
        _signal(process.pid, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), GRACE_SECONDS)
        # Even if the agent ended by itself, because its children may still run.
        _signal(process.pid, signal.SIGKILL)
        await process.wait()
        # The user's `env` may contain another address.
        if f"/t/{PREFIX}" in (address := self.env.get(MARK, "")):
            await asyncio.to_thread(_end_strays, f"{MARK}={address}".encode())

    @property
    def last_output(self) -> str:
        """Returns the end of the output to stderr or, if that is empty, to stdout."""
        names = ("stderr", "stdout")
        ends = (end_of(self.folder / name, TAIL_CHARACTERS) for name in names)
        return next(filter(None, ends), "")


def _end_strays(mark: bytes) -> None:
    """Ends processes that left the agent's group, if the system shows their variables. They are
    recognized by the address with the attempt's key, which no other process has."""
    for _ in range(MAX_ROUNDS):
        if not sum(_end_stray(pid, mark) for pid in _pids()):
            return


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    except FileNotFoundError:
        return []  # On other systems, only groups can be found.


def _end_stray(pid: int, mark: bytes) -> bool:
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        # Read after the process was opened, so that the number cannot belong to another one.
        if mark not in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:
        return False  # It is gone, or belongs to another user.
    finally:
        os.close(handle)
    return True


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


class WorldProcess(Struct, frozen=True):
    """The process of one attempt of an agent in a container. Its stdout and stderr go to one file
    when it has ended."""

    world: World
    command: Sequence[str]
    env: Mapping[str, str]
    output: Path
    seconds: float

    async def run(self) -> int:
        """Runs the process and returns its exit code, which is negative for a signal."""
        await forward(self.world)
        result = await self.world.exec(self.command, env=self.env, timeout=self.seconds)
        self.output.write_text(result.output)
        if result.timed_out:
            raise Truncated(Truncation.TIME_BUDGET)
        return _code_of(result.exit_code)

    @property
    def last_output(self) -> str:
        return end_of(self.output, TAIL_CHARACTERS)


class SandboxedProcess(Struct, frozen=True):
    """The process of one attempt of an agent in a sandbox. Its stdout and stderr go to one file.
    When `run` is over, everything that the agent started has ended, as far as its sandbox can
    see."""

    launch: Launch
    output: Path

    async def run(self) -> int:
        """Runs the process and returns its exit code, which is negative for a signal."""
        bounds = Bounds(math.inf, TAIL_CHARACTERS)
        ended = await run_in_thread(
            lambda stop: run(self.launch, bounds, stop=stop, into=self.output)
        )
        return _code_of(ended.exit_code)

    @property
    def last_output(self) -> str:
        return end_of(self.output, TAIL_CHARACTERS)


def _code_of(code: int) -> int:
    """Returns the exit code of a sandbox or a container, where a code above 128 stands for a
    signal."""
    return code if code <= 128 else 128 - code
