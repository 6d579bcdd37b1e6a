"""Loading the user's rollout and scorer from a file.

Their mistakes are shown with their traceback, not with ours around it.
"""

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Iterator
from itertools import dropwhile
from pathlib import Path
from types import ModuleType

from holdfast.engine.scoring.scorer import is_group_scorer
from holdfast.records.errors import UsageError
from holdfast.rollout.processors.processor import RolloutProcessor, as_processor

ROLLOUT = "an async function of one argument, or a RolloutProcessor"
_loaded: dict[Path, ModuleType] = {}


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
            f"{path} does not import: {type(error).__name__}: {error}", _format_error(error)
        ) from error
    return module


def _free_name(stem: str) -> str:
    """A file may be called `json.py`; the module of that name is still the one that we need."""
    taken = stem in sys.modules or stem in sys.stdlib_module_names
    return f"rollout_file_{stem}" if taken else stem


def user_traceback(error: BaseException) -> str:
    """The traceback from the user's first frame on; "" when it never was in their code."""
    frames = traceback.extract_tb(error.__traceback__)
    return _format_error(error) if any(_is_user_code(frame.filename) for frame in frames) else ""


def _format_error(error: BaseException) -> str:
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


def rollout_in(module: ModuleType, path: Path, name: str | None) -> object:
    """The rollout that was named, or the only one that the file defines."""
    found = _rollouts(module)
    if name is not None:
        if not hasattr(module, name):
            raise UsageError(f"{path} has no {name!r}; its rollouts: {_listed(found)}")
        return _checked(getattr(module, name), f"{path}:{name}")
    if "rollout" in found:
        return found["rollout"]
    if not found:
        raise UsageError(f"{path} has no rollout: {_missing(module)}")
    if len(found) > 1:
        raise UsageError(
            f"{path} has {len(found)} rollouts ({_listed(found)}); name one: {path}:NAME"
        )
    return next(iter(found.values()))


def _missing(module: ModuleType) -> str:
    """What a file without a rollout wants; most often, it is one word."""
    functions = [name for name in _functions(module) if name != "score"]
    if not functions:
        return f"it wants {ROLLOUT}"
    are = "is no async function" if len(functions) == 1 else "are no async functions"
    return f"it wants {ROLLOUT}; {', '.join(functions)} {are} (`async def`)"


def processor_of(rollout: object, path: Path) -> RolloutProcessor:
    """Makes the processor; a class of the user's may refuse to be made."""
    try:
        return as_processor(rollout)
    except UsageError:
        raise
    except Exception as error:
        raise UserCodeError(
            f"{path}: the rollout cannot be made: {type(error).__name__}: {error}",
            _format_error(error),
        ) from error


def scorer_in(module: ModuleType, path: Path, reference: str | None) -> object | None:
    """The scorer that was named, or `score` of the rollout's file if there is one."""
    if reference is None:
        return getattr(module, "score", None)
    file, name = _scorer_place(path, reference)
    where, name = load_module(file), name or "score"
    if not hasattr(where, name):
        functions = ", ".join(_functions(where)) or "none"
        raise UsageError(
            f"{file} has no scorer {name!r}; its functions of one argument: {functions}"
        )
    found: object = getattr(where, name)
    if not callable(found) or not _takes_one_argument(found):
        raise UsageError(f"{file}:{name} is no scorer: it wants a function of one argument")
    return found


def scorer_module(path: Path, reference: str | None) -> ModuleType:
    """The file that has the scorer: the rollout's, `path`, unless another one was named."""
    return load_module(path if reference is None else _scorer_place(path, reference)[0])


def _scorer_place(path: Path, reference: str) -> tuple[Path, str | None]:
    return split(reference) if ".py" in reference else (path, reference)


def _rollouts(module: ModuleType) -> dict[str, object]:
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and _is_defined_rollout(value, module.__name__)
    }


def _functions(module: ModuleType) -> list[str]:
    """Those of one argument that the file defines, and that are no rollouts."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and inspect.isfunction(value)
        and value.__module__ == module.__name__
        and _takes_one_argument(value)
        and not (_is_rollout(value) and name != "score")
    ]


def _is_defined_rollout(value: object, module: str) -> bool:
    if isinstance(value, RolloutProcessor):
        return True
    if getattr(value, "__module__", None) != module or getattr(value, "__name__", "") == "score":
        return False
    return _is_rollout(value)


def _is_rollout(value: object) -> bool:
    if isinstance(value, type):
        return issubclass(value, RolloutProcessor)
    if isinstance(value, RolloutProcessor):
        return True
    return (
        inspect.iscoroutinefunction(value)
        and _takes_one_argument(value)
        and not is_group_scorer(value)
    )


def _takes_one_argument(value: object) -> bool:
    """Whether it can be called with one argument."""
    try:
        inspect.signature(value).bind(None)  # type: ignore[arg-type]
    except TypeError:
        return False
    except ValueError:  # Some built-in callables have no signature.
        return True
    return True


def _checked(value: object, where: str) -> object:
    if _is_rollout(value):
        return value
    hint = (
        " (write `async def`)" if inspect.isfunction(value) and _takes_one_argument(value) else ""
    )
    raise UsageError(f"{where} is no rollout: it wants {ROLLOUT}{hint}")


def _listed(found: dict[str, object]) -> str:
    return ", ".join(found) or "none"
