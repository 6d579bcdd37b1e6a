"""The messages between a process of user code and its parent. Each frame is a length, then msgpack.

Frames hold only plain values. They contain no pickles, so neither side can make the other run code.
Both sides refuse frames beyond a size limit.
"""

import asyncio
import struct
from typing import BinaryIO

import msgspec
from msgspec import Struct

LENGTH = struct.Struct(">Q")


class FunctionHome(Struct, frozen=True):
    """The module that a function is imported from."""

    module: str
    file: str


class BadFrame(Exception):
    """The other side sent a frame that is too large to be a message."""


def frame(message: Struct, *, most: int) -> bytes:
    """Encodes a message as a frame. Raises `ValueError` if it has more than `most` bytes."""
    body = msgspec.msgpack.encode(message)
    if len(body) > most:
        raise ValueError(f"{len(body):,} bytes are more than {most:,}")
    return LENGTH.pack(len(body)) + body


async def receive(reader: asyncio.StreamReader, *, most: int) -> bytes:
    """Returns the body of the next frame. Raises `asyncio.IncompleteReadError` if the connection
    has ended."""
    return await reader.readexactly(_length(await reader.readexactly(LENGTH.size), most))


def read(file: BinaryIO, *, most: int) -> bytes:
    """Returns the body of the next frame, as `receive` does, but blocks. Raises `EOFError` if the
    connection has ended."""
    head = file.read(LENGTH.size)
    size = _length(head, most) if len(head) == LENGTH.size else 1
    body = file.read(size)
    if len(body) < size:
        raise EOFError
    return body


def _length(head: bytes, most: int) -> int:
    (size,) = LENGTH.unpack(head)
    if size > most:
        raise BadFrame(f"a frame of {size:,} bytes")
    return int(size)
