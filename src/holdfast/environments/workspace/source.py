"""What a workspace begins with: given files, or a copy of a folder."""

import functools
import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from holdfast.environments.workspace.files import Files
from holdfast.environments.workspace.snapshots.tree import MOST, parts, scan
from holdfast.records.errors import ToolSaysNo, UsageError

PART = 1 << 20


class Source:
    """Checked when it is made, written at every reset."""

    def __init__(self, given: Mapping[str, str | bytes] | str | Path):
        self.folder: str | None = None
        self.files: dict[str, bytes] = {}
        if isinstance(given, Mapping):
            self.files = {path: as_bytes(path, body) for path, body in given.items()}
        else:
            self.folder = os.path.abspath(given)
            if not os.path.isdir(self.folder):
                raise UsageError(f"the workspace's folder {self.folder} is not there")

    @property
    def digest(self) -> str:
        """Of all that is in it. A folder is read once per process: leave it alone meanwhile."""
        if self.folder is not None:
            return _folder_digest(self.folder)
        return digest_of(self.files)

    def write(self, root: str, files: Files) -> None:
        """Into the empty folder `root`."""
        if self.folder is not None:
            copy(self.folder, root)
        put(self.files, files)


def put(contents: Mapping[str, bytes], files: Files) -> None:
    for path, body in contents.items():
        try:
            files.write(path, body, mode=0o755 if body.startswith(b"#!") else 0o644)
        except ToolSaysNo as no:
            raise UsageError(f"a workspace cannot begin with this file: {no}") from no


def copy(source: str, target: str, *, wanted: Callable[[bytes], bool] = lambda _: True) -> None:
    """Files, folders and links with their modes; nothing else, and no times."""
    tree = scan(source, most=MOST)
    chosen = [path for path in sorted(tree.entries) if wanted(path)]
    for path in chosen:
        entry = tree.entries[path]
        here, there = (os.path.join(os.fsencode(root), path) for root in (source, target))
        if entry.is_folder:
            os.mkdir(there, 0o700)
        elif entry.is_file:
            with open(there, "xb") as file:
                file.writelines(parts(here, PART))
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
    found = hashlib.sha256()
    for part in (*(part for path in sorted(files) for part in (path, files[path])), *more):
        body = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
        found.update(len(body).to_bytes(8, "big") + body)
    return found.hexdigest()


@functools.cache
def _folder_digest(folder: str) -> str:
    tree = scan(folder, most=MOST)
    contents: dict[str, bytes] = {}
    for path, entry in tree.entries.items():
        where = os.path.join(os.fsencode(folder), path)
        if entry.is_file:
            with open(where, "rb") as file:
                said = hashlib.file_digest(file, "sha256").digest()
        else:
            said = b"" if entry.is_folder else os.readlink(where)
        contents[os.fsdecode(path)] = b"%o " % (entry.kind | entry.mode) + said
    return digest_of(contents)
