"""The folder with the user's code, which Ray copies to the nodes.

It is the current folder, if the rollout's file is inside it, or else the file's folder. Its size is
measured before anything begins. If a data set or a checkpoint makes it too large to copy to each
node, the folder is refused, and the error names that entry.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from holdfast.records.errors import UsageError

MAX_BYTES = 100 * 1024 * 1024
LEFT_OUT = (
    ".git", ".hg", ".svn", ".venv", "venv", "node_modules", "__pycache__", ".mypy_cache",
    ".ruff_cache", ".pytest_cache", ".hypothesis", ".tox", ".ipynb_checkpoints",
)  # fmt: skip
"""Folders that are not copied, because they contain no code of the user."""
JOURNALS = ("*.db", "*.db-wal", "*.db-shm", "*.db-witness", "*.gateway-secret")


class TravelFolder(Struct, frozen=True):
    root: Path
    excludes: tuple[str, ...]
    """The patterns of files that are not copied, in the syntax of a .gitignore."""

    def place(self, file: Path) -> str:
        """Returns the path that a file of the folder has on a node."""
        return str(file.resolve().relative_to(self.root))


def travel_folder(
    file: Path, *, exclude: tuple[str, ...] = (), most: int = MAX_BYTES
) -> TravelFolder:
    """Returns the folder to copy to the nodes, which contains `file`. Raises `UsageError` if the
    folder has more than `most` bytes."""
    here = Path.cwd().resolve()
    root = here if here in file.resolve().parents else file.resolve().parent
    excludes = (*(f"{name}/" for name in LEFT_OUT), *JOURNALS, *exclude)
    sizes = _sizes(root, exclude)
    total = sum(sizes.values())
    if total > most:
        name, size = max(sizes.items(), key=lambda item: item[1])
        raise UsageError(
            f"folder {root} is too large to travel to the nodes: {_mib(total)} MiB, most of it in "
            f"{name} ({_mib(size)} MiB), and {_mib(most)} MiB may; leave what is not code out with "
            f"--cluster-exclude {name}, or begin the command in another folder"
        )
    return TravelFolder(root, excludes)


def _sizes(root: Path, exclude: tuple[str, ...]) -> dict[str, int]:
    """Returns the size in bytes of each entry of the folder. Entries that are not copied are left
    out."""
    sizes: dict[str, int] = {}
    for path in _files(root, {name.strip("/") for name in exclude}):
        first = path.relative_to(root).parts[0]
        sizes[first] = sizes.get(first, 0) + path.stat(follow_symlinks=False).st_size
    return sizes


def _files(root: Path, exclude: set[str]) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        inside = Path(folder)
        folders[:] = [
            name
            for name in folders
            if name not in LEFT_OUT and not _is_left_out(inside / name, root, exclude)
        ]
        for name in files:
            path = inside / name
            is_journal = any(path.match(pattern) for pattern in JOURNALS)
            if not is_journal and not _is_left_out(path, root, exclude):
                yield path


def _is_left_out(path: Path, root: Path, exclude: set[str]) -> bool:
    return str(path.relative_to(root)) in exclude or path.name in exclude


def _mib(size: int) -> str:
    return f"{size / (1024 * 1024):,.0f}"
