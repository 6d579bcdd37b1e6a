"""The encoding of a snapshot: what was in the folder, and in which blobs the contents are.

A snapshot names a whole listing, kept as a blob of its own, and what has changed since; so that
its size grows with the changes and not with the folder. Times are not kept, nor are owners.
"""

import zlib
from collections.abc import Iterable

import msgspec
from msgspec import Struct

from holdfast.records.errors import EnvironmentBroken

VERSION = 1
MOST = 1 << 30
"""Bytes that a listing may decode to."""


class ManifestPiece(Struct, frozen=True):
    """A part of a file's content: where it is."""

    blob: bytes
    offset: int
    length: int


class Kept(Struct, frozen=True):
    """One file, folder or link. A file has a digest, a link a target, a folder neither."""

    mode: int
    digest: bytes = b""
    pieces: tuple[ManifestPiece, ...] = ()
    target: bytes = b""

    @property
    def is_folder(self) -> bool:
        return not self.digest and not self.target


class _File(Struct, frozen=True, array_like=True):
    path: bytes
    mode: int
    digest: bytes
    pieces: tuple[tuple[int, int, int], ...]
    """(number of the blob, offset, length)"""


class Listing(Struct, frozen=True, array_like=True):
    version: int
    blobs: tuple[bytes, ...]
    folders: tuple[tuple[bytes, int], ...]
    files: tuple[_File, ...]
    links: tuple[tuple[bytes, bytes], ...]
    base: bytes = b""
    """The blob of a listing that this one changes."""
    removed: tuple[bytes, ...] = ()


def encode(
    entries: Iterable[tuple[bytes, Kept]], *, base: bytes = b"", removed: Iterable[bytes] = ()
) -> bytes:
    """The same entries give the same bytes, whoever encodes them."""
    blobs: dict[bytes, int] = {}
    folders, files, links = [], [], []
    for path, kept in sorted(entries, key=lambda item: item[0]):
        if kept.is_folder:
            folders.append((path, kept.mode))
        elif kept.target:
            links.append((path, kept.target))
        else:
            pieces = tuple(
                (blobs.setdefault(one.blob, len(blobs)), one.offset, one.length)
                for one in kept.pieces
            )
            files.append(_File(path, kept.mode, kept.digest, pieces))
    listing = Listing(
        VERSION, tuple(blobs), tuple(folders), tuple(files), tuple(links), base,
        tuple(sorted(removed)),
    )  # fmt: skip
    return zlib.compress(msgspec.msgpack.encode(listing), 1)


def decode(state: bytes) -> Listing:
    try:
        unpacker = zlib.decompressobj()
        body = unpacker.decompress(state, MOST)
        listing = msgspec.msgpack.decode(body, type=Listing)
    except (zlib.error, msgspec.MsgspecError) as error:
        raise EnvironmentBroken(f"this is no snapshot of a workspace: {error}") from error
    if listing.version != VERSION or not unpacker.eof:
        raise EnvironmentBroken(
            f"a snapshot of version {listing.version} was written by another Holdfast"
        )
    return listing


def apply(listing: Listing, entries: dict[bytes, Kept]) -> None:
    """Changes `entries` as the listing says."""
    for path in listing.removed:
        entries.pop(path, None)
    for path, mode in listing.folders:
        entries[_checked(path)] = Kept(mode)
    for path, target in listing.links:
        entries[_checked(path)] = Kept(0o777, target=target)
    for file in listing.files:
        pieces = tuple(
            ManifestPiece(listing.blobs[number], *where) for number, *where in file.pieces
        )
        entries[_checked(file.path)] = Kept(file.mode, file.digest, pieces)


def _checked(path: bytes) -> bytes:
    if any(part in (b"", b".", b"..") for part in path.split(b"/")) or b"\0" in path:
        raise EnvironmentBroken(f"a snapshot names {path!r}, which is no place in a workspace")
    return path
