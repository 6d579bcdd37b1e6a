"""Lists the content of a workspace's folder, and keeps it within its limit.

Paths are relative to the folder. They are bytes, because file names may be invalid text. Links are
not followed.
"""

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from holdfast.environments.workspace.folder import remove
from holdfast.environments.workspace.limits import WorkspaceLimit

MAX_PATH_BYTES = 2048
"""The most bytes of a path. A file with a longer path is not kept."""
MAX_NAMED = 5
MAX_ENTRIES = 1_000_000
"""The most entries that a scan lists unless it has a lower limit."""
PERMISSIONS = 0o1777
"""The mode bits that are kept. Set-user-id and set-group-id are left out, because a snapshot must
not grant rights."""


class TreeEntry(NamedTuple):
    """The `lstat` of one file, folder or link."""

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
    """The content of a folder when it was scanned."""

    def __init__(self) -> None:
        self.entries: dict[bytes, TreeEntry] = {}
        self.special: list[bytes] = []
        """Paths that are not kept: sockets, pipes, devices, and files whose path is too long."""
        self.bytes = 0
        self.is_whole = True
        """False if the scan ended at its limit."""

    def fits(self, limit: WorkspaceLimit) -> bool:
        return self.is_whole and self.bytes <= limit.bytes and len(self.entries) <= limit.files


def scan(root: str, *, most: int) -> FileTree:
    """Lists the folder's content, at most `most` entries. Files that are removed during the scan
    are left out."""
    tree = FileTree()
    base = os.fsencode(root)
    folders = [b""]
    while folders:
        folder = folders.pop()
        try:
            entries = _list(os.path.join(base, folder) if folder else base)
        except FileNotFoundError:
            continue
        for item in entries:
            if len(tree.entries) >= most:
                tree.is_whole = False
                return tree
            path = os.path.join(folder, item.name) if folder else item.name
            _add(tree, item, path, folders)
    return tree


def _add(tree: FileTree, item: "os.DirEntry[bytes]", path: bytes, folders: list[bytes]) -> None:
    try:
        status = item.stat(follow_symlinks=False)
    except FileNotFoundError:
        return
    kind = stat.S_IFMT(status.st_mode)
    if kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK) or len(path) > MAX_PATH_BYTES:
        tree.special.append(path)
        return
    size = status.st_size if kind == stat.S_IFREG else 0
    mode = status.st_mode & PERMISSIONS
    tree.entries[path] = TreeEntry(
        kind, mode, size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
    )
    tree.bytes += size
    if kind == stat.S_IFDIR:
        folders.append(path)


def _list(folder: bytes) -> list["os.DirEntry[bytes]"]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except PermissionError:
        with permitted(folder, 0o700), os.scandir(folder) as entries:
            return list(entries)


@contextlib.contextmanager
def permitted(path: bytes, mode: int) -> Iterator[None]:
    """Adds the permissions in `mode` to a file or folder for the duration of the block, because a
    command may have removed them."""
    before = stat.S_IMODE(os.lstat(path).st_mode)
    os.chmod(path, before | mode)
    try:
        yield
    finally:
        os.chmod(path, before)


def read_parts(path: bytes, size: int) -> Iterator[bytes]:
    """Yields the content of a file in parts of `size` bytes, even if the file's mode forbids
    reading."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        fd = os.open(path, flags)
    except PermissionError:
        with permitted(path, 0o400):
            fd = os.open(path, flags)
    with os.fdopen(fd, "rb", buffering=0) as file:
        while part := file.read(size):
            yield part


def chown_all(root: str, owner: tuple[int, int] | None) -> None:
    """Changes the owner of `root` and everything in it. Does nothing if `owner` is None."""
    if owner is None:
        return
    os.chown(root, *owner)
    for path in scan(root, most=MAX_ENTRIES).entries:
        os.chown(os.path.join(os.fsencode(root), path), *owner, follow_symlinks=False)


def trim(root: str, before: FileTree, limit: WorkspaceLimit) -> tuple[FileTree, list[bytes]]:
    """Removes files that were added or changed since `before`, the largest first, until the
    folder is within its limit. Returns the remaining tree, and the removed paths.
    """
    removed: list[bytes] = []
    os.chmod(root, 0o755)  # noqa: S103 - a command may have changed it
    while True:
        tree = scan(root, most=2 * limit.files + 1)
        for path in tree.special:
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
    for path in _removable(tree, before):
        if size <= limit.bytes and files <= limit.files:
            break
        remove(os.path.join(root, os.fsdecode(path)))
        removed.append(path)
        size -= tree.entries[path].size
        files -= 1
    return removed


def _removable(tree: FileTree, before: FileTree) -> Iterable[bytes]:
    """Returns the new and changed paths in the order in which to remove them. Folders come last,
    because removing a folder also removes its content."""

    def is_changed(path: bytes, entry: TreeEntry) -> bool:
        old = before.entries.get(path)
        return old is None or (old != entry and not (old.is_folder and entry.is_folder))

    def order(path: bytes) -> tuple[bool, int, int, bytes]:
        entry = tree.entries[path]
        return entry.is_folder, -entry.size, -path.count(b"/"), path

    changed = (path for path, entry in tree.entries.items() if is_changed(path, entry))
    return sorted(changed, key=order)


def format_removed(removed: list[bytes], limit: WorkspaceLimit) -> str:
    """Returns a text that tells the model which files were removed, or "" if there are none."""
    if not removed:
        return ""
    names = [path.decode("utf-8", "replace")[:200] for path in removed[:MAX_NAMED]]
    more = f" and {len(removed) - MAX_NAMED:,} more" if len(removed) > MAX_NAMED else ""
    return f"[the workspace may hold {limit}; removed: {', '.join(names)}{more}]"
