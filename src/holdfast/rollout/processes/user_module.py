"""Runs in a process of user code: ends it with its parent, and imports the user's module."""

import ctypes
import importlib
import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType

from holdfast.rollout.processes.frames import FunctionHome

_PR_SET_PDEATHSIG = 1
_imports: list[str] = []


def die_with(parent: int) -> None:
    """Makes the kernel kill this process when its parent ends. `parent` is the pid of the
    parent."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # The parent died before this process was tied to it.
        os._exit(0)


def file_in_import() -> str | None:
    """Returns the user's file that this process is importing at the moment, or None. Code that runs
    during this import must not start another process of user code."""
    return _imports[-1] if _imports else None


def import_module(home: FunctionHome) -> ModuleType:
    """Imports the user's module from its file. The module gets the name in `home`, or
    `isolated_NAME` if that name belongs to another file."""
    sys.argv[:] = [home.file]
    spec = _find_module(home.module)
    with _importing(home):
        if spec is not None and _is_at(spec, home.file):
            return importlib.import_module(home.module)
        name = home.module if spec is None else f"isolated_{home.module}"
        spec = importlib.util.spec_from_file_location(name, home.file)
        if spec is None or spec.loader is None:
            raise ImportError(f"{home.file} is not a Python file")
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


@contextmanager
def _importing(home: FunctionHome) -> Iterator[None]:
    _imports.append(home.file)
    try:
        yield
    finally:
        _imports.pop()


def _find_module(module: str) -> ModuleSpec | None:
    """Returns the spec that Python finds for the module's name, or None."""
    try:
        return importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None


def _is_at(spec: ModuleSpec, file: str) -> bool:
    origin = spec.origin
    return origin is not None and os.path.exists(origin) and os.path.samefile(origin, file)
