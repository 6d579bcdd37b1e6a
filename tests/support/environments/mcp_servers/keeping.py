"""What the tests of MCP servers share: where the servers are, and one that listens on a port."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

from holdfast.environments.mcp import McpEnvironment, McpServer

HERE = Path(__file__).parent
PATIENT = 60.0
"""Seconds for a server on a busy machine."""


def stdio(name: str, *args: str, **options) -> McpServer:
    options.setdefault("timeout", PATIENT)
    return McpServer.stdio(sys.executable, str(HERE / f"{name}.py"), *args, **options)


async def call(environment: McpEnvironment, name: str, /, **arguments: object) -> str:
    """Calls a tool as a rollout does."""
    tool = next(tool for tool in environment.tools if tool.name == name)
    return tool.render_result(await tool.invoke(tool.bind(json.dumps(arguments))))


def others() -> set[str]:
    """The tasks that would be left behind if the loop ended now."""
    return {task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}}


def is_running(pid: int) -> bool:
    """A zombie is not: nobody may be there to reap it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class ListeningBank:
    """The bank over streamable HTTP; a process that can be killed and started again."""

    def __init__(self, token: str | None = None):
        self._env = {**os.environ, **({} if token is None else {"BANK_TOKEN": token})}
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def start(self) -> None:
        command = [sys.executable, str(HERE / "bank.py"), str(self.port)]
        self._child = subprocess.Popen(command, stdout=subprocess.PIPE, env=self._env)
        self.port = int(self._child.stdout.readline())

    def kill(self) -> None:
        self._child.kill()
        self._child.wait()
        self._child.stdout.close()

    def __enter__(self) -> "ListeningBank":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
