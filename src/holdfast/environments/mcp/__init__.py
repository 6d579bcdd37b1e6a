"""MCP servers as environments: `McpServer` describes a server, `environment()` is for a trajectory.

- `server`: `McpServer`, made once and used by many trajectories.
- `environment`: `McpEnvironment`: the server in one trajectory.
- `shared`: one session for many trajectories.
- `session`: one connection, from its handshake to its end.
- `connection`: how a server is reached: a command or a URL.
- `process`: the process of a server that is a command.
- `client_info`: what the client says about itself in the handshake.
- `server_log`: the server's last lines of output, for error messages.
- `listing`: the server's tools and their contracts.
- `content`: the result of a tool call as text.
- `sdk_v1`: version 1 of the `mcp` package.

Needs the extra: `pip install '.[mcp]'`, in the clone. The `mcp` package is imported when the first
session is opened.
"""

from holdfast.environments.mcp.environment import McpEnvironment
from holdfast.environments.mcp.listing import McpTool
from holdfast.environments.mcp.server import McpServer

__all__ = ["McpEnvironment", "McpServer", "McpTool"]
