"""What a driver and the process of an isolated tool say to each other: length, then msgpack.

Plain values only; nothing is pickled. Both sides refuse frames beyond `MAX_FRAME`.
"""

import struct
from collections.abc import Callable

import msgspec
from msgspec import Struct

from holdfast.rollout.tools.result import MAX_RESULT

MAX_FRAME = MAX_RESULT + 1024 * 1024
_HEAD = struct.Struct(">Q")
_CHUNK = 1024 * 1024


class FunctionHome(Struct, frozen=True):
    """The module that a function is imported from."""

    module: str
    file: str


class WorkerRequest(Struct, frozen=True):
    """A call. The arguments are JSON, and are validated again where they arrive."""

    function: str
    arguments: str
    key: str | None = None


class Ready(Struct, frozen=True, tag=True):
    """The module is imported."""


class WorkerResult(Struct, frozen=True, tag=True):
    text: str


class Refusal(Struct, frozen=True, tag=True):
    """A `ToolSaysNo`, or a class derived from it."""

    kind: str
    message: str


class Broken(Struct, frozen=True, tag=True):
    """Any other exception."""

    kind: str
    message: str
    traceback: str


Answer = Ready | WorkerResult | Refusal | Broken


class BadFrame(Exception):
    """The other side sent what is no message."""


def frame(message: Struct) -> bytes:
    body = msgspec.msgpack.encode(message)
    if len(body) > MAX_FRAME:
        raise ValueError(f"{len(body):,} bytes are more than {MAX_FRAME:,}")
    return _HEAD.pack(len(body)) + body


def read(receive: Callable[[int], bytes]) -> bytes:
    """The body of the next frame; EOFError when there is none any more."""
    (size,) = _HEAD.unpack(_read_exactly(_HEAD.size, receive))
    if size > MAX_FRAME:
        raise BadFrame(f"a frame of {size:,} bytes")
    return _read_exactly(size, receive)


def _read_exactly(size: int, receive: Callable[[int], bytes]) -> bytes:
    found = bytearray()
    while len(found) < size:
        part = receive(min(size - len(found), _CHUNK))
        if not part:
            raise EOFError
        found += part
    return bytes(found)
