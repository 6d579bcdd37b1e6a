"""Finds the blobs that a record or another blob refers to.

The search decodes no record, because a journal does not know what its records mean. It finds a
digest by its shape: 32 bytes as msgpack writes them, in the body or in the body's unpacked content.
Bytes that only look like a digest match no existing blob.
"""

import re
import zlib
from collections.abc import Callable, Iterable

MAX_UNPACKED = 1 << 30
_DIGEST = re.compile(rb"(?s)\xc4\x20(?=(.{32}))")
_PACKED = b"\x78"
"""The first byte of data that zlib packed."""


def references(body: bytes) -> set[bytes]:
    """Returns every sequence of bytes in the body that has the shape of a digest."""
    matches = set(_DIGEST.findall(body))
    if body.startswith(_PACKED):
        matches |= set(_DIGEST.findall(_unpacked(body)))
    return matches


def _unpacked(body: bytes) -> bytes:
    """Returns the unpacked body; b"" if the body cannot be unpacked."""
    try:
        return zlib.decompressobj().decompress(body, MAX_UNPACKED)
    except zlib.error:
        return b""


def reachable(
    bodies: Iterable[bytes], blob: Callable[[bytes], bytes | None], *, among: set[bytes]
) -> set[bytes]:
    """Returns the blobs of `among` to which `bodies` refer, directly or through other blobs. `blob`
    reads a blob by its digest, and returns None if the blob is missing."""
    names: set[bytes] = set()
    for body in bodies:
        names |= references(body) & among
    left = list(names)
    while left:
        new = (references(blob(left.pop()) or b"") & among) - names
        names |= new
        left += new
    return names
