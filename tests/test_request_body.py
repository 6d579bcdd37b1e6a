"""The body of a request: bounded before it is unpacked and before it is parsed."""

import asyncio
import gzip
import zlib

import aiohttp
import pytest
from aiohttp import web

from holdfast import request_body
from holdfast.request_body import MAX_VALUES, read_body
from holdfast.request_guard import RequestRefused

MOST = 1 << 20
TEXT = b'{"text": "' + b"word, " * 1_000 + b'"}'


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


async def answered(*bodies: tuple[bytes, str]) -> list[tuple[int, bytes]]:
    """What a server that returns its bodies answers to each, sent with a `Content-Encoding`."""

    async def handle(request: web.Request) -> web.Response:
        try:
            return web.Response(body=await read_body(request))
        except RequestRefused as refusal:
            return web.Response(status=refusal.status, text=str(refusal))

    app = web.Application(client_max_size=MOST)
    app.router.add_post("/", handle)
    runner = web.AppRunner(app, access_log=None, auto_decompress=False)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    replies = []
    async with aiohttp.ClientSession() as session:
        for body, encoding in bodies:
            headers = {"Content-Encoding": encoding} if encoding else {}
            async with session.post(url, data=body, headers=headers) as response:
                replies.append((response.status, await response.read()))
    await runner.cleanup()
    return replies


def test_a_packed_body_is_what_was_packed():
    packings = [
        (TEXT, ""),
        (TEXT, "identity"),
        (gzip.compress(TEXT), "gzip"),
        (zlib.compress(TEXT), "deflate"),
        (raw_deflate(TEXT), "deflate"),
        (b"", "gzip"),
    ]
    replies = asyncio.run(answered(*packings))
    assert replies == [(200, TEXT)] * 5 + [(200, b"")]


def test_a_body_is_never_unpacked_beyond_its_limit():
    most, over = b" " * MOST, b" " * (MOST + 1)
    replies = asyncio.run(
        answered(
            (gzip.compress(most), "gzip"),
            (gzip.compress(over), "gzip"),
            (gzip.compress(b" " * (MOST * 200)), "gzip"),
            (raw_deflate(over), "deflate"),
        )
    )
    assert [status for status, _ in replies] == [200, 413, 413, 413]
    assert replies[1][1] == f"a body holds at most {MOST} bytes".encode()


@pytest.mark.parametrize(
    "body",
    [
        TEXT,
        gzip.compress(TEXT)[:-9],
        gzip.compress(TEXT) + b"more",
        gzip.compress(TEXT) + gzip.compress(TEXT),
    ],
    ids=["not packed", "cut off", "with text behind it", "packed twice"],
)
def test_a_body_that_is_not_packed_as_it_says_is_refused(body):
    ((status, _),) = asyncio.run(answered((body, "gzip")))
    assert status == 400


def test_a_packing_that_cannot_be_bounded_is_refused():
    replies = asyncio.run(answered((TEXT, "br"), (TEXT, "gzip, gzip"), (TEXT, "zstd")))
    assert [status for status, _ in replies] == [415] * 3


def test_the_number_of_values_is_bounded_before_a_parser_makes_them(monkeypatch):
    monkeypatch.setattr(request_body, "MAX_VALUES", MAX_VALUES >> 4)
    few, many = b"[" + b"1," * (MAX_VALUES >> 5), b"[" + b"[]," * (MAX_VALUES >> 5)
    text = b'"' + b"word " * (MAX_VALUES >> 4) + b'"'
    replies = asyncio.run(
        answered((few, ""), (many, ""), (gzip.compress(many), "gzip"), (text, ""))
    )
    assert [status for status, _ in replies] == [200, 413, 413, 200]
