"""What is in a workspace's folder, and keeping it within its limit.

Paths are bytes, relative to the folder: names need not be text. Nothing here follows a link.
"""

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from holdfast.environments.workspace.folder import remove
from holdfast.environments.workspace.limits import WorkspaceLimit

LONGEST = 2048
"""Bytes of a path. Deeper nesting is not kept."""
SHOWN = 5
MOST = 1_000_000
"""Entries of a folder that is looked at as a whole."""
PERMISSIONS = 0o1777
"""Neither set-user-id nor set-group-id: a snapshot gives nobody rights."""


class TreeEntry(NamedTuple):
    """One file, folder or link as `lstat` tells it."""

    kind: int
    mode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @property
    def is_folder(self) -> bool:
        return self.kind == stat.S_IFDIR

    @property
    def is_file(self) -> bool:
        return self.kind == stat.S_IFREG


class FileTree:
    """A folder as it was when it was scanned."""

    def __init__(self) -> None:
        self.entries: dict[bytes, TreeEntry] = {}
        self.strange: list[bytes] = []
        """Sockets, pipes, devices, and what is nested too deeply: not kept."""
        self.bytes = 0
        self.is_whole = True
        """False: there was more than the scan was willing to look at."""

    def fits(self, limit: WorkspaceLimit) -> bool:
        return self.is_whole and self.bytes <= limit.bytes and len(self.entries) <= limit.files


def scan(root: str, *, most: int) -> FileTree:
    """Looks at `most` entries at the most. What vanishes meanwhile is not there."""
    tree = FileTree()
    base = os.fsencode(root)
    folders = [b""]
    while folders:
        folder = folders.pop()
        try:
            found = _listed(os.path.join(base, folder) if folder else base)
        except FileNotFoundError:
            continue
        for item in found:
            if len(tree.entries) >= most:
                tree.is_whole = False
                return tree
            path = os.path.join(folder, item.name) if folder else item.name
            _note(tree, item, path, folders)
    return tree


def _note(tree: FileTree, item: "os.DirEntry[bytes]", path: bytes, folders: list[bytes]) -> None:
    try:
        found = item.stat(follow_symlinks=False)
    except FileNotFoundError:
        return
    kind = stat.S_IFMT(found.st_mode)
    if kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK) or len(path) > LONGEST:
        tree.strange.append(path)
        return
    size = found.st_size if kind == stat.S_IFREG else 0
    mode = found.st_mode & PERMISSIONS
    tree.entries[path] = TreeEntry(
        kind, mode, size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino
    )
    tree.bytes += size
    if kind == stat.S_IFDIR:
        folders.append(path)


def _listed(folder: bytes) -> list["os.DirEntry[bytes]"]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except PermissionError:
        with opened_up(folder, 0o700), os.scandir(folder) as found:
            return list(found)


@contextlib.contextmanager
def opened_up(path: bytes, mode: int) -> Iterator[None]:
    """With rights that its owner may take, and that the policy had taken away."""
    before = stat.S_IMODE(os.lstat(path).st_mode)
    os.chmod(path, before | mode)
    try:
        yield
    finally:
        os.chmod(path, before)


def parts(path: bytes, size: int) -> Iterator[bytes]:
    """A file's content, whatever its mode says."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        fd = os.open(path, flags)
    except PermissionError:
        with opened_up(path, 0o400):
            fd = os.open(path, flags)
    with os.fdopen(fd, "rb", buffering=0) as file:
        while part := file.read(size):
            yield part


def give(root: str, owner: tuple[int, int] | None) -> None:
    """Makes everything in `root`, and itself, the owner's."""
    if owner is None:
        return
    os.chown(root, *owner)
    for path in scan(root, most=MOST).entries:
        os.chown(os.path.join(os.fsencode(root), path), *owner, follow_symlinks=False)


def trim(root: str, before: FileTree, limit: WorkspaceLimit) -> tuple[FileTree, list[bytes]]:
    """Brings a folder back within its limit by removing what was added or changed since `before`,
    the largest first. The tree that is left, and what was removed."""
    removed: list[bytes] = []
    os.chmod(root, 0o755)  # noqa: S103 - whatever a command made of it: it is not in a snapshot
    while True:
        tree = scan(root, most=2 * limit.files + 1)
        for path in tree.strange:
            remove(os.path.join(root, os.fsdecode(path)))
        if tree.fits(limit):
            return tree, removed
        gone = _remove_some(root, tree, before, limit)
        if not gone:
            return tree, removed
        removed += gone


def _remove_some(root: str, tree: FileTree, before: FileTree, limit: WorkspaceLimit) -> list[bytes]:
    size, files = tree.bytes, len(tree.entries)
    removed = []
    for path in _newest_first(tree, before):
        if size <= limit.bytes and files <= limit.files:
            break
        remove(os.path.join(root, os.fsdecode(path)))
        removed.append(path)
        size -= tree.entries[path].size
        files -= 1
    return removed


def _newest_first(tree: FileTree, before: FileTree) -> Iterable[bytes]:
    changed = [path for path, entry in tree.entries.items() if before.entries.get(path) != entry]
    # Folders last, the innermost of them first: removing one removes what is in it.
    return sorted(
        (path for path in changed if not _is_old_folder(path, tree, before)),
        key=lambda path: (
            tree.entries[path].is_folder,
            -tree.entries[path].size,
            -path.count(b"/"),
            path,
        ),
    )


def _is_old_folder(path: bytes, tree: FileTree, before: FileTree) -> bool:
    """Changed only in what it holds."""
    old = before.entries.get(path)
    return old is not None and old.is_folder and tree.entries[path].is_folder


def told(removed: list[bytes], limit: WorkspaceLimit) -> str:
    """Words for the model about what it has lost."""
    if not removed:
        return ""
    names = [path.decode("utf-8", "replace")[:200] for path in removed[:SHOWN]]
    more = f" and {len(removed) - SHOWN:,} more" if len(removed) > SHOWN else ""
    return f"[the workspace may hold {limit}; removed: {', '.join(names)}{more}]"
