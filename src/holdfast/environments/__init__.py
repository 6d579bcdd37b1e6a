"""Adapters that make existing environments a `holdfast.Environment`.

- `gym`: gymnasium's environments.
- `mcp`: MCP servers.
- `openenv`: OpenEnv servers.
- `http`: any environment over HTTP, client and server; `serving` starts the server from a shell.
- `workspace`: a folder per trajectory, with a shell, for coding tasks.
- `replies`: reads an action from the text of a policy.

Some need an extra (`pip install '.[gym]'` in the clone; `.[mcp]`, `.[openenv]`). Each is imported
when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.environments.gym.environment import GymEnvironment as GymEnvironment
    from holdfast.environments.http.environment import EnvironmentEndpoint as EnvironmentEndpoint
    from holdfast.environments.http.environment import HttpEnvironment as HttpEnvironment
    from holdfast.environments.http.server import EnvironmentServer as EnvironmentServer
    from holdfast.environments.mcp import McpServer as McpServer
    from holdfast.environments.openenv import OpenEnvEnvironment as OpenEnvEnvironment
    from holdfast.environments.workspace import Workspace as Workspace

_MODULES = {
    "EnvironmentEndpoint": "http.environment",
    "EnvironmentServer": "http.server",
    "GymEnvironment": "gym.environment",
    "HttpEnvironment": "http.environment",
    "McpServer": "mcp",
    "OpenEnvEnvironment": "openenv",
    "Workspace": "workspace",
}
__all__ = [
    "EnvironmentEndpoint",
    "EnvironmentServer",
    "GymEnvironment",
    "HttpEnvironment",
    "McpServer",
    "OpenEnvEnvironment",
    "Workspace",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'holdfast.environments' has no attribute {name!r}")
    return getattr(import_module(f"holdfast.environments.{_MODULES[name]}"), name)
