"""The MCP servers that a config file names, as editors and eval-protocol write it down:
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
    """One for each entry, in the file's order. Nothing is started."""
    try:
        found = msgspec.json.decode(Path(path).read_bytes())
    except FileNotFoundError:
        raise UsageError(f"mcp_config_path: {path} does not exist") from None
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"mcp_config_path: {path} cannot be read: {error}") from error
    named = found.get("mcpServers") if isinstance(found, dict) else None
    if not isinstance(named, dict) or not named:
        raise UsageError(f'{path} names no servers: {{"mcpServers": {{"name": {{"command": …}}}}}}')
    return [_server(entry, where=f"{path}: server {name!r}") for name, entry in named.items()]


def _server(entry: Any, *, where: str) -> McpServer:
    if not isinstance(entry, Mapping):
        raise UsageError(f"{where} is an object with a command or a url")
    if isinstance(url := entry.get("url"), str):
        return McpServer.http(url, headers=_headers(entry, where))
    command, args = entry.get("command"), entry.get("args", [])
    if not isinstance(command, str) or not isinstance(args, Sequence) or isinstance(args, str):
        raise UsageError(f"{where} wants a command and a list of args, or a url")
    return McpServer.stdio(command, *args, env=_env(entry.get("env"), where))


def _env(given: object, where: str) -> dict[str, str]:
    """Values; or, in a list, the names of variables that are handed on."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return {str(name): _filled(str(value), where) for name, value in given.items()}
    if isinstance(given, Sequence) and not isinstance(given, str):
        return {str(name): _variable(str(name), where) for name in given}
    raise UsageError(f"{where}: env is a list of names, or an object with values")


def _headers(entry: Mapping[str, Any], where: str) -> dict[str, str]:
    given = dict(entry.get("headers") or {})
    if entry.get("authorization"):
        given["Authorization"] = entry["authorization"]
    return {str(name): _filled(str(value), where) for name, value in given.items()}


def _filled(text: str, where: str) -> str:
    """`$NAME` and `${NAME}` are variables of the environment."""
    return _VARIABLE.sub(lambda found: _variable(found.group(1) or found.group(2), where), text)


def _variable(name: str, where: str) -> str:
    if name not in os.environ:
        raise UsageError(f"{where} needs the environment variable {name}, which is not set")
    return os.environ[name]
