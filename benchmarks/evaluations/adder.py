"""The tool of the ten-turn agents, as an MCP server, for those that take tools only so."""

import sys

from mcp.server.fastmcp import FastMCP

server = FastMCP("adder", host="127.0.0.1", port=int(sys.argv[1]), stateless_http=True)


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


server.run(transport="streamable-http")
