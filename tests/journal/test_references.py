"""Which blobs a body speaks of, found without knowing what it means."""

import zlib

import msgspec

from holdfast.journal.references import reachable, references
from holdfast.journal.types import digest_of
from holdfast.records.encoding.codec import encode
from holdfast.records.step import Snapshotted

A, B, C = (digest_of(name) for name in (b"a", b"b", b"c"))


def test_a_digest_is_found_in_a_record() -> None:
    assert A in references(encode(Snapshotted("1", 1, A)))


def test_digests_side_by_side_are_all_found() -> None:
    assert {A, B, C} <= references(msgspec.msgpack.encode((A, B, C)))


def test_a_digest_is_found_in_what_is_packed() -> None:
    assert A in references(zlib.compress(msgspec.msgpack.encode({"blobs": [A]})))


def test_what_only_begins_like_something_packed_has_no_digests() -> None:
    assert references(b"\x78 no zlib") == set()


def test_a_digest_that_begins_with_what_a_digest_begins_with_is_found() -> None:
    odd = b"\xc4\x20" + bytes(30)
    assert odd in references(msgspec.msgpack.encode(odd))


def test_blobs_are_reached_through_other_blobs() -> None:
    blobs = {A: zlib.compress(msgspec.msgpack.encode(B)), B: msgspec.msgpack.encode(C), C: b""}
    bodies = [msgspec.msgpack.encode(A)]
    assert reachable(bodies, blobs.get, among=set(blobs)) == {A, B, C}
    assert reachable(bodies, blobs.get, among={A, C}) == {A}
    assert reachable([], blobs.get, among=set(blobs)) == set()


def test_a_blob_that_speaks_of_itself_ends_the_search() -> None:
    blobs = {A: msgspec.msgpack.encode(A)}
    assert reachable([msgspec.msgpack.encode(A)], blobs.get, among=set(blobs)) == {A}
