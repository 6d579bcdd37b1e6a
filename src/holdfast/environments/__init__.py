"""Adapters that make existing environments a `holdfast.Environment`.

- `gym`: gymnasium's environments.
- `mcp`: MCP servers.
- `openenv`: OpenEnv servers.
- `http`: any environment over HTTP, client and server; `serving` starts the server from a shell.
- `workspace`: a folder with a shell for each trajectory, for coding tasks.
- `replies`: reads an action from the text of a policy.

Some adapters need an extra (`pip install '.[gym]'` in the clone; `.[mcp]`, `.[openenv]`). Each
adapter is imported when it is first used.
"""

from typing import TYPE_CHECKING

from holdfast.lazy_names import lazy_names

if TYPE_CHECKING:
    from holdfast.environments.gym.environment import GymEnvironment as GymEnvironment
    from holdfast.environments.http.environment import EnvironmentEndpoint as EnvironmentEndpoint
    from holdfast.environments.http.environment import HttpEnvironment as HttpEnvironment
    from holdfast.environments.http.server import EnvironmentServer as EnvironmentServer
    from holdfast.environments.mcp import McpServer as McpServer
    from holdfast.environments.openenv import OpenEnvEnvironment as OpenEnvEnvironment
    from holdfast.environments.workspace import Workspace as Workspace

_MODULES = {
    "environments.gym.environment": "GymEnvironment",
    "environments.http.environment": "EnvironmentEndpoint HttpEnvironment",
    "environments.http.server": "EnvironmentServer",
    "environments.mcp": "McpServer",
    "environments.openenv": "OpenEnvEnvironment",
    "environments.workspace": "Workspace",
}
__getattr__, __all__ = lazy_names(__name__, _MODULES)
