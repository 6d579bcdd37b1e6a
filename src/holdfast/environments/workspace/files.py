"""The file tools, which read and write only within a folder.

A path is resolved name by name, including links, and must not lead out of the folder. Then it is
opened name by name without following links, so that a link that was created in between is refused,
too. An error that the model caused raises `ToolSaysNo`.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from holdfast.environments.workspace.limits import WorkspaceLimit
from holdfast.environments.workspace.sandbox.mounts import WORKSPACE
from holdfast.environments.workspace.snapshots.tree import FileTree
from holdfast.records.errors import ToolSaysNo
from holdfast.worlds.contract.output import MIB, amount

MAX_READ_BYTES = 16 * MIB
MAX_LINKS = 40
MAX_LISTED = 1000
MACHINE_ERRORS = frozenset(
    {errno.EIO, errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EROFS}
)
"""Errors that the model did not cause."""


class Files:
    """The files of one workspace. `owner` is the user and group that the files get. Without it,
    they belong to this process's user."""

    def __init__(self, root: str, *, owner: tuple[int, int] | None = None):
        self.root = root
        self._owner = owner

    def read(self, path: str) -> bytes:
        with self._tool_errors(path), self._folder_of(path) as (folder, name):
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(name, flags, dir_fd=folder), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise ToolSaysNo(f"{path} is not a file")
                if status.st_size > MAX_READ_BYTES:
                    raise ToolSaysNo(
                        f"{path} has {amount(status.st_size)}: look at parts of it with commands"
                    )
                return file.read(MAX_READ_BYTES)

    def write(self, path: str, content: bytes, *, mode: int | None = None) -> None:
        """Writes a file, and creates missing folders. Without `mode`, a file that exists keeps its
        mode."""
        with (
            self._tool_errors(path),
            self._folder_of(path, make=True) as (folder, name),
            open(self._open(name, folder), "wb") as file,
        ):
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ToolSaysNo(f"{path} is not a file")
            if status.st_size:
                os.ftruncate(file.fileno(), 0)
            file.write(content)
            if mode is not None:
                os.fchmod(file.fileno(), mode)

    def _open(self, name: str, folder: int) -> int:
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return os.open(name, flags, dir_fd=folder)
        except FileNotFoundError:
            created = os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=folder)
        os.fchmod(created, 0o644)  # Independent of the driver's umask.
        if self._owner is not None:
            os.fchown(created, *self._owner)
        return created

    def check_room(self, path: str, size: int, *, tree: FileTree, limit: WorkspaceLimit) -> None:
        """Raises `ToolSaysNo` if a file of `size` bytes at `path` would exceed the limit. `tree` is
        the present content of the workspace."""
        with self._tool_errors(path):
            names = self._resolve(path)
        before = tree.entries.get(os.fsencode("/".join(names)))
        missing = sum(
            os.fsencode("/".join(names[: depth + 1])) not in tree.entries
            for depth in range(len(names))
        )
        grown = tree.bytes + size - (before.size if before is not None else 0)
        if grown > limit.bytes or len(tree.entries) + missing > limit.files:
            raise ToolSaysNo(f"the workspace may hold {limit}: {path} does not fit any more")

    def list_tree(self, path: str, tree: FileTree) -> str:
        """Returns the paths in a folder, one per line. The paths of folders end with a slash."""
        with self._tool_errors(path):
            names = self._resolve(path)
        top = os.fsencode("/".join(names))
        entry = tree.entries.get(top)
        if names and entry is None:
            raise ToolSaysNo(f"{path}: {os.strerror(errno.ENOENT)}")
        if entry is not None and not entry.is_folder:
            return _line(top, entry.is_folder)
        inside = top + b"/" if top else b""
        entries = sorted(name for name in tree.entries if name.startswith(inside))
        lines = [_line(name, tree.entries[name].is_folder) for name in entries[:MAX_LISTED]]
        if len(entries) > MAX_LISTED:
            lines.append(f"[… and {len(entries) - MAX_LISTED:,} more]")
        return "\n".join(lines) or "[empty]"

    # --- confinement

    def _resolve(self, path: str) -> list[str]:
        """Returns the names of the path from the root to the target of `path`, with all links
        resolved."""
        if "\0" in path:
            raise ToolSaysNo("a path has no NUL in it")
        todo = list(reversed(self._names(path, path)))
        done: list[str] = []
        links = 0
        while todo:
            name = todo.pop()
            if name == "..":
                if not done:
                    raise ToolSaysNo(f"{path} is outside of the workspace")
                done.pop()
                continue
            target = self._link(os.path.join(self.root, *done, name))
            if target is None:
                done.append(name)
                continue
            links += 1
            if links > MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            if target.startswith("/"):
                done.clear()
            todo += reversed(self._names(target, path))
        return done

    def _names(self, path: str, original: str) -> list[str]:
        """Splits a path into names. An absolute path must begin with the workspace's path."""
        if path.startswith("/"):
            for root in (WORKSPACE, self.root):
                if path == root or path.startswith(root + "/"):
                    path = path[len(root) :]
                    break
            else:
                raise ToolSaysNo(f"{original} is outside of the workspace")
        return [name for name in path.split("/") if name not in ("", ".")]

    def _link(self, path: str) -> str | None:
        try:
            return os.readlink(path)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT, errno.ENOTDIR):
                return None
            raise

    @contextlib.contextmanager
    def _folder_of(self, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Yields the open folder that contains `path`, and the last name of the path."""
        names = self._resolve(path)
        if not names:
            raise ToolSaysNo(f"{path or '.'} is a folder")
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        folder = os.open(self.root, flags)
        try:
            for name in names[:-1]:
                if make:
                    self._make(name, folder)
                below = os.open(name, flags, dir_fd=folder)
                os.close(folder)
                folder = below
            yield folder, names[-1]
        finally:
            os.close(folder)

    def _make(self, name: str, folder: int) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=folder)
            os.chmod(name, 0o755, dir_fd=folder)  # noqa: S103 - the usual mode
            if self._owner is not None:
                os.chown(name, *self._owner, dir_fd=folder, follow_symlinks=False)

    @contextlib.contextmanager
    def _tool_errors(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in MACHINE_ERRORS:
                raise
            raise ToolSaysNo(f"{path}: {error.strerror}") from None
        except UnicodeEncodeError:
            raise ToolSaysNo(f"{path!r} is not a path") from None


def _line(path: bytes, is_folder: bool) -> str:
    return path.decode("utf-8", "replace") + ("/" if is_folder else "")
