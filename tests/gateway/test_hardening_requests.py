"""Requests that cost more than they look, and clients that say nothing in unusual ways."""

import asyncio
import contextlib
import zlib

from counter import CHAT, HELLO, exchange, opened, post

from holdfast.gateway import server


def packed(megabytes: int) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    return b"".join(packer.compress(b" " * 2**20) for _ in range(megabytes)) + packer.flush()


def test_the_rest_of_a_packed_body_that_is_refused_is_not_unpacked(monkeypatch):
    refused, refuse = [], server.refuse

    async def kept(visit, why):
        refused.append(visit.request)
        return await refuse(visit, why)

    monkeypatch.setattr(server, "refuse", kept)

    async def body():
        async with opened() as (counter, _, binding):
            bomb = post(CHAT, packed(100), Content_Encoding="gzip")
            with contextlib.suppress(ConnectionResetError):  # It was still sending.
                assert (await exchange(counter.port, bomb)).status == 401
            await asyncio.sleep(0.1)
            assert refused[0].content.total_bytes < 10_000_000
            # A small one that is refused, and one that is not, are as any other.
            small = zlib.compress(b"{}")
            raw = post(CHAT, small, Content_Encoding="deflate")
            assert (await exchange(counter.port, raw)).status == 401
            assert (await exchange(counter.port, post(CHAT, HELLO, binding))).status == 200

    asyncio.run(body())


def test_what_is_left_empty_in_a_message_of_mcp_may_be_null():
    async def body():
        async with opened() as (counter, _, binding):
            asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": None}
            reply = await exchange(counter.port, post("/mcp", asked, binding))
            assert reply.json["result"] == {"tools": []}
            call = {"name": "nothing", "arguments": None, "_meta": None}
            asked = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}
            reply = await exchange(counter.port, post("/mcp", asked, binding))
            assert "there is no tool 'nothing'" in reply.json["error"]["message"]

    asyncio.run(body())
