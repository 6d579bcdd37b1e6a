"""Loading a file of the user's as a module, once, and the tracebacks of what it raises.

A mistake is shown with the user's frames, not with ours around them.
"""

import importlib.util
import sys
import traceback
from collections.abc import Iterator
from itertools import dropwhile
from pathlib import Path
from types import ModuleType

from holdfast.records.errors import UsageError

_loaded: dict[Path, ModuleType] = {}


class UserCodeError(UsageError):
    """The user's file raised while it was imported, or a function of it before the run began."""

    def __init__(self, message: str, traceback: str):
        super().__init__(message)
        self.traceback = traceback


def split(reference: str) -> tuple[Path, str | None]:
    """`FILE.py:name` or `FILE.py`."""
    file, colon, name = reference.rpartition(":")
    if not colon or name.endswith(".py"):
        file, name = reference, ""
    return Path(file), name or None


def load_module(path: Path) -> ModuleType:
    """Imports a file once, under its own name unless that is taken."""
    if path.resolve() in _loaded:
        return _loaded[path.resolve()]
    if not path.is_file():
        raise UsageError(f"{path} {'is no file' if path.exists() else 'does not exist'}")
    name = _free_name(path.stem)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is no Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    _loaded[path.resolve()] = module
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise UserCodeError(
            f"{path} does not import: {type(error).__name__}: {error}", format_error(error)
        ) from error
    return module


def _free_name(stem: str) -> str:
    """A file may be called `json.py`; the module of that name is still the one that we need."""
    taken = stem in sys.modules or stem in sys.stdlib_module_names
    return f"rollout_file_{stem}" if taken else stem


def user_traceback(error: BaseException) -> str:
    """The traceback from the user's first frame on; "" when it never was in their code."""
    frames = traceback.extract_tb(error.__traceback__)
    return format_error(error) if any(_is_user_code(frame.filename) for frame in frames) else ""


def format_error(error: BaseException) -> str:
    """From the user's first frame on and without ours, in all errors that led to this one."""
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
