"""An MCP server that lists its tools over two pages."""

import anyio
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool

PAGES = {None: ("first", "2"), "2": ("second", None)}


async def list_tools(ctx, params):
    name, following = PAGES[params.cursor if params else None]
    schema = {"type": "object", "properties": {"x": {"type": "integer", "format": "odd"}}}
    return ListToolsResult(tools=[Tool(name=name, input_schema=schema)], next_cursor=following)


async def call_tool(ctx, params):
    await anyio.sleep((params.arguments or {}).get("x", 0))
    return CallToolResult(content=[TextContent(type="text", text=f"{params.name} ran")])


async def main():
    server = Server("pages", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


if __name__ == "__main__":
    anyio.run(main)
