"""GymServer is the process of an MCP gym.

It is started when it is first needed, and restarted on the same port if it has ended. Stopping it
also ends its child processes. It knows nothing about episodes.
"""

import asyncio
import os
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from holdfast.gateway.agents.process import AgentProcess
from holdfast.records.errors import EnvironmentBroken, UsageError

START_SECONDS = 60.0
POLL_SECONDS = 0.05
_MISTAKE = re.compile(
    r"^(ImportError|ModuleNotFoundError|SyntaxError|IndentationError|NameError|AttributeError): ",
    re.MULTILINE,
)
"""Python's last line for a script with a mistake, or with other versions of its packages."""


class GymServer:
    """Runs `script --port PORT` with `python`."""

    def __init__(
        self,
        script: str | Path,
        *,
        port: int = 0,
        arguments: Sequence[str] = (),
        python: str | None = None,
        start_seconds: float = START_SECONDS,
    ):
        self.script = Path(script)
        if not self.script.is_file():
            raise UsageError(f"server_script_path: {script} does not exist")
        self._port = port
        self._arguments = list(arguments)
        self._python = python or sys.executable
        self._start_seconds = start_seconds
        self._process: AgentProcess | None = None
        self._ended: asyncio.Task[int] | None = None
        self._folder: Path | None = None
        self._starting = asyncio.Lock()

    async def url(self) -> str:
        """Returns the server's address, after starting it if it does not run. Raises
        `EnvironmentBroken` if the start fails, and `UsageError` for a script with a mistake."""
        async with self._starting:
            if self._ended is None or self._ended.done():
                await self._start()
        return f"http://127.0.0.1:{self._port}"

    async def _start(self) -> None:
        await self.aclose()
        self._port = self._port or _free_port()
        if await _listens(self._port):
            raise UsageError(
                f"port {self._port} is taken: leave `port` out of rollout_processor_kwargs, and a "
                "free one is found"
            )
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-gym-"))
        command = [self._python, str(self.script.absolute()), "--port", str(self._port)]
        self._process = AgentProcess(
            [*command, *self._arguments],
            folder=self._folder,
            env={**os.environ, "PORT": str(self._port)},
            cwd=Path.cwd(),
        )
        await self._process.start()
        self._ended = asyncio.create_task(self._process.wait(), name=f"gym {self.script.name}")
        try:
            await self._wait_for_port(self._process, self._ended)
        except BaseException:
            await self.aclose()
            raise

    async def _wait_for_port(self, process: AgentProcess, ended: "asyncio.Task[int]") -> None:
        deadline = asyncio.get_running_loop().time() + self._start_seconds
        while not await _listens(self._port):
            if ended.done():
                output = process.last_output
                # A script with a mistake fails at every start, so a retry cannot help.
                error_class = UsageError if _MISTAKE.search(output) else EnvironmentBroken
                raise error_class(
                    f"{self.script.name} ended with exit status {ended.result()} before it "
                    f"listened:\n{output}"
                )
            if asyncio.get_running_loop().time() > deadline:
                raise EnvironmentBroken(
                    f"{self.script.name} did not listen on port {self._port} within "
                    f"{self._start_seconds:g} s:\n{process.last_output}"
                )
            await asyncio.sleep(POLL_SECONDS)

    async def aclose(self) -> None:
        """Stops the server, if it runs."""
        process, self._process = self._process, None
        ended, self._ended = self._ended, None
        folder, self._folder = self._folder, None
        if process is not None:
            await process.end()
        if ended is not None:
            await ended
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), 1.0)
    except (OSError, TimeoutError):
        return False
    writer.close()
    await writer.wait_closed()
    return True


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def server_options(arguments: Mapping[str, object]) -> dict[str, object]:
    """Reads port, domain and python from eval-protocol's `rollout_processor_kwargs`.

    `server_mode` and `start_server` have no effect, because one server serves a whole test.
    """
    rest = {k: v for k, v in arguments.items() if k not in ("server_mode", "start_server")}
    options: dict[str, object] = {}
    if (port := rest.pop("port", None)) is not None:
        options["port"] = int(str(port))
    if (domain := rest.pop("domain", None)) is not None:
        options["arguments"] = ("--domain", str(domain))
    if (python := rest.pop("python", None)) is not None:
        options["python"] = str(python)
    if rest:
        raise UsageError(
            f"rollout_processor_kwargs: MCPGymRolloutProcessor knows port, domain and python, not "
            f"{min(rest)!r}"
        )
    return options
