"""The engine's HTTP server: who may ask it for what."""

from aiohttp import ClientSession
from aiohttp.test_utils import TestServer

from holdfast.embedded.http.server import Server


async def test_without_any_token_nobody_changes_the_engine():
    """An empty token opens nothing, however a request writes it."""
    server = TestServer(Server(None, served="tiny").application())  # type: ignore[arg-type]
    async with server, ClientSession() as client:
        for header in ({}, {"Authorization": ""}, {"Authorization": "Bearer "}):
            async with client.post(server.make_url("/pause"), headers=header) as reply:
                assert reply.status == 401
