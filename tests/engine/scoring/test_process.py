"""A scorer's process that listens: who has no token is not kept."""

import asyncio

import pytest

from holdfast.engine.scoring import process
from holdfast.engine.scoring.process import listen

LONG_SECONDS = 60.0


@pytest.mark.parametrize(
    "begun",
    [b"", b"\0\0\0", (5).to_bytes(8, "big"), (5).to_bytes(8, "big") + b"rig"],
    ids=["nothing", "a part of a length", "a length", "a part of the token"],
)
async def test_who_sends_no_token_in_time_is_disconnected(monkeypatch, begun):
    monkeypatch.setattr(process, "TOKEN_SECONDS", 0.1, raising=False)
    server = await listen("127.0.0.1", 0, token="right")
    port = server.sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(begun)
    assert await asyncio.wait_for(reader.read(), LONG_SECONDS) == b""
    writer.close()
    server.close()


def test_who_has_the_token_may_take_its_time_after_it(monkeypatch):
    monkeypatch.setattr(process, "TOKEN_SECONDS", 0.1)

    async def body():
        server = await listen("127.0.0.1", 0, token="right")
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write((5).to_bytes(8, "big") + b"right")
        reading = asyncio.create_task(reader.read())
        await asyncio.wait({reading}, timeout=0.5)
        assert not reading.done()
        writer.close()
        server.close()
        await reading

    asyncio.run(body())
