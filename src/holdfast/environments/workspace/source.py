"""The files that a workspace begins with: contents, or a copy of a folder."""

import functools
import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from holdfast.environments.workspace.files import Files
from holdfast.environments.workspace.snapshots.tree import MAX_ENTRIES, read_parts, scan
from holdfast.records.errors import ToolSaysNo, UsageError

PART_BYTES = 1 << 20


class Source:
    """The files that a workspace has at the beginning. They are checked when the `Source` is
    created, and written at every reset."""

    def __init__(self, source: Mapping[str, str | bytes] | str | Path):
        self.folder: str | None = None
        self.files: dict[str, bytes] = {}
        if isinstance(source, Mapping):
            self.files = {path: as_bytes(path, body) for path, body in source.items()}
        else:
            self.folder = os.path.abspath(source)
            if not os.path.isdir(self.folder):
                raise UsageError(f"the workspace's folder {self.folder} is not there")

    @property
    def digest(self) -> str:
        """The digest of all contents. A folder is read only once per process, so it must not change
        during a run."""
        if self.folder is not None:
            return _folder_digest(self.folder)
        return digest_of(self.files)

    def write(self, root: str, files: Files) -> None:
        """Writes the files into the empty folder `root`."""
        if self.folder is not None:
            copy(self.folder, root)
        write_all(self.files, files)


def write_all(contents: Mapping[str, bytes], files: Files) -> None:
    for path, body in contents.items():
        try:
            files.write(path, body, mode=0o755 if body.startswith(b"#!") else 0o644)
        except ToolSaysNo as no:
            raise UsageError(f"a workspace cannot begin with this file: {no}") from no


def copy(source: str, target: str, *, include: Callable[[bytes], bool] = lambda _: True) -> None:
    """Copies files, folders and links with their modes, but without their times."""
    tree = scan(source, most=MAX_ENTRIES)
    chosen = [path for path in sorted(tree.entries) if include(path)]
    for path in chosen:
        entry = tree.entries[path]
        here, there = (os.path.join(os.fsencode(root), path) for root in (source, target))
        if entry.is_folder:
            os.mkdir(there, 0o700)
        elif entry.is_file:
            with open(there, "xb") as file:
                file.writelines(read_parts(here, PART_BYTES))
            os.chmod(there, entry.mode)
        else:
            os.symlink(os.readlink(here), there)
    for path in reversed(chosen):
        if tree.entries[path].is_folder:
            os.chmod(os.path.join(os.fsencode(target), path), tree.entries[path].mode)


def as_bytes(path: str, body: str | bytes) -> bytes:
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return body.encode()
    raise UsageError(f"{path}: a file is text or bytes, not {type(body).__name__}")


def digest_of(files: Mapping[str, bytes], *more: str) -> str:
    digest = hashlib.sha256()
    for part in (*(part for path in sorted(files) for part in (path, files[path])), *more):
        body = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
        digest.update(len(body).to_bytes(8, "big") + body)
    return digest.hexdigest()


@functools.cache
def _folder_digest(folder: str) -> str:
    tree = scan(folder, most=MAX_ENTRIES)
    contents: dict[str, bytes] = {}
    for path, entry in tree.entries.items():
        where = os.path.join(os.fsencode(folder), path)
        if entry.is_file:
            with open(where, "rb") as file:
                content = hashlib.file_digest(file, "sha256").digest()
        else:
            content = b"" if entry.is_folder else os.readlink(where)
        contents[os.fsdecode(path)] = b"%o " % (entry.kind | entry.mode) + content
    return digest_of(contents)
