"""The files that code consists of: its own, and those modules of the user's own that it imports.

They are found by reading, not by importing: each `import` of a file counts, at any level, so
that also what is imported when a function runs is found. Files are compared by what they do and
say: comments and blank lines change nothing; texts do, docstrings among them, since models are
shown them.

Not looked into: the standard library, installed packages (in site-packages, or in any folder with
a record of their installation), Holdfast itself, what is no Python source in a file, modules that
are named only when the code runs, and data files. A file over a megabyte is data: its bytes count,
and its imports are not followed.
"""

import ast
import csv
import functools
import hashlib
import importlib.machinery
import importlib.util
import inspect
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from holdfast.rollout.code.source import canonical, parse, unparse

_INSTALLED = ("site-packages", "dist-packages")
_HOLDFAST = Path(__file__).resolve().parents[2]
_PYTHON = tuple(
    Path(sysconfig.get_path(name)).resolve()
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_BY_NAME = ("import_module", "__import__")
_LARGEST = 1_000_000
"""Bytes of a file that is parsed: some seconds go by for each ten million."""
_REMEMBERED = 32_768
"""Files, of some 1 kB each: more than a project has, or a scorer would read all of them again."""


class _Module(Struct, frozen=True):
    name: str
    file: Path | None
    """None where it has no source of the user's."""
    inside: tuple[str, ...] = ()
    """Where the modules of a package are."""

    @property
    def package(self) -> str:
        """From which its relative imports count."""
        return self.name if self.inside else self.name.rpartition(".")[0]

    @property
    def label(self) -> str:
        path = self.name.replace(".", "/")
        return f"{path}/__init__.py" if self.inside else f"{path}.py"


def files_of(
    file: Path, *, module: str, keep: str = "", root: str | None = None
) -> tuple[str, dict[str, str]]:
    """The digest of the code's own file, and those of what it imports, by their names. `keep` is
    the evaluation that the code is. With `root`, the code's name in its file, helpers of
    evaluations there are no part of it, unless a module that it imports may use them. OSError where
    its own file cannot be read."""
    own = file.resolve()
    known, stamp = _known(module, own), _stamp(own)
    digest, names = _read(known, stamp, keep, root)
    found, seen = _imported(names)
    if root is not None and own in seen:
        digest, names = _read(known, stamp, keep, None)
        found, _ = _imported(names)
    return digest, {label: digest for label, (path, digest) in sorted(found.items()) if path != own}


def _imported(names: Iterable[str]) -> tuple[dict[str, tuple[Path, str]], set[Path]]:
    """What is imported under these names, and by that, by its label; and all files of that."""
    found: dict[str, tuple[Path, str]] = {}
    seen: set[Path] = set()
    waiting = list(_locate_all(names))
    while waiting:
        imported = waiting.pop()
        if imported.file is None or imported.file in seen:
            continue
        seen.add(imported.file)
        try:
            digest, names = _read(imported, _stamp(imported.file), "", None)
        except OSError:  # The others count all the same.
            continue
        found[imported.label] = imported.file, digest
        waiting += _locate_all(names)
    return found, seen


def _stamp(file: Path) -> tuple[int, int]:
    found = file.stat()
    return found.st_mtime_ns, found.st_size


@functools.lru_cache(maxsize=_REMEMBERED)
def _read(
    module: _Module, stamp: tuple[int, int], keep: str, root: str | None
) -> tuple[str, tuple[str, ...]]:
    """The digest of a module, and the names that it imports, in an order that is the same in every
    process. Evaluations share most files."""
    del stamp  # It is what the answer holds for.
    assert module.file is not None, "only what has a file is read"
    text = module.file.read_bytes()
    tree = parse(text, keep=keep, root=root) if len(text) <= _LARGEST else unparse(text)
    names = {name for node in ast.walk(tree) for name in _names(node, module)}
    return hashlib.sha256(canonical(tree)).hexdigest()[:12], tuple(sorted(names))


def is_own(subject: object) -> bool:
    """Whether a function or a class is the user's: in a file of theirs, or in none, as what a
    notebook defines; one of a library is neither."""
    module = str(getattr(subject, "__module__", ""))
    if module.partition(".")[0] in sys.stdlib_module_names - {"__main__"}:
        return False
    try:
        file = Path(inspect.getfile(subject)).resolve()  # type: ignore[arg-type]
    except (TypeError, OSError):
        return module == "__main__"
    if not file.is_file():
        return True
    known = _known(module, file)
    return _is_own(file) and not _is_installed(known.name, file, is_package=bool(known.inside))


# --- which modules a file imports


def _names(node: ast.AST, where: _Module) -> list[str]:
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom():
            start = _from(node, where)
            # What is taken out of a package may be a module of it.
            return [start, *(f"{start}.{alias.name}" for alias in node.names)] if start else []
        case ast.Call(args=[ast.Constant(value=str(name)), *_]) if _called(node.func) in _BY_NAME:
            return [name] if not name.startswith(".") else []
    return []


def _from(node: ast.ImportFrom, where: _Module) -> str:
    if not node.level:
        return node.module or ""
    around = where.package.split(".") if where.package else []
    kept = around[: len(around) - node.level + 1]
    return ".".join([*kept, *([node.module] if node.module else [])]) if kept else ""


def _called(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


# --- where a module is


def _locate_all(names: Iterable[str]) -> Iterator[_Module]:
    """With the packages that they are in: importing a module runs those, too."""
    for name in names:
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            module = _locate(".".join(parts[:length]))
            if module.file is None and not module.inside:
                break  # Nothing of the user's is below it.
            yield module


def _locate(name: str) -> _Module:
    """Without importing it. One that is not there is none of ours to report."""
    if name.partition(".")[0] in sys.stdlib_module_names:
        return _Module(name, None)
    try:
        spec = _spec(name)
    except (ImportError, ValueError, AttributeError):  # As finders say that they have none.
        spec = None
    if spec is None:
        return _Module(name, None)
    inside = tuple(spec.submodule_search_locations or ())
    if not spec.has_location or not spec.origin:
        return _Module(name, None, inside)  # A package without a file of its own.
    file = Path(spec.origin).resolve()
    if not file.is_file():
        return _Module(name, None, inside)  # In an archive, or made and deleted.
    own = _is_own(file) and not _is_installed(name, file, is_package=bool(inside))
    return _Module(name, file, inside) if own else _Module(name, None)


def _spec(name: str) -> importlib.machinery.ModuleSpec | None:
    loaded = sys.modules.get(name)
    if loaded is not None and loaded.__spec__ is not None:
        return loaded.__spec__
    parent = name.rpartition(".")[0]
    if not parent:
        return importlib.util.find_spec(name)
    inside = _locate(parent).inside
    return importlib.machinery.PathFinder.find_spec(name, list(inside)) if inside else None


def _known(name: str, file: Path) -> _Module:
    """The code's own module, which may be known under no name, or as `__main__`."""
    loaded = sys.modules.get(name)
    if loaded is None:
        return _Module("", file)
    spec, package = getattr(loaded, "__spec__", None), getattr(loaded, "__package__", None)
    if spec is not None:
        name = spec.name
    elif package:
        name = f"{package}.{name}"
    return _Module(name, file, tuple(getattr(loaded, "__path__", ())))


def _is_own(file: Path) -> bool:
    if file.suffix != ".py" or any(part in _INSTALLED for part in file.parts):
        return False
    return not any(file.is_relative_to(folder) for folder in (_HOLDFAST, *_PYTHON))


def _is_installed(name: str, file: Path, *, is_package: bool) -> bool:
    """Whether an installer put it there (`pip install --target`), and not the user."""
    above = name.count(".") + is_package
    if above >= len(file.parents):  # Linked from elsewhere.
        return False
    root = file.parents[above]
    return file.relative_to(root).as_posix() in _installed(root, root.stat().st_mtime_ns)


@functools.lru_cache(maxsize=64)
def _installed(root: Path, changed: int) -> frozenset[str]:
    """The files that packages in this folder are recorded to have brought."""
    del changed  # It is what the answer holds for: an installation adds a folder.
    found: set[str] = set()
    for record in root.glob("*.dist-info/RECORD"):
        try:
            lines = record.read_text("utf-8", errors="replace").splitlines()
        except OSError:  # Nothing is known of it, and so it counts.
            continue
        found |= {row[0] for row in csv.reader(lines) if row}
    return frozenset(found)
