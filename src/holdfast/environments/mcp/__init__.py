"""MCP servers as environments.

`McpServer` describes a server. Its `environment()` is the server in one trajectory.

- `server`: `McpServer`, made once and used by many trajectories, and the server in one of them.
- `session`: one connection, from its handshake to its end, for one trajectory or for many.
- `connection`: how a server is reached, by a command or a URL, and the last lines of its output.
- `process`: the process of a server that is a command, and the messages to and from it.
- `listing`: the server's tools and their contracts, and the result of a call as text.
- `sdk_v1`: version 1 of the `mcp` package.

MCP servers need the extra: `pip install '.[mcp]'`, in the clone. The `mcp` package is imported when
the first session is opened.
"""

from holdfast.environments.mcp.listing import McpTool
from holdfast.environments.mcp.server import McpEnvironment, McpServer

__all__ = ["McpEnvironment", "McpServer", "McpTool"]
