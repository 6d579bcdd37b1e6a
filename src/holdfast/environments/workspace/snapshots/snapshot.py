"""Snapshots of a folder: each content is stored once, and only changed files are read.

Small contents are packed into blobs in the order of their paths, so that equal folders give equal
blobs. Large ones are stored in parts, so that a growing file stores only what is new. A file whose
`lstat` has not changed is not read again.
"""

import hashlib
import os
import time
from collections.abc import Callable, Generator

from msgspec import Struct, structs

from holdfast.environments.workspace.limits import MIB
from holdfast.environments.workspace.snapshots import manifest
from holdfast.environments.workspace.snapshots.manifest import ManifestEntry, ManifestPiece
from holdfast.environments.workspace.snapshots.tree import FileTree, TreeEntry, read_parts
from holdfast.environments.workspace.threads import in_thread
from holdfast.records.errors import EnvironmentBroken
from holdfast.rollout.episodes.environment import Blobs

PART_BYTES = 4 * MIB
SMALL_BYTES = MIB
STABLE_NS = 1_000_000_000
"""A file that changed less than this before it was read is read again next time: it may change
within one tick of the file system's clock."""

Packing = Generator[bytes, bytes, None]
Storing = Generator[bytes, bytes, tuple[bytes, tuple[ManifestPiece, ...]]]


class _StoredFile(Struct, frozen=True):
    stat: TreeEntry
    stored: ManifestEntry
    is_stable: bool


class Snapshots:
    """Snapshots of one folder. Contents that were stored or restored are not stored again."""

    def __init__(self, blobs: Blobs):
        self._blobs = blobs
        self._files: dict[bytes, _StoredFile] = {}
        self._contents: dict[bytes, tuple[ManifestPiece, ...]] = {}
        """By the digest of a content or a part of one."""
        self._base = b""
        self._listed: dict[bytes, ManifestEntry] = {}
        """The entries of the listing `base`."""
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
            body = await in_thread(lambda: manifest.encode(entries.items()))
            self._base, self._listed = await self._blobs.put_blob(body), dict(entries)
            changed, removed = [], set()
        return manifest.encode(changed, base=self._base, removed=removed)

    # --- storing

    def _pack(self, root: str, tree: FileTree, entries: dict[bytes, ManifestEntry]) -> Packing:
        """Yields blobs to store, receives their digests, and fills `entries`. Remembers the files
        only when all are stored."""
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
                # It waited in the pack.
                entry = structs.replace(entry, pieces=self._contents[entry.digest])
                files[path] = structs.replace(file, stored=entry)
            entries[path] = entry
        self._files = files

    def _store(self, where: bytes, stat: TreeEntry, pack: "_Pack") -> Storing:
        """The digest and the pieces, which are empty while the content waits in the pack."""
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
        """Fills the empty folder `root`. Every content is checked against its digest."""
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
        changes = manifest.decode(state)
        listed: dict[bytes, ManifestEntry] = {}
        if changes.base:
            manifest.apply(manifest.decode(await self._blobs.get_blob(changes.base)), listed)
            self._base, self._listed = changes.base, dict(listed)
        manifest.apply(changes, listed)
        return listed


class _Pack:
    """Small contents that are stored together as one blob."""

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
    """The files in one piece, so that each blob is read once."""
    found: dict[bytes, list[tuple[bytes, ManifestEntry]]] = {}
    for path, entry in entries.items():
        if len(entry.pieces) == 1:
            found.setdefault(entry.pieces[0].blob, []).append((path, entry))
    return found


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
    """Creates links, through which nothing is written any more, and sets modes, innermost first."""
    for path in sorted(entries, reverse=True):
        entry = entries[path]
        where = os.path.join(base, path)
        if entry.target:
            os.symlink(entry.target, where)
        else:
            os.chmod(where, entry.mode)
