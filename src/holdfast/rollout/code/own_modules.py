"""Which code is the user's own: not Holdfast's, not Python's, and not installed."""

import csv
import functools
import importlib
import importlib.util
import os
import sys
import sysconfig
from pathlib import Path
from types import FunctionType, ModuleType

_INSTALLED = ("site-packages", "dist-packages")
_NOT_OWN = (
    Path(__file__).resolve().parents[2],
    *(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib")),
)


def is_own(subject: "FunctionType | type | ModuleType") -> bool:
    """A function goes by the file of its code: `functools.wraps` gives it another's module. What
    is in no file, as in a notebook, is the user's."""
    if isinstance(subject, FunctionType) and os.path.isfile(subject.__code__.co_filename):
        return _is_own_file(subject.__code__.co_filename)
    name = subject.__name__ if isinstance(subject, ModuleType) else subject.__module__
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is not None and name != "__main__":
        return _is_own_file(file)
    return name == "__main__" or str(name).partition(".")[0] not in sys.stdlib_module_names


def import_own(name: str) -> "ModuleType | None":
    """A module that code imports where it runs; None where it is not the user's, or not there."""
    try:
        spec = importlib.util.find_spec(name.partition(".")[0])
        if spec is None or (spec.origin is not None and not _is_own_file(spec.origin)):
            return None
        return importlib.import_module(name)
    except Exception:  # Whatever it raises is raised again where the code runs.
        return None


@functools.lru_cache(maxsize=32_768)
def _is_own_file(name: str) -> bool:
    file = Path(name).resolve()
    if file.suffix != ".py" or any(part in _INSTALLED for part in file.parts):
        return False
    return not any(file.is_relative_to(folder) for folder in _NOT_OWN) and not _is_recorded(file)


def _is_recorded(file: Path) -> bool:
    """Whether an installer put it there, as `pip install --target` does."""
    folder = file.parent
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return file.relative_to(folder).as_posix() in _recorded(folder)


@functools.lru_cache(maxsize=1024)
def _recorded(folder: Path) -> frozenset[str]:
    files: set[str] = set()
    for record in folder.glob("*.dist-info/RECORD"):
        lines = record.read_text("utf-8", errors="replace").splitlines()
        files |= {row[0] for row in csv.reader(lines) if row}
    return frozenset(files)
