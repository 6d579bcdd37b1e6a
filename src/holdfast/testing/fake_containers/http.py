"""Requests and answers on a raw connection. No HTTP library is used, because a command takes over
its connection."""

import asyncio
import json
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct


class RawRequest(Struct):
    method: str
    path: str
    """The path without the version of the API."""
    query: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body or b"{}")


class FakeRefusal(Exception):
    """An answer with an error status."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


async def read_request(reader: asyncio.StreamReader) -> RawRequest | None:
    """Reads a request. Returns None at the end of the connection."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    method, target, _ = head[0].split(" ")
    headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
    parts = urlsplit(target)
    path = parts.path.split("/", 2)
    short = "/" + path[2] if path[1].startswith("v1.") else parts.path
    body = await _body(reader, headers)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    return RawRequest(method, unquote(short), query, body)


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding") != "chunked":
        return await reader.readexactly(int(headers.get("content-length", "0")))
    body = b""
    while size := int((await reader.readline()).strip(), 16):
        body += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return body


def answer(status: int, body: object = None) -> bytes:
    content = (
        body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    )
    head = (
        f"HTTP/1.1 {status} OK\r\nApi-Version: 1.41\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content
