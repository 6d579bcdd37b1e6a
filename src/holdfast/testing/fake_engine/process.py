"""The process in which the fake engine runs. It ends with its parent."""

import asyncio
import os
import random
import socket
import sys

from aiohttp import web

from holdfast.testing.fake_engine.server import FakeServer

PARENT_POLL_SECONDS = 0.5
# Below the ports that systems use for outgoing connections. So while a killed engine is away, no
# client can take its port.
PORTS = range(20_000, 32_000)
PORT_TRIES = 100


async def serve(server: FakeServer, *, port: int, parent: int | None) -> None:
    """Serves until it is cancelled, or until `parent` is no longer the parent of this process."""
    runner = web.AppRunner(server.application(), access_log=None, handler_cancellation=True)
    await runner.setup()
    listening = _listen(port)
    await web.SockSite(runner, listening, backlog=4096).start()
    sys.stdout.write(f"ready http://127.0.0.1:{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    while parent is None or os.getppid() == parent:  # noqa: ASYNC110  # there is no event for it
        await asyncio.sleep(PARENT_POLL_SECONDS)
    # The parent is gone, and hanging requests would delay a clean exit.
    os._exit(0)


def _listen(port: int) -> socket.socket:
    candidates = [port] if port else random.sample(PORTS, PORT_TRIES)
    for candidate in candidates[:-1]:
        try:
            return _bound(candidate)
        except OSError:
            continue
    return _bound(candidates[-1])


def _bound(port: int) -> socket.socket:
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
        # On Linux, two sockets may bind one address with SO_REUSEADDR, but only one can listen.
        listening.listen(4096)
    except OSError:
        listening.close()
        raise
    return listening
