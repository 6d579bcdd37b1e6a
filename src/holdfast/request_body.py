"""Reads the bodies of requests, for every HTTP server of ours.

One client's body must not make other clients wait, and must not take memory without a bound. So a
body is bounded three times:

- by its bytes as they arrive (the server's `client_max_size`),
- by its bytes after unpacking. A thread unpacks it and stops at the same limit,
- by the number of JSON values in it. A parser creates an object for each and holds the
  interpreter's lock meanwhile, so a body of tiny values would stop the process for seconds.

A large body is parsed in a thread (`off_loop`). Each server has `auto_decompress=False`, so that
aiohttp does not unpack bodies on the event loop.
"""

import zlib
from typing import TYPE_CHECKING

from holdfast.off_loop import off_loop
from holdfast.request_guard import RequestRefused

if TYPE_CHECKING:
    from aiohttp import web

MAX_BODY_BYTES = 64 << 20
"""The default limit of a body, before and after unpacking."""
MAX_VALUES = 1 << 20
"""The most commas and brackets in a body. There are at least as many of them as JSON values. A
parser creates so many objects in about 0.15 s."""
_SEPARATORS = (b",", b"[", b"{")
_WINDOW = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_RAW_WINDOW = -zlib.MAX_WBITS
_ZLIB_METHOD = 8
"""The low bits of a zlib header. Some clients send `deflate` without this header."""


async def read_body(request: "web.BaseRequest") -> bytes:
    """Returns the whole body, unpacked. Raises `RequestRefused` if it is not within the limits, and
    aiohttp's errors for a body that does not arrive."""
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding != "identity" and encoding not in _WINDOW:
        raise RequestRefused(415, "a body is packed with gzip or deflate, or not at all")
    body, most = await request.read(), request.client_max_size
    if encoding != "identity" and body:
        body = await off_loop(lambda: _unpack(body, encoding, most), size=most)
    if len(body) > MAX_VALUES and sum(map(body.count, _SEPARATORS)) > MAX_VALUES:
        message = f"a body holds at most {MAX_VALUES:,} commas and brackets (JSON values)"
        raise RequestRefused(413, message)
    return body


def _unpack(body: bytes, encoding: str, most: int) -> bytes:
    window = _WINDOW[encoding]
    if encoding == "deflate" and body[0] & 0xF != _ZLIB_METHOD:
        window = _RAW_WINDOW
    unpacker = zlib.decompressobj(window)
    try:
        unpacked = unpacker.decompress(body, most + 1)
    except zlib.error as error:
        raise RequestRefused(400, "the body is not what its headers say") from error
    if len(unpacked) > most:
        raise RequestRefused(413, too_large(most))
    if not unpacker.eof or unpacker.unused_data:
        raise RequestRefused(400, "the body is not what its headers say")
    return unpacked


def too_large(most: int) -> str:
    return f"a body holds at most {most} bytes"
