"""Loads a user's file once, as a module, and formats the tracebacks of its errors.

A file in a package (a folder with an `__init__.py`) is loaded as a module of that package, so that
its relative imports work. Any other file is loaded under its own name. Modules are searched for in
the file's folder, then in the folder that contains its package, and last in the working folder.

A traceback shows only frames of the user's code, and leaves out the frames of this package.
"""

import importlib
import importlib.machinery
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterator
from itertools import dropwhile
from pathlib import Path
from types import CodeType, ModuleType

from holdfast.records.errors import UsageError
from holdfast.records.foreign import frames_of, guarded, headline_of, plain_text_of, readable

_loaded: dict[Path, ModuleType] = {}


class UserCodeError(UsageError):
    """An error that the user's file raised on import, or that one of its functions raised before
    the run began."""

    def __init__(self, message: str, traceback: str):
        super().__init__(message)
        self.traceback = traceback


def split(reference: str) -> tuple[Path, str | None]:
    """Splits `FILE.py:name` into the file and the name. For `FILE.py`, the name is None."""
    file, colon, name = reference.rpartition(":")
    if not colon or name.endswith(".py"):
        file, name = reference, ""
    return Path(file), name or None


def load_module(path: Path) -> ModuleType:
    """Imports a file once. The module has the file's name, unless that name is taken."""
    if path.resolve() in _loaded:
        return _loaded[path.resolve()]
    if not path.is_file():
        raise UsageError(f"{path} {'is not a file' if path.exists() else 'does not exist'}")
    packages = _packages_of(path.resolve())
    _search_in(path.resolve(), packages)
    try:
        return _import(path, _name_in(packages, path) or _free_name(path.stem))
    except (KeyboardInterrupt, _NotPython):
        raise
    except BaseException as error:
        raise UserCodeError(
            f"{path} does not import: {headline_of(error)}{_remedy(error, path)}",
            format_error(error),
        ) from error


class _NotPython(UsageError):
    """Raised if the file cannot be imported as Python at all."""


def _import(path: Path, name: str) -> ModuleType:
    if _is_module_at(name, path):  # The package has already imported it.
        _loaded[path.resolve()] = sys.modules[name]
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or not isinstance(spec.loader, importlib.machinery.SourceFileLoader):
        raise _NotPython(f"{path} is not a Python file")
    spec.loader = _SourceLoader(name, spec.loader.path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    _loaded[path.resolve()] = module
    spec.loader.exec_module(module)
    package, _, last = name.rpartition(".")
    if package in sys.modules:  # As after `import`, `package.name` works.
        setattr(sys.modules[package], last, module)
    return module


class _SourceLoader(importlib.machinery.SourceFileLoader):
    """A loader that always compiles the present source.

    Python reuses its compiled file if the source has the same size and the same second of
    modification. A program changed within that second would then run its old code under its new
    fingerprint.
    """

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def _packages_of(file: Path) -> list[Path]:
    """Returns the package folders that contain the file, the outermost first."""
    packages: list[Path] = []
    for folder in file.parents:
        if not (folder / "__init__.py").is_file() or not folder.name.isidentifier():
            break
        packages.insert(0, folder)
    return packages if file.stem.isidentifier() and file.stem != "__init__" else []


def _search_in(file: Path, packages: list[Path]) -> None:
    """Adds folders to the search path: first the file's folder, then the folder that contains its
    package, and last the working folder, so that it hides no installed module."""
    if packages:
        sys.path.insert(0, str(packages[0].parent))
    sys.path.insert(0, str(file.parent))
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def _name_in(packages: list[Path], path: Path) -> str | None:
    """Imports the packages around a file and returns the file's full module name. Returns None if
    the file is in no package, or if another module already has the name of the outermost package or
    of the file."""
    if not packages or not _is_free(packages[0]):
        return None
    outermost, names = packages[0], [folder.name for folder in packages]
    if outermost.name not in sys.modules:
        _import(outermost / "__init__.py", outermost.name)
    for depth in range(2, len(names) + 1):
        importlib.import_module(".".join(names[:depth]))
    name = ".".join([*names, path.stem])
    return name if name not in sys.modules or _is_module_at(name, path) else None


def _is_module_at(name: str, path: Path) -> bool:
    file = getattr(sys.modules.get(name), "__file__", None)
    return isinstance(file, str) and Path(file).resolve() == path.resolve()


def _is_free(package: Path) -> bool:
    known = sys.modules.get(package.name)
    if known is None:
        return package.name not in sys.stdlib_module_names
    return str(package) in list(getattr(known, "__path__", ()))


def _remedy(error: BaseException, path: Path) -> str:
    folder = path.resolve().parent
    error = readable(error)
    if isinstance(error, ModuleNotFoundError):
        packages = _packages_of(path.resolve())
        searched = [folder, *(package.parent for package in packages[:1]), Path.cwd()]
        listed = ", ".join(dict.fromkeys(map(str, searched)))
        return f"; it was searched for in {listed}, and in what is installed"
    if isinstance(error, ImportError) and "no known parent package" in str(error):
        return f"; a relative import needs a package: put an __init__.py into {folder}"
    return ""


def _free_name(stem: str) -> str:
    """Returns a module name that is not taken. For a file `json.py`, the name differs from `json`,
    because Holdfast still needs Python's module."""
    taken = stem in sys.modules or stem in sys.stdlib_module_names
    return f"rollout_file_{stem}" if taken else stem


def user_traceback(error: BaseException) -> str:
    """Returns the traceback from the first frame of user code on, or "" if no frame is in user
    code."""
    frames = frames_of(error)
    return format_error(error) if any(_is_user_code(frame.filename) for frame in frames) else ""


def format_error(error: BaseException) -> str:
    """Returns the traceback from the first frame of user code on, without Holdfast's frames.
    Includes the errors that caused this error."""
    return guarded(lambda: _format_error(readable(error)), lambda worse: plain_text_of(error))


def _format_error(error: BaseException) -> str:
    summary = traceback.TracebackException.from_exception(error)
    for error_part in _chain(summary):
        frames = [frame for frame in error_part.stack if not _is_ours(frame.filename)]
        if any(_is_user_code(frame.filename) for frame in frames):
            frames = list(dropwhile(lambda frame: not _is_user_code(frame.filename), frames))
        error_part.stack = traceback.StackSummary.from_list(frames)
    return "".join(summary.format())


def _chain(
    summary: traceback.TracebackException | None,
) -> Iterator[traceback.TracebackException]:
    if summary is not None:
        yield summary
        yield from _chain(summary.__cause__)
        yield from _chain(summary.__context__)


def _is_user_code(filename: str) -> bool:
    return Path(filename).resolve() in _loaded


def _is_ours(filename: str) -> bool:
    package = Path(__file__).parents[2]
    return filename.startswith("<frozen ") or package in Path(filename).parents
