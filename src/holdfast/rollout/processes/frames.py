"""The frames between a process of user code and its parent: a length, then msgpack.

They hold plain values only. Nothing is pickled, so neither side can make the other run code. Both
refuse frames beyond a limit.
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
    """The other side sent what is no message."""


def frame(message: Struct, *, most: int) -> bytes:
    """`ValueError` where it has more than `most` bytes."""
    body = msgspec.msgpack.encode(message)
    if len(body) > most:
        raise ValueError(f"{len(body):,} bytes are more than {most:,}")
    return LENGTH.pack(len(body)) + body


async def receive(reader: asyncio.StreamReader, *, most: int) -> bytes:
    """The body of the next frame; `asyncio.IncompleteReadError` when there is none any more."""
    return await reader.readexactly(_length(await reader.readexactly(LENGTH.size), most))


def read(file: BinaryIO, *, most: int) -> bytes:
    """As `receive`, without an event loop. EOFError after the last frame."""
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
