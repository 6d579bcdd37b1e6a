"""An MCP server that keeps accounts: those of its process over stdio, those of each session over
streamable HTTP. `python bank.py [PORT]`; it says the port that it listens on."""

import os
import signal
import socket
import sys

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("bank", log_level="ERROR")
accounts: dict[str, dict[str, int]] = {}
WANTED = os.environ.get("BANK_TOKEN")


def book(ctx: Context) -> dict[str, int]:
    request = ctx.request_context.request
    session = "" if request is None else request.headers.get("mcp-session-id", "")
    return accounts.setdefault(session, {})


@server.tool()
def deposit(name: str, amount: int, ctx: Context) -> str:
    """Puts money into an account."""
    mine = book(ctx)
    mine[name] = mine.get(name, 0) + amount
    return f"{name} has {mine[name]}"


@server.tool()
def withdraw(name: str, amount: int, ctx: Context) -> str:
    """Takes money out of an account."""
    mine = book(ctx)
    if mine.get(name, 0) < amount:
        raise ToolError(f"{name} has only {mine.get(name, 0)}")
    mine[name] -= amount
    return f"{name} has {mine[name]}"


@server.tool()
def rob(flag: str) -> str:
    """Kills the server the first time; the flag is a file that remembers."""
    if not os.path.exists(flag):
        with open(flag, "w"):
            os.kill(os.getpid(), signal.SIGKILL)
    return "the safe was empty"


@server.tool()
def recite(size: int) -> str:
    """All of the terms and conditions."""
    return "x" * size


@server.tool()
def seed() -> str:
    """The seed of the episode."""
    return os.environ.get("HOLDFAST_SEED", "none")


class Guard:
    """Lets in who knows the token."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        headers = dict(scope.get("headers", ()))
        if scope["type"] != "http" or headers.get(b"authorization") == f"Bearer {WANTED}".encode():
            await self.app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body", "body": b"who are you?"})


def serve(port: int) -> None:
    import uvicorn

    listening = socket.create_server(("127.0.0.1", port))
    print(listening.getsockname()[1], flush=True)
    app = server.streamable_http_app()
    config = uvicorn.Config(Guard(app) if WANTED else app, log_level="error", lifespan="on")
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(int(sys.argv[1]))
    else:
        server.run("stdio")
