"""Environments: adapters from worlds that exist to `holdfast.Environment`.

Some need an extra (`pip install '.[gym]'` in the clone; `.[mcp]`, `.[openenv]`). Each is imported
when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.environments.gym.environment import GymEnvironment as GymEnvironment
    from holdfast.environments.mcp import McpServer as McpServer
    from holdfast.environments.openenv import OpenEnvEnvironment as OpenEnvEnvironment
    from holdfast.environments.remote import EnvironmentEndpoint as EnvironmentEndpoint
    from holdfast.environments.remote import HttpEnvironment as HttpEnvironment
    from holdfast.environments.serving import EnvironmentServer as EnvironmentServer
    from holdfast.environments.workspace import Workspace as Workspace

_WHERE = {
    "EnvironmentEndpoint": "remote",
    "EnvironmentServer": "serving",
    "GymEnvironment": "gym.environment",
    "HttpEnvironment": "remote",
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
    if name not in _WHERE:
        raise AttributeError(f"module 'holdfast.environments' has no attribute {name!r}")
    return getattr(import_module(f"holdfast.environments.{_WHERE[name]}"), name)
