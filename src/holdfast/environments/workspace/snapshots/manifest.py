"""The encoding of a snapshot: the files of a folder, and the blobs that hold their contents.

A snapshot refers to a complete listing, which is a blob, and holds the changes since; so that its
size grows with the changes, not with the folder. It holds neither times nor owners.
"""

import zlib
from collections.abc import Iterable

import msgspec
from msgspec import Struct

from holdfast.records.errors import EnvironmentBroken

VERSION = 1
MAX_LISTING_BYTES = 1 << 30


class ManifestPiece(Struct, frozen=True):
    """Where a part of a file's content is."""

    blob: bytes
    offset: int
    length: int


class ManifestEntry(Struct, frozen=True):
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
    """The blob of the listing that this one changes."""
    removed: tuple[bytes, ...] = ()


def encode(
    entries: Iterable[tuple[bytes, ManifestEntry]],
    *,
    base: bytes = b"",
    removed: Iterable[bytes] = (),
) -> bytes:
    """The same entries always give the same bytes."""
    blobs: dict[bytes, int] = {}
    folders, files, links = [], [], []
    for path, entry in sorted(entries, key=lambda item: item[0]):
        if entry.is_folder:
            folders.append((path, entry.mode))
        elif entry.target:
            links.append((path, entry.target))
        else:
            pieces = tuple(
                (blobs.setdefault(piece.blob, len(blobs)), piece.offset, piece.length)
                for piece in entry.pieces
            )
            files.append(_File(path, entry.mode, entry.digest, pieces))
    listing = Listing(
        VERSION, tuple(blobs), tuple(folders), tuple(files), tuple(links), base,
        tuple(sorted(removed)),
    )  # fmt: skip
    return zlib.compress(msgspec.msgpack.encode(listing), 1)


def decode(state: bytes) -> Listing:
    try:
        unpacker = zlib.decompressobj()
        body = unpacker.decompress(state, MAX_LISTING_BYTES)
        listing = msgspec.msgpack.decode(body, type=Listing)
    except (zlib.error, msgspec.MsgspecError) as error:
        raise EnvironmentBroken(f"this is no snapshot of a workspace: {error}") from error
    if listing.version != VERSION or not unpacker.eof:
        raise EnvironmentBroken(
            f"a snapshot of version {listing.version} was written by another Holdfast"
        )
    return listing


def apply(listing: Listing, entries: dict[bytes, ManifestEntry]) -> None:
    """Adds the listing's changes to `entries`."""
    for path in listing.removed:
        entries.pop(path, None)
    for path, mode in listing.folders:
        entries[_check_path(path)] = ManifestEntry(mode)
    for path, target in listing.links:
        entries[_check_path(path)] = ManifestEntry(0o777, target=target)
    for file in listing.files:
        pieces = tuple(
            ManifestPiece(listing.blobs[number], *where) for number, *where in file.pieces
        )
        entries[_check_path(file.path)] = ManifestEntry(file.mode, file.digest, pieces)


def _check_path(path: bytes) -> bytes:
    if any(part in (b"", b".", b"..") for part in path.split(b"/")) or b"\0" in path:
        raise EnvironmentBroken(f"a snapshot names {path!r}, which is no place in a workspace")
    return path
