"""AgentRolloutProcessor for evaluations. Its tools can come from the MCP servers of a file."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.environments.mcp.server import McpServer
from holdfast.evaluation.eval_protocol.row_processor import TakesRows
from holdfast.records.errors import UsageError
from holdfast.records.task import Task
from holdfast.rollout.context import Rollout
from holdfast.rollout.episodes.environment import Environment
from holdfast.rollout.episodes.episode import Episode
from holdfast.rollout.processors import agent
from holdfast.rollout.processors.agent import DEFAULT_TURNS, MakeEnvironment
from holdfast.rollout.tools.tool import Function, Tool

_VARIABLE = re.compile(r"\$\{([^}]+)\}|\$([A-Za-z_][A-Za-z0-9_]*)")


class AgentRolloutProcessor(TakesRows, agent.AgentRolloutProcessor):
    """Generates turns until the model calls no more tools.

    Every trajectory has its own sessions with the MCP servers. The state of these servers is not
    restored after a crash (`stateless`). Pass a server with state in `environments`, with another
    recovery. If a row has `tools`, the model gets only these tools.
    """

    def __init__(
        self,
        tools: "Sequence[Tool | Function]" = (),
        *,
        environments: Sequence[MakeEnvironment] = (),
        system_prompt: str | None = None,
        max_turns: int | None = DEFAULT_TURNS,
        max_tokens: int | None = None,
        max_seconds: float | None = None,
        finish: agent.Finish | None = None,
        mcp_config_path: str | Path | None = None,
    ):
        servers = [] if mcp_config_path is None else servers_of(mcp_config_path)
        super().__init__(
            tools,
            environments=[*environments, *(_environment(server) for server in servers)],
            system_prompt=system_prompt,
            max_turns=max_turns,
            max_tokens=max_tokens,
            max_seconds=max_seconds,
            finish=finish,
        )
        self._arguments = (tools, environments)
        self._servers = servers

    @property
    def identity(self) -> str:
        """Text that identifies the processor and its servers. If a server changes, a new run
        begins."""
        return f"{super().identity} {[server.identity for server in self._servers]!r}"

    def configured(
        self,
        *,
        mcp_config_path: str | Path | None = None,
        steps: int | None = None,
        server_script_path: str | Path | None = None,
        rollout_processor_kwargs: Mapping[str, object] | None = None,
    ) -> "AgentRolloutProcessor":
        """Returns a copy with the decorator's arguments."""
        unused = server_script_path or rollout_processor_kwargs
        if unused:
            raise UsageError(
                "AgentRolloutProcessor starts no server script and takes no "
                "rollout_processor_kwargs: its servers are those of mcp_config_path"
            )
        tools, environments = self._arguments
        return type(self)(
            tools,
            environments=environments,
            system_prompt=self.system_prompt,
            max_turns=self.limits.turns if steps is None else steps,
            max_tokens=self.limits.tokens,
            max_seconds=self.limits.seconds,
            finish=self.finish,
            mcp_config_path=mcp_config_path,
        )

    async def _work(self, t: Rollout, episodes: Sequence[Episode], tools: Sequence[Tool]) -> None:
        await super()._work(t, episodes, _select_tools(t.task, tools))


def _environment(server: McpServer) -> MakeEnvironment:
    def make(task: Task) -> Environment:
        return server.environment()

    return make


def _select_tools(task: Task, tools: Sequence[Tool]) -> list[Tool]:
    """Returns the tools that the row names, or all tools."""
    named = [_tool_name(schema) for schema in task.tools]
    if not named:
        return list(tools)
    known = {tool.name: tool for tool in tools}
    missing = [name for name in named if name not in known]
    if missing:
        raise UsageError(
            f"row {task.id!r} names the tool {missing[0]!r}, which does not exist; there are "
            f"{', '.join(known) or 'none'}"
        )
    return [known[name] for name in named]


def _tool_name(schema: Mapping[str, object]) -> str:
    function = schema.get("function")
    return str((function if isinstance(function, Mapping) else schema).get("name", ""))


# --- the MCP servers of a file


def servers_of(path: str | Path) -> list[McpServer]:
    """Returns one server per entry, in the file's order, without starting it. Raises `UsageError`
    for a file that cannot be read."""
    try:
        config = msgspec.json.decode(Path(path).read_bytes())
    except FileNotFoundError:
        raise UsageError(f"mcp_config_path: {path} does not exist") from None
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"mcp_config_path: {path} cannot be read: {error}") from error
    entries = config.get("mcpServers") if isinstance(config, dict) else None
    if not isinstance(entries, dict) or not entries:
        raise UsageError(f'{path} names no servers: {{"mcpServers": {{"name": {{"command": …}}}}}}')
    return [_server(entry, where=f"{path}: server {name!r}") for name, entry in entries.items()]


def _server(entry: Any, *, where: str) -> McpServer:
    if not isinstance(entry, Mapping):
        raise UsageError(f"{where} is an object with a command or a url")
    if isinstance(url := entry.get("url"), str):
        return McpServer.http(url, headers=_read_headers(entry, where))
    command, args = entry.get("command"), entry.get("args", [])
    if not isinstance(command, str) or not isinstance(args, Sequence) or isinstance(args, str):
        raise UsageError(f"{where} wants a command and a list of args, or a url")
    return McpServer.stdio(command, *args, env=_read_env(entry.get("env"), where))


def _read_env(env: object, where: str) -> dict[str, str]:
    """Reads an object with values, or a list of names of variables that are passed on."""
    if env is None:
        return {}
    if isinstance(env, Mapping):
        return {str(name): _expand(str(value), where) for name, value in env.items()}
    if isinstance(env, Sequence) and not isinstance(env, str):
        return {str(name): _variable(str(name), where) for name in env}
    raise UsageError(f"{where}: env is a list of names, or an object with values")


def _read_headers(entry: Mapping[str, Any], where: str) -> dict[str, str]:
    headers = dict(entry.get("headers") or {})
    if entry.get("authorization"):
        headers["Authorization"] = entry["authorization"]
    return {str(name): _expand(str(value), where) for name, value in headers.items()}


def _expand(text: str, where: str) -> str:
    """Replaces `$NAME` and `${NAME}` by the variables of the environment."""
    return _VARIABLE.sub(lambda match: _variable(match.group(1) or match.group(2), where), text)


def _variable(name: str, where: str) -> str:
    if name not in os.environ:
        raise UsageError(f"{where} needs the environment variable {name}, which is not set")
    return os.environ[name]
