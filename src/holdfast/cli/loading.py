"""Loading the user's rollout and scorer from a file.

Their mistakes are shown with their traceback, not with ours around it.
"""

import importlib.util
import inspect
import sys
import traceback
from pathlib import Path
from types import ModuleType

from holdfast.records.errors import UsageError
from holdfast.rollout.processor import RolloutProcessor


class UserCodeError(UsageError):
    """The user's file raised while it was imported."""

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
    if not path.is_file():
        raise UsageError(f"rollout file {path} does not exist")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[path.stem]
        raise UserCodeError(
            f"{path} does not import: {type(error).__name__}: {error}", _their_traceback(error)
        ) from error
    return module


def _their_traceback(error: BaseException) -> str:
    """Starts at the first frame that is neither ours nor the import machinery's."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [
        frame
        for frame in frames
        if frame.filename != __file__ and not frame.filename.startswith("<frozen importlib")
    ]
    lines = traceback.format_list(theirs) + traceback.format_exception_only(error)
    return "".join(["Traceback (most recent call last):\n", *lines])


def rollout_in(module: ModuleType, path: Path, name: str | None) -> object:
    """The rollout that was named, or the only one that the file defines."""
    if name is not None:
        if not hasattr(module, name):
            raise UsageError(f"{path} has no {name!r}; it has: {_listed(_rollouts(module))}")
        return getattr(module, name)
    found = _rollouts(module)
    if "rollout" in found:
        return found["rollout"]
    if len(found) != 1:
        raise UsageError(
            f"{path} has {len(found)} rollouts ({_listed(found)}); name one: {path}:NAME"
        )
    return next(iter(found.values()))


def scorer_in(module: ModuleType, path: Path, reference: str | None) -> object | None:
    """The scorer that was named, or `score` of the rollout's file if there is one."""
    if reference is None:
        return getattr(module, "score", None)
    file, name = split(reference) if ":" in reference else (path, reference)
    where = module if file == path else load_module(file)
    if name is None or not hasattr(where, name):
        raise UsageError(f"{file} has no scorer {name!r}")
    found: object = getattr(where, name)
    return found


def _rollouts(module: ModuleType) -> dict[str, object]:
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and _is_rollout(value, module.__name__)
    }


def _is_rollout(value: object, module: str) -> bool:
    if isinstance(value, RolloutProcessor):
        return True
    if getattr(value, "__module__", None) != module:
        return False
    if isinstance(value, type):
        return issubclass(value, RolloutProcessor)
    return (
        inspect.iscoroutinefunction(value)
        and len(inspect.signature(value).parameters) == 1
        and value.__name__ != "score"
    )


def _listed(found: dict[str, object]) -> str:
    return ", ".join(found) or "none"
