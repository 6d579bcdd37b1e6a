"""A driver that opens a session and is then killed. `python orphan.py SERVER ARG...`: prints ready
when the server runs."""

import asyncio
import sys
from pathlib import Path

from holdfast.environments.mcp import McpServer

server = McpServer.stdio(sys.executable, *sys.argv[1:], timeout=600)


async def main() -> None:
    opening = asyncio.create_task(server.environment().reset(seed=1))
    path = Path(sys.argv[-1])
    while not path.exists() or not path.read_text():
        await asyncio.sleep(0.02)
    print("ready", flush=True)
    await opening


asyncio.run(main())
