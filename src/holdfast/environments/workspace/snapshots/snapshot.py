"""Takes snapshots of a folder. Each content is stored once, and only changed files are read.

Small contents are packed into blobs in the order of their paths, so that equal folders give equal
blobs. Large contents are stored in parts, so that a growing file stores only what is new. A file
whose `lstat` has not changed is not read again.

A snapshot refers to a complete listing, which is a blob, and holds the changes since that listing.
So the size of a snapshot grows with the changes, not with the folder. A snapshot holds neither
times nor owners.
"""

import hashlib
import os
import time
import zlib
from collections.abc import Callable, Generator, Iterable

import msgspec
from msgspec import Struct, structs

from holdfast.environments.workspace.snapshots.tree import FileTree, TreeEntry, read_parts
from holdfast.environments.workspace.threads import in_thread
from holdfast.records.errors import EnvironmentBroken
from holdfast.rollout.episodes.environment import Blobs
from holdfast.worlds.contract.output import MIB

VERSION = 1
MAX_LISTING_BYTES = 1 << 30


class ManifestPiece(Struct, frozen=True):
    """The position of a part of a file's content in the blob that stores it."""

    blob: bytes
    offset: int
    length: int


class ManifestEntry(Struct, frozen=True):
    """A file, folder or link in a snapshot. A file has a digest, a link has a target, and a folder
    has neither."""

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
    """The pieces of the file. Each piece is (number of the blob, offset, length)."""


class Listing(Struct, frozen=True, array_like=True):
    version: int
    blobs: tuple[bytes, ...]
    folders: tuple[tuple[bytes, int], ...]
    files: tuple[_File, ...]
    links: tuple[tuple[bytes, bytes], ...]
    base: bytes = b""
    """The digest of the complete listing to which this listing adds its changes. Empty if this
    listing is complete itself."""
    removed: tuple[bytes, ...] = ()


def encode_manifest(
    entries: Iterable[tuple[bytes, ManifestEntry]],
    *,
    base: bytes = b"",
    removed: Iterable[bytes] = (),
) -> bytes:
    """Encodes a listing. The same entries always give the same bytes."""
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


def decode_manifest(state: bytes) -> Listing:
    try:
        unpacker = zlib.decompressobj()
        body = unpacker.decompress(state, MAX_LISTING_BYTES)
        listing = msgspec.msgpack.decode(body, type=Listing)
    except (zlib.error, msgspec.MsgspecError) as error:
        raise EnvironmentBroken(f"this is not a snapshot of a workspace: {error}") from error
    if listing.version != VERSION or not unpacker.eof:
        raise EnvironmentBroken(
            f"a snapshot of version {listing.version} was written by another Holdfast"
        )
    return listing


def apply_changes(listing: Listing, entries: dict[bytes, ManifestEntry]) -> None:
    """Applies the listing's changes to `entries`."""
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
        raise EnvironmentBroken(f"a snapshot names {path!r}, which is not a place in a workspace")
    return path


PART_BYTES = 4 * MIB
SMALL_BYTES = MIB
STABLE_NS = 1_000_000_000
"""A file that changed within this time before it was read is read again for the next snapshot. It
may change again within the same tick of the file system's clock, so that its times would not show
it."""

Packing = Generator[bytes, bytes, None]
Storing = Generator[bytes, bytes, tuple[bytes, tuple[ManifestPiece, ...]]]


class _StoredFile(Struct, frozen=True):
    stat: TreeEntry
    stored: ManifestEntry
    is_stable: bool


class Snapshots:
    """Snapshots of one folder. A content that was already stored or restored is not stored
    again."""

    def __init__(self, blobs: Blobs):
        self._blobs = blobs
        self._files: dict[bytes, _StoredFile] = {}
        self._contents: dict[bytes, tuple[ManifestPiece, ...]] = {}
        """The pieces of each known content, by the digest of the content or of a part."""
        self._base = b""
        self._listed: dict[bytes, ManifestEntry] = {}
        """The entries of the listing that `_base` names."""
        self._last: tuple[dict[bytes, ManifestEntry], bytes] | None = None

    async def take(self, root: str, tree: FileTree) -> bytes:
        entries: dict[bytes, ManifestEntry] = {}
        packing = self._pack(root, tree, entries)
        body = await in_thread(lambda: _next(packing.__next__))
        while body is not None:
            digest = await self._blobs.put_blob(body)
            body = await in_thread(lambda sent=digest: _next(lambda: packing.send(sent)))  # type: ignore[misc]
        if self._last is None or self._last[0] != entries:
            self._last = (entries, await self._encode(entries))
        return self._last[1]

    async def _encode(self, entries: dict[bytes, ManifestEntry]) -> bytes:
        listed = self._listed
        changed = [(path, entry) for path, entry in entries.items() if listed.get(path) != entry]
        removed = listed.keys() - entries.keys()
        if not self._base or 4 * (len(changed) + len(removed)) > len(entries):
            body = await in_thread(lambda: encode_manifest(entries.items()))
            self._base, self._listed = await self._blobs.put_blob(body), dict(entries)
            changed, removed = [], set()
        return encode_manifest(changed, base=self._base, removed=removed)

    # --- storing

    def _pack(self, root: str, tree: FileTree, entries: dict[bytes, ManifestEntry]) -> Packing:
        """Yields the blobs to store, gets their digests from `send`, and fills `entries`.

        The files are remembered only when all blobs are stored.
        """
        files: dict[bytes, _StoredFile] = {}
        pack = _Pack()
        for path in sorted(tree.entries):
            stat = tree.entries[path]
            known = self._files.get(path)
            if known is not None and known.is_stable and known.stat == stat:
                files[path] = known
            elif stat.is_file:
                where = os.path.join(os.fsencode(root), path)
                digest, pieces = yield from self._store(where, stat, pack)
                entry = ManifestEntry(stat.mode, digest, pieces)
                files[path] = _StoredFile(stat, entry, _is_stable(stat))
            else:
                files[path] = _StoredFile(stat, _folder_or_link(root, path, stat), True)
        yield from self._flush(pack)
        for path, file in files.items():
            entry = file.stored
            if entry.digest and not entry.pieces and file.stat.size:
                # The content was still in the pack.
                entry = structs.replace(entry, pieces=self._contents[entry.digest])
                files[path] = structs.replace(file, stored=entry)
            entries[path] = entry
        self._files = files

    def _store(self, where: bytes, stat: TreeEntry, pack: "_Pack") -> Storing:
        """Returns the digest and the pieces of a file. If a new content is still in the pack, there
        are no pieces yet."""
        if stat.size > SMALL_BYTES:
            return (yield from self._store_parts(where))
        content = b"".join(read_parts(where, PART_BYTES))
        digest = _digest(content)
        if content and digest not in self._contents:
            pack.add(digest, content)
            if pack.size >= PART_BYTES:
                yield from self._flush(pack)
        return digest, self._contents.get(digest, ())

    def _flush(self, pack: "_Pack") -> Packing:
        if pack.size:
            blob = yield b"".join(pack.contents)
            for digest, (offset, length) in pack.where.items():
                self._contents[digest] = (ManifestPiece(blob, offset, length),)
        pack.clear()

    def _store_parts(self, where: bytes) -> Storing:
        whole = hashlib.blake2b(digest_size=16)
        pieces: list[ManifestPiece] = []
        for part in read_parts(where, PART_BYTES):
            whole.update(part)
            digest = _digest(part)
            if digest not in self._contents:
                blob = yield part
                self._contents[digest] = (ManifestPiece(blob, 0, len(part)),)
            pieces += self._contents[digest]
        return whole.digest(), tuple(pieces)

    # --- restoring

    async def restore(self, root: str, state: bytes) -> None:
        """Writes the files of the snapshot `state` into the empty folder `root`. Checks every
        content against its digest."""
        entries = await self._decode(state)
        base = os.fsencode(root)
        await in_thread(lambda: _create(base, entries))
        for blob, files in _by_blob(entries).items():
            body = await self._blobs.get_blob(blob)
            await in_thread(lambda body=body, files=files: self._fill(base, body, files))  # type: ignore[misc]
        for path, entry in entries.items():
            if len(entry.pieces) > 1:
                await self._fill_parts(base, path, entry)
        await in_thread(lambda: _finish(base, entries))
        self._last = (entries, state)

    def _fill(self, base: bytes, body: bytes, files: list[tuple[bytes, ManifestEntry]]) -> None:
        for path, entry in files:
            (piece,) = entry.pieces
            content = body[piece.offset : piece.offset + piece.length]
            _check(path, entry, _digest(content))
            self._contents[entry.digest] = entry.pieces
            _append(os.path.join(base, path), content)

    async def _fill_parts(self, base: bytes, path: bytes, entry: ManifestEntry) -> None:
        whole = hashlib.blake2b(digest_size=16)

        def fill(part: bytes) -> bytes:
            whole.update(part)
            _append(os.path.join(base, path), part)
            return _digest(part)

        for piece in entry.pieces:
            body = await self._blobs.get_blob(piece.blob)
            part = body[piece.offset : piece.offset + piece.length]
            digest = await in_thread(lambda part=part: fill(part))  # type: ignore[misc]
            self._contents[digest] = (piece,)
        _check(path, entry, whole.digest())

    async def _decode(self, state: bytes) -> dict[bytes, ManifestEntry]:
        changes = decode_manifest(state)
        listed: dict[bytes, ManifestEntry] = {}
        if changes.base:
            apply_changes(decode_manifest(await self._blobs.get_blob(changes.base)), listed)
            self._base, self._listed = changes.base, dict(listed)
        apply_changes(changes, listed)
        return listed


class _Pack:
    """Small contents that will be stored together as one blob."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.size = 0
        self.contents: list[bytes] = []
        self.where: dict[bytes, tuple[int, int]] = {}

    def add(self, digest: bytes, content: bytes) -> None:
        if digest not in self.where:
            self.where[digest] = (self.size, len(content))
            self.contents.append(content)
            self.size += len(content)


def _next(advance: Callable[[], bytes]) -> bytes | None:
    try:
        return advance()
    except StopIteration:
        return None


def _is_stable(stat: TreeEntry) -> bool:
    return time.time_ns() - max(stat.ctime_ns, stat.mtime_ns) > STABLE_NS


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _folder_or_link(root: str, path: bytes, stat: TreeEntry) -> ManifestEntry:
    if stat.is_folder:
        return ManifestEntry(stat.mode)
    return ManifestEntry(0o777, target=os.readlink(os.path.join(os.fsencode(root), path)))


# --- writing files


def _by_blob(entries: dict[bytes, ManifestEntry]) -> dict[bytes, list[tuple[bytes, ManifestEntry]]]:
    """Returns the files with exactly one piece, grouped by the blob of that piece, so that each
    blob is read only once."""
    paths_by_blob: dict[bytes, list[tuple[bytes, ManifestEntry]]] = {}
    for path, entry in entries.items():
        if len(entry.pieces) == 1:
            paths_by_blob.setdefault(entry.pieces[0].blob, []).append((path, entry))
    return paths_by_blob


def _check(path: bytes, entry: ManifestEntry, digest: bytes) -> None:
    if digest != entry.digest:
        raise EnvironmentBroken(f"the snapshot's content of {path!r} is damaged")


def _create(base: bytes, entries: dict[bytes, ManifestEntry]) -> None:
    for path in sorted(entries):
        entry = entries[path]
        where = os.path.join(base, path)
        if entry.is_folder:
            os.mkdir(where, 0o700)
        elif entry.digest:
            os.close(os.open(where, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))


def _append(where: bytes, content: bytes) -> None:
    with open(where, "ab", buffering=0) as file:
        view = memoryview(content)
        while view:
            view = view[file.write(view) :]


def _finish(base: bytes, entries: dict[bytes, ManifestEntry]) -> None:
    """Creates the links, and sets the modes of files and folders, the innermost first. Call this
    last, so that nothing is written through a link."""
    for path in sorted(entries, reverse=True):
        entry = entries[path]
        where = os.path.join(base, path)
        if entry.target:
            os.symlink(entry.target, where)
        else:
            os.chmod(where, entry.mode)
