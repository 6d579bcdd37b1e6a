"""Encodes records as bytes and decodes them, with a checksum.

SQLite's pages have no checksum of their own, so every row has one. The checksum covers the row's
place and content, so a record at a wrong place is as corrupt as a record with a flipped bit.
"""

import struct
import zlib

import msgspec

from holdfast.records.errors import JournalCorrupt, RecordTooLarge, UsageError
from holdfast.records.step import Record

MAX_RECORD = 256 * 1024 * 1024

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)
_place = struct.Struct("<qqq")


def encode(record: Record) -> bytes:
    """Encodes a record. Raises `RecordTooLarge` if no journal accepts a record of this size."""
    body = _encoder.encode(record)
    if len(body) > MAX_RECORD:
        raise RecordTooLarge(
            f"a {type(record).__name__} record of {len(body):,} bytes is too large: the limit is "
            f"{MAX_RECORD:,}; shorten the messages, results or values that are recorded"
        )
    return body


def decode(body: bytes) -> Record:
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, UsageError) as error:
        raise JournalCorrupt(f"record does not decode: {error}") from error


def checksum(body: bytes, trajectory: int, seq: int, epoch: int) -> int:
    return zlib.crc32(body, zlib.crc32(_place.pack(trajectory, seq, epoch)))
