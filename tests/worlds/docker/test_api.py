"""Requests to a container engine, and what becomes of those that it does not answer."""

import asyncio

import pytest

from holdfast.worlds.contract.failures import ProviderDown
from holdfast.worlds.docker.address import container_engine
from holdfast.worlds.docker.api import ContainerApi

PONG = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nOK"


@pytest.mark.parametrize(
    "request_of",
    [
        lambda api: api.call("GET", "/x", seconds=0.2),
        lambda api: anext(api.lines("/x", query={}, seconds=0.2)),
        lambda api: anext(api.stream("/x", seconds=0.2)),
    ],
    ids=["call", "lines", "stream"],
)
async def test_an_engine_that_does_not_answer_in_time_is_down(request_of) -> None:
    serving = []

    async def answer_pings_alone(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        serving.append(asyncio.current_task())
        request = await reader.readuntil(b"\r\n\r\n")
        if request.startswith(b"GET /_ping"):
            writer.write(PONG)
        else:
            await reader.read()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer_pings_alone, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    api = ContainerApi(container_engine("docker", f"tcp://127.0.0.1:{port}"))
    try:
        with pytest.raises(ProviderDown, match=r"did not answer .* /x in time"):
            await request_of(api)
    finally:
        await api.close()
        server.close()
        await asyncio.gather(*serving)
