"""MCP servers as environments: `McpServer` describes one, its `environment()` serves a trajectory.

Needs the extra: `pip install '.[mcp]'`, in the clone. The `mcp` package is imported when the first
session is opened, not before.
"""

from holdfast.environments.mcp.environment import McpEnvironment
from holdfast.environments.mcp.listing import McpTool
from holdfast.environments.mcp.server import McpServer

__all__ = ["McpEnvironment", "McpServer", "McpTool"]
