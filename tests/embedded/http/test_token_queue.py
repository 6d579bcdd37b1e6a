"""A client that does not read the stream that it asked for is not waited for without end."""

import asyncio
import socket
from typing import Any

import msgspec
import pytest

from holdfast.embedded.http import token_queue
from holdfast.embedded.scheduler.engine import DecodeEngine
from support.embedded.client import Client, completion, serving, until

CHOICES, TOKENS = 16, 1000
"""Far more than sockets hold: some 40 MB of events."""


async def _request_without_reading(
    client: Client, engine: DecodeEngine
) -> tuple[socket.socket, int]:
    """The socket, and how many tokens were sampled when the engine had let go of it."""
    base = client.session._base_url
    assert base is not None
    body = msgspec.json.encode(
        completion(n=CHOICES, max_tokens=TOKENS, logprobs=20, stream=True, ignore_eos=True)
    )
    head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    before = engine.statistics.generation_tokens
    held = socket.create_connection((str(base.host), base.port))
    held.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    held.sendall(head.encode() + body)
    await until(lambda: engine.statistics.generation_tokens > before)
    await until(lambda: engine.running == engine.waiting == 0)
    return held, engine.statistics.generation_tokens - before


def let_go_of(engine: DecodeEngine) -> tuple[int, Any]:
    async def main() -> tuple[int, Any]:
        async with serving(engine) as client:
            held, sampled = await _request_without_reading(client, engine)
            with held:
                return sampled, await client.complete()

    return asyncio.run(main())


def test_too_much_that_nobody_reads(engine: DecodeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_queue, "MAX_UNREAD_TOKENS", 100)
    sampled, after = let_go_of(engine)
    assert sampled < CHOICES * TOKENS, "it was cut off on the way"
    assert len(after["choices"][0]["token_ids"]) == 8, "others are served as ever"


def test_nobody_reads_for_too_long(engine: DecodeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_queue, "MAX_UNREAD_TOKENS", 1 << 30)
    monkeypatch.setattr(token_queue, "UNREAD_SECONDS", 0.2)
    sampled, after = let_go_of(engine)
    assert sampled < CHOICES * TOKENS
    assert len(after["choices"][0]["token_ids"]) == 8


def test_a_slow_reader_gets_everything(
    engine: DecodeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_queue, "MAX_UNREAD_TOKENS", 100)
    body = completion(n=8, max_tokens=100, logprobs=20, stream=True, ignore_eos=True)

    async def main() -> int:
        async with serving(engine) as client:
            raw = msgspec.json.encode(body)
            async with client.session.post("/v1/completions", data=raw) as response:
                tokens = 0
                async for line in response.content:
                    tokens += line.startswith(b"data: {")
                    await asyncio.sleep(0.0005)
                return tokens

    assert asyncio.run(main()) == 800
