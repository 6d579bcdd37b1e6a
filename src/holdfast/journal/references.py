"""References: which blobs a record, or another blob, speaks of.

Nothing is decoded for this, since a journal does not know what its records mean. A digest is found
by its shape: 32 bytes, as msgpack writes them, in the body itself or in what it unpacks to. What
only looks like a digest is compared with those that exist, and is none of them.
"""

import re
import zlib
from collections.abc import Callable, Iterable

MAX_UNPACKED = 1 << 30
_DIGEST = re.compile(rb"(?s)\xc4\x20(?=(.{32}))")
_PACKED = b"\x78"
"""How what zlib packed begins."""


def references(body: bytes) -> set[bytes]:
    """Everything in it that has the shape of a digest."""
    matches = set(_DIGEST.findall(body))
    if body.startswith(_PACKED):
        matches |= set(_DIGEST.findall(_unpacked(body)))
    return matches


def _unpacked(body: bytes) -> bytes:
    """The bytes to unpack; b"" if there are none."""
    try:
        return zlib.decompressobj().decompress(body, MAX_UNPACKED)
    except zlib.error:
        return b""


def reachable(
    bodies: Iterable[bytes], blob: Callable[[bytes], bytes | None], *, among: set[bytes]
) -> set[bytes]:
    """The blobs of `among` that `bodies` refer to, directly or through other blobs. `blob` reads
    one by its digest; None if it is missing."""
    names: set[bytes] = set()
    for body in bodies:
        names |= references(body) & among
    left = list(names)
    while left:
        new = (references(blob(left.pop()) or b"") & among) - names
        names |= new
        left += new
    return names
