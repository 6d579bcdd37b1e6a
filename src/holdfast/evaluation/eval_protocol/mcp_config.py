"""The MCP servers of a config file, in the form of editors and eval-protocol:
`{"mcpServers": {name: {"command": …, "args": […], "env": …} | {"url": …}}}`."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.environments.mcp.server import McpServer
from holdfast.records.errors import UsageError

_VARIABLE = re.compile(r"\$\{([^}]+)\}|\$([A-Za-z_][A-Za-z0-9_]*)")


def servers_of(path: str | Path) -> list[McpServer]:
    """One server per entry, in the file's order. Starts nothing. Raises `UsageError`."""
    try:
        found = msgspec.json.decode(Path(path).read_bytes())
    except FileNotFoundError:
        raise UsageError(f"mcp_config_path: {path} does not exist") from None
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"mcp_config_path: {path} cannot be read: {error}") from error
    entries = found.get("mcpServers") if isinstance(found, dict) else None
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
    """An object with values, or a list of names of variables that are passed on."""
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
    """`$NAME` and `${NAME}` are variables of the environment."""
    return _VARIABLE.sub(lambda found: _variable(found.group(1) or found.group(2), where), text)


def _variable(name: str, where: str) -> str:
    if name not in os.environ:
        raise UsageError(f"{where} needs the environment variable {name}, which is not set")
    return os.environ[name]
