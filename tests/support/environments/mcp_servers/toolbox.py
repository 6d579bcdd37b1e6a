"""An MCP server without state, over stdio: tools that answer in every way there is."""

import os
import signal
import sys

from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import (
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)
from pydantic import BaseModel

PIXEL = bytes(range(256)) * 4
server = MCPServer("toolbox", instructions="Use the tools.", log_level="ERROR")
wire = os.dup(1)


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def echo(text: str) -> CallToolResult:
    """Says it again."""
    return CallToolResult(content=[TextContent(type="text", text=text)])


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
def refuse(why: str) -> str:
    """Says no."""
    raise ToolError(why)


@server.tool()
def weigh() -> CallToolResult:
    """Answers with structured content alone."""
    return CallToolResult(content=[], structured_content={"grams": 12, "of": "kelp"})


@server.tool()
def look() -> CallToolResult:
    """Answers with things that are not text."""
    return CallToolResult(
        content=[
            TextContent(type="text", text="a view"),
            Image(data=PIXEL, format="png").to_image_content(),
            AudioContent(type="audio", data="AAAA", mime_type="audio/wav"),
            ResourceLink(type="resource_link", name="map", uri="file:///map", size=7),
            EmbeddedResource(
                type="resource", resource=TextResourceContents(uri="file:///note", text="a note")
            ),
        ]
    )


@server.tool()
async def sleep(seconds: float) -> str:
    """Takes its time."""
    import anyio

    await anyio.sleep(seconds)
    return "awake"


@server.tool()
def flood(size: int) -> CallToolResult:
    """Answers at length."""
    return CallToolResult(content=[TextContent(type="text", text="x" * size)])


@server.tool()
def odd() -> CallToolResult:
    """Answers with odd characters."""
    text = "\u202e\x00\U0001f9ff e\u0301 \ufeff\u2028 \ud7ff"
    return CallToolResult(content=[TextContent(type="text", text=text)])


@server.tool()
def die() -> str:
    """Is killed while it works."""
    print("the last that I say, with the token hunter2hunter2", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


@server.tool()
def babble() -> str:
    """Writes to stdout what is no message, then answers."""
    os.write(wire, b"hello, I am a print\n\xff\xfe broken\n{}\n")
    print("far too much\n" * 5000, file=sys.stderr, flush=True)
    return "said"


class Person(BaseModel):
    name: str


@server.tool()
async def greet(ctx: Context) -> str:
    """Wants to know whom, from whoever sits at the client."""
    result = await ctx.elicit("Who are you?", schema=Person)
    return f"hello {result}"


@server.tool()
def pid() -> int:
    """Which process this is."""
    return os.getpid()


@server.tool()
def variable(name: str) -> str:
    """An environment variable."""
    return os.environ.get(name, "unset")


if __name__ == "__main__":
    server.run("stdio")
