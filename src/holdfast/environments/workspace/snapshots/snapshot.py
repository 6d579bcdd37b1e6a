"""Snapshots of a folder: each content is stored once, and only what changed is read.

Small contents are packed into blobs, in the order of their paths, so that equal folders give equal
blobs; large ones are cut into parts, so that a file that grows stores what it grew by. A file whose
`lstat` is the same as when it was read last is not read again.
"""

import hashlib
import os
import time
from collections.abc import Callable, Generator

from msgspec import Struct

from holdfast.environments.workspace.limits import MIB
from holdfast.environments.workspace.snapshots import manifest
from holdfast.environments.workspace.snapshots.manifest import Kept, ManifestPiece
from holdfast.environments.workspace.snapshots.tree import FileTree, TreeEntry, parts
from holdfast.environments.workspace.threads import in_thread
from holdfast.records.errors import EnvironmentBroken
from holdfast.rollout.episodes.environment import Blobs

PART = 4 * MIB
SMALL = MIB
SETTLED_NS = 1_000_000_000
"""A file that changed this shortly before it was read may change again within one tick of the file
system's clock: it is read again next time."""

Packing = Generator[bytes, bytes, None]
Storing = Generator[bytes, bytes, tuple[bytes, tuple[ManifestPiece, ...]]]


class _Seen(Struct, frozen=True):
    entry: TreeEntry
    kept: Kept
    settled: bool


class Snapshots:
    """Of one folder. What an instance has stored or restored, it does not store again."""

    def __init__(self, blobs: Blobs):
        self._blobs = blobs
        self._seen: dict[bytes, _Seen] = {}
        self._contents: dict[bytes, tuple[ManifestPiece, ...]] = {}
        """By the digest of a file's content or of a part of one."""
        self._base = b""
        self._listed: dict[bytes, Kept] = {}
        """What the listing `base` holds."""
        self._last: tuple[dict[bytes, Kept], bytes] | None = None

    async def take(self, root: str, tree: FileTree) -> bytes:
        entries: dict[bytes, Kept] = {}
        packing = self._packing(root, tree, entries)
        body = await in_thread(lambda: _next(packing.__next__))
        while body is not None:
            digest = await self._blobs.put_blob(body)
            body = await in_thread(lambda found=digest: _next(lambda: packing.send(found)))  # type: ignore[misc]
        if self._last is None or self._last[0] != entries:
            self._last = (entries, await self._encoded(entries))
        return self._last[1]

    async def _encoded(self, entries: dict[bytes, Kept]) -> bytes:
        listed = self._listed
        changed = [(path, kept) for path, kept in entries.items() if listed.get(path) != kept]
        removed = listed.keys() - entries.keys()
        if not self._base or 4 * (len(changed) + len(removed)) > len(entries):
            body = await in_thread(lambda: manifest.encode(entries.items()))
            self._base, self._listed = await self._blobs.put_blob(body), dict(entries)
            changed, removed = [], set()
        return manifest.encode(changed, base=self._base, removed=removed)

    # --- storing

    def _packing(self, root: str, tree: FileTree, entries: dict[bytes, Kept]) -> Packing:
        """Yields the blobs that have to be stored, is sent their digests, and fills `entries`.
        Nothing counts as seen before all of it is stored."""
        fresh: dict[bytes, _Seen] = {}
        pack = _Pack()
        for path in sorted(tree.entries):
            entry = tree.entries[path]
            known = self._seen.get(path)
            if known is not None and known.settled and known.entry == entry:
                fresh[path] = known
            elif entry.is_file:
                where = os.path.join(os.fsencode(root), path)
                digest, pieces = yield from self._store(where, entry, pack)
                fresh[path] = _Seen(entry, Kept(entry.mode, digest, pieces), _is_settled(entry))
            else:
                fresh[path] = _Seen(entry, _plain(root, path, entry), True)
        yield from self._flush(pack)
        for path, one in fresh.items():
            if one.kept.digest and not one.kept.pieces and one.entry.size:
                pieces = self._contents[one.kept.digest]
                one = _Seen(one.entry, Kept(one.kept.mode, one.kept.digest, pieces), one.settled)
            fresh[path] = one
            entries[path] = one.kept
        self._seen = fresh

    def _store(self, where: bytes, entry: TreeEntry, pack: "_Pack") -> Storing:
        """The pieces are known later where the content waits in the pack."""
        if entry.size > SMALL:
            return (yield from self._store_parts(where))
        content = _content(where)
        digest = _digest(content)
        if content and digest not in self._contents:
            pack.add(digest, content)
            if pack.size >= PART:
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
        for part in parts(where, PART):
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
        entries = await self._decoded(state)
        base = os.fsencode(root)
        await in_thread(lambda: _make(base, entries))
        for blob, wanted in _by_blob(entries).items():
            body = await self._blobs.get_blob(blob)
            await in_thread(lambda body=body, wanted=wanted: self._fill(base, body, wanted))  # type: ignore[misc]
        for path, kept in entries.items():
            if len(kept.pieces) > 1:
                await self._fill_parts(base, path, kept)
        await in_thread(lambda: _finish(base, entries))
        self._last = (entries, state)

    def _fill(self, base: bytes, body: bytes, wanted: list[tuple[bytes, Kept]]) -> None:
        for path, kept in wanted:
            (piece,) = kept.pieces
            content = body[piece.offset : piece.offset + piece.length]
            _check(path, kept, _digest(content))
            self._contents[kept.digest] = kept.pieces
            _append(os.path.join(base, path), content)

    async def _fill_parts(self, base: bytes, path: bytes, kept: Kept) -> None:
        whole = hashlib.blake2b(digest_size=16)

        def fill(part: bytes) -> bytes:
            whole.update(part)
            _append(os.path.join(base, path), part)
            return _digest(part)

        for piece in kept.pieces:
            body = await self._blobs.get_blob(piece.blob)
            part = body[piece.offset : piece.offset + piece.length]
            digest = await in_thread(lambda part=part: fill(part))  # type: ignore[misc]
            self._contents[digest] = (piece,)
        _check(path, kept, whole.digest())

    async def _decoded(self, state: bytes) -> dict[bytes, Kept]:
        changes = manifest.decode(state)
        listed: dict[bytes, Kept] = {}
        if changes.base:
            manifest.apply(manifest.decode(await self._blobs.get_blob(changes.base)), listed)
            self._base, self._listed = changes.base, dict(listed)
        manifest.apply(changes, listed)
        return listed


class _Pack:
    """Small contents that wait to be stored as one blob."""

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


def _is_settled(entry: TreeEntry) -> bool:
    return time.time_ns() - max(entry.ctime_ns, entry.mtime_ns) > SETTLED_NS


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _plain(root: str, path: bytes, entry: TreeEntry) -> Kept:
    if entry.is_folder:
        return Kept(entry.mode)
    return Kept(0o777, target=os.readlink(os.path.join(os.fsencode(root), path)))


def _content(path: bytes) -> bytes:
    return b"".join(parts(path, PART))


# --- writing a tree


def _by_blob(entries: dict[bytes, Kept]) -> dict[bytes, list[tuple[bytes, Kept]]]:
    """Files in one piece: each blob is read once."""
    found: dict[bytes, list[tuple[bytes, Kept]]] = {}
    for path, kept in entries.items():
        if len(kept.pieces) == 1:
            found.setdefault(kept.pieces[0].blob, []).append((path, kept))
    return found


def _check(path: bytes, kept: Kept, digest: bytes) -> None:
    if digest != kept.digest:
        raise EnvironmentBroken(f"the snapshot's content of {path!r} is damaged")


def _make(base: bytes, entries: dict[bytes, Kept]) -> None:
    for path in sorted(entries):
        kept = entries[path]
        where = os.path.join(base, path)
        if kept.is_folder:
            os.mkdir(where, 0o700)
        elif kept.digest:
            os.close(os.open(where, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))


def _append(where: bytes, content: bytes) -> None:
    with open(where, "ab", buffering=0) as file:
        view = memoryview(content)
        while view:
            view = view[file.write(view) :]


def _finish(base: bytes, entries: dict[bytes, Kept]) -> None:
    """Links, so late that nothing is written through one; modes, the innermost first."""
    for path in sorted(entries, reverse=True):
        kept = entries[path]
        where = os.path.join(base, path)
        if kept.target:
            os.symlink(kept.target, where)
        else:
            os.chmod(where, kept.mode)
