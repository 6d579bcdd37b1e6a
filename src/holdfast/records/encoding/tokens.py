"""Packs token ids and logprobs as little-endian arrays.

A list of a thousand Python floats takes 32 KB and 100 µs to encode. A packed array takes 4 KB and 1
µs. Records hold packed bytes, and code that computes uses an `array`. Logprobs are always float32,
even before they are recorded, so that live and replayed values are equal.
"""

import struct
import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import TypeVar

Value = TypeVar("Value", int, float)

TYPE_IDS = "i"
TYPE_LOGPROBS = "f"
TOKEN_BYTES = 4
"""The number of bytes of a packed id or logprob."""
_SLICE = 1 << 16

if array(TYPE_IDS).itemsize != 4 or array(TYPE_LOGPROBS).itemsize != 4:
    raise ImportError("holdfast needs 4-byte C ints and floats")


def ids_of(ids: Sequence[int]) -> "array[int]":
    """Returns the ids as an array; returns the argument if it is such an array. It is twice as fast
    as the array's constructor."""
    if isinstance(ids, array) and ids.typecode == TYPE_IDS:
        return ids
    packed: array[int] = array(TYPE_IDS)
    # In slices, because one call for millions of ids would hold the interpreter for too long.
    for start in range(0, len(ids), _SLICE):
        part = ids[start : start + _SLICE] if len(ids) > _SLICE else ids
        packed.frombytes(struct.pack(f"{len(part)}{TYPE_IDS}", *part))
    return packed


def last_of(ids: Sequence[int], token: int) -> int:
    """Returns the last position of `token`; -1 if the token is absent. It searches packed bytes,
    which is fast for many tokens."""
    packed_token = array(TYPE_IDS, [token]).tobytes()
    packed = ids_of(ids).tobytes()
    at = packed.rfind(packed_token)
    # The bytes of two neighbouring tokens may look like it.
    while at > 0 and at % len(packed_token):
        at = packed.rfind(packed_token, 0, at + len(packed_token) - 1)
    return at // len(packed_token)


def common_prefix(left: Sequence[object], right: Sequence[object]) -> int:
    """Returns the length of the common beginning of two sequences. Uses a binary search over
    slices, because slices are compared fast."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def pack_ids(ids: Iterable[int]) -> bytes:
    return _pack(ids if isinstance(ids, array) else array(TYPE_IDS, ids))


def unpack_ids(packed: bytes) -> "array[int]":
    ids: array[int] = array(TYPE_IDS)
    ids.frombytes(packed)
    return _native(ids)


def pack_logprobs(logprobs: Iterable[float]) -> bytes:
    return _pack(logprobs if isinstance(logprobs, array) else array(TYPE_LOGPROBS, logprobs))


def unpack_logprobs(packed: bytes) -> "array[float]":
    logprobs: array[float] = array(TYPE_LOGPROBS)
    logprobs.frombytes(packed)
    return _native(logprobs)


def count(packed: bytes) -> int:
    return len(packed) // TOKEN_BYTES


def _pack(values: "array[int] | array[float]") -> bytes:
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return values.tobytes()


def _native(values: "array[Value]") -> "array[Value]":
    if sys.byteorder == "big":
        values.byteswap()
    return values
