"""Finds the user's rollout and scorer in their file."""

import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, NoReturn

from holdfast.engine.scoring.reward_functions import (
    COMPUTE_SCORE,
    FRAMEWORKS,
    VERL,
    scorer_named,
    split_framework,
)
from holdfast.engine.scoring.scorer import CHECK, CHECK_TASK, check_scorer, is_group_scorer
from holdfast.records.encoding.near_names import nearest
from holdfast.records.errors import UsageError
from holdfast.records.failure import is_user_code
from holdfast.records.foreign import headline_of
from holdfast.rollout.code.load import (
    UserCodeError,
    format_error,
    load_module,
    split,
    user_traceback,
)
from holdfast.rollout.processors.processor import RolloutProcessor, as_processor

__all__ = [
    "UserCodeError",
    "load_code",
    "load_module",
    "processor_of",
    "rollout_in",
    "scorer_in",
    "scorer_place",
    "scorer_reference",
    "split",
    "user_traceback",
]

SCORE = "score"
AGENT = "agent:"
"""The prefix of a rollout's name if the rollout is an agent (`--agent`) and not code in a file."""
ROLLOUT_NAME = "rollout"
ROLLOUT = "an async function of one argument, an object with such a __call__, or a RolloutProcessor"


class UserCode(NamedTuple):
    """The user's code that a command runs: the rollout, and the scorer with its file and name."""

    rollout: object
    processor: RolloutProcessor
    scorer: object | None
    place: tuple[Path, str]


def load_code(rollout: str, scorer: str | None) -> UserCode:
    """Loads the rollout and the scorer that a command names."""
    if rollout.startswith(AGENT):
        return _load_agent(rollout.removeprefix(AGENT), scorer)
    path, name = split(rollout)
    module = load_module(path)
    function = scorer_in(module, path, scorer)
    value = rollout_in(module, path, name, scorer=function)
    return UserCode(value, processor_of(value, path), function, scorer_place(path, scorer))


def _load_agent(agent: str, scorer: str | None) -> UserCode:
    """Loads an agent that works in a container, and the scorer if one is named."""
    # Imported late, so that other commands start fast.
    from holdfast.harbor.agents import agent_named

    processor = agent_named(agent)
    file, name = scorer_place(Path(), scorer)
    function = None if scorer is None else scorer_in(load_module(file), file, scorer)
    return UserCode(processor, processor, function, (file, name))


def rollout_in(
    module: ModuleType, path: Path, name: str | None, *, scorer: object | None = None
) -> object:
    """Returns the object called `name`. Without a name, returns the object called `rollout`, even
    if it is imported, or else the only rollout that the file defines. The run's `scorer` and an
    object called `score` do not count as rollouts. Raises `UsageError` if there is no rollout, or
    if the user could mean more than one object."""
    candidates = {
        name: value
        for name, value in vars(module).items()
        if not (name.startswith("_") or _is_scorer(name, value, scorer)) and _is_rollout(value)
    }
    own = {name: value for name, value in candidates.items() if _is_own(value, module)}
    if name is not None:
        if not hasattr(module, name):
            raise UsageError(f"{path} has no {name!r}; its rollouts: {_listed(own)}")
        if scorer is not None and getattr(module, name) is scorer:
            raise UsageError(f"{path}:{name} is named as the rollout and as the scorer")
        return _checked(getattr(module, name), f"{path}:{name}")
    if ROLLOUT_NAME in candidates:
        return candidates[ROLLOUT_NAME]
    if not own:
        imported = [name for name, value in candidates.items() if _is_imported(value)]
        raise UsageError(f"{path} has no rollout: {_missing(module, path, imported, scorer)}")
    if len(own) > 1:
        # A callable object may be anything, such as a client or a tool. A function is a rollout.
        own = {
            name: value
            for name, value in own.items()
            if _takes_rollout(value) or not _is_called_object(value)
        }
    if len(own) > 1:
        raise UsageError(f"{path} has {len(own)} rollouts ({_listed(own)}); name one: {path}:NAME")
    [(only, rollout)] = own.items()
    imported = [
        each for each in candidates if each != only and _may_be_meant(candidates[each], rollout)
    ]
    if imported:
        _refuse_to_guess(path, only, imported, "imported", candidates)
    if not _takes_rollout(rollout) and (plain := _without_async(module, scorer)):
        _refuse_to_guess(path, only, plain, "no `async def`", vars(module))
    return rollout


def _may_be_meant(imported: object, rollout: object) -> bool:
    """Returns whether the user could mean an imported function instead of the file's `rollout`.
    This is so if the function takes a rollout, or if it is also the user's code and `rollout` does
    not take one."""
    if not inspect.isfunction(imported):
        return False
    is_users = is_user_code(imported.__code__.co_filename)
    return _takes_rollout(imported) or (is_users and not _takes_rollout(rollout))


def _refuse_to_guess(
    path: Path, own: str, others: list[str], which: str, values: Mapping[str, object]
) -> NoReturn:
    likely = [name for name in others if _takes_rollout(values[name])]
    raise UsageError(
        f"{path}: {own} or {' or '.join(others)} ({which}) may be the rollout; name one: "
        f"{path}:{likely[0] if likely else 'NAME'}"
    )


def _missing(module: ModuleType, path: Path, imported: list[str], scorer: object | None) -> str:
    """Returns text that says why a file has no rollout. Most often, a function lacks the word
    `async`."""
    if imported and not _without_async(module, scorer):
        are = "is" if len(imported) == 1 else "are"
        names = ", ".join(imported)
        return f"{names} {are} imported from elsewhere: name it as {path}:{imported[0]}"
    named = next((name for name, value in vars(module).items() if value is scorer), None)
    if scorer is not None and named not in (None, SCORE) and _is_rollout(scorer):
        return f"its {named} is named as the scorer (--scorer)"
    values = vars(module)
    others = [name for name in values if not name.startswith("_") and _takes_more(values[name])]
    if own := [name for name in others if _is_own(values[name], module)]:
        return f"it wants {ROLLOUT}; {own[0]}{inspect.signature(values[own[0]])} takes more"
    functions = [name for name in _functions(module) if not _is_scorer(name, values[name], scorer)]
    if not functions:
        return f"it wants {ROLLOUT}"
    are = "is not an async function" if len(functions) == 1 else "are not async functions"
    return f"it wants {ROLLOUT}; {', '.join(functions)} {are} (`async def`)"


def processor_of(rollout: object, path: Path) -> RolloutProcessor:
    """Makes the processor. Raises `UserCodeError` if a class of the user's raises an error."""
    try:
        return as_processor(rollout)
    except UsageError:
        raise
    except Exception as error:
        raise UserCodeError(
            f"{path}: the rollout cannot be made: {headline_of(error)}",
            format_error(error),
        ) from error


def scorer_in(module: ModuleType, path: Path, reference: str | None) -> object | None:
    """Returns the named scorer, or `score` of the rollout's file if there is one."""
    if reference is None and not hasattr(module, SCORE):
        return None
    file, name = scorer_place(path, reference)
    where = load_module(file)
    framework, plain = split_framework(name)
    if not hasattr(where, plain):
        scorers = _defined(where) if framework else _scorers(where)
        near = nearest(plain, scorers)
        lead = f"; is {near!r} meant? Its" if near else "; its"
        kind = "function" if framework else "scorer"
        which = "functions" if framework else "functions of one argument, judges and ready scorers"
        raise UsageError(
            f"{file} has no {kind} {plain!r}{lead} {which}: {', '.join(scorers) or 'none'}"
        )
    try:
        scorer: object = scorer_named(where, name)
        check_scorer(scorer, is_group=is_group_scorer(scorer), file=str(file))
    except UsageError as error:
        raise UsageError(f"{file}:{plain} is not a scorer: {error}") from None
    return scorer


_READY = "for a ready scorer, write a line such as `score = holdfast.scorers.Numeric()`"


def scorer_place(path: Path, reference: str | None) -> tuple[Path, str]:
    """Returns the file and the name of the scorer that `reference` names, relative to the rollout's
    file. The name of a function for verl or TRL begins with the framework, as in `trl:reward`."""
    if reference is None:
        return path, SCORE
    framework, rest = split_framework(reference)
    file, name = split(rest) if ".py" in rest else (path, rest)
    prefix, colon, after = rest.partition(":")
    if colon and not prefix.endswith(".py") and (file == path or not file.exists()):
        meant = nearest(prefix, FRAMEWORKS, alike=0.5)
        raise UsageError(
            f"--scorer {reference}: a scorer is NAME (in {path.name}), FILE.py:NAME, "
            "trl:FILE.py:NAME or verl:FILE.py[:NAME]; "
            + (f"is {meant}:{after} meant?" if meant else f"{_READY} into {path.name}")
        )
    if not framework:
        return file, name or SCORE
    if name is None and framework != VERL:
        raise UsageError(f"--scorer {reference}: name the function: {framework}:{file}:NAME")
    return file, f"{framework}:{name or COMPUTE_SCORE}"


def scorer_reference(file: str, name: str) -> str:
    """Returns the reference that `scorer_place` reads as this file and name."""
    framework, plain = split_framework(name)
    return f"{framework}:{file}:{plain}" if framework else f"{file}:{name}"


def _scorers(module: ModuleType) -> list[str]:
    """Returns the names of possible scorers: functions of one argument, judges, and ready
    scorers."""
    ready = [name for name, value in vars(module).items() if _is_ready(name, value)]
    return [*_functions(module), *_async_scorers(module), *ready]


def _async_scorers(module: ModuleType) -> list[str]:
    """Returns the names of async functions of the file that can be scorers. Such a function can be
    called with one argument, and its signature does not show that this argument is a rollout."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and inspect.iscoroutinefunction(value)
        and _is_own(value, module)
        and _is_rollout(value)
        and name not in (SCORE, ROLLOUT_NAME)
        and not _takes_rollout(value)
    ]


def _is_ready(name: str, value: object) -> bool:
    """Returns whether an object is a judge or a ready scorer."""
    if name.startswith("_") or inspect.isclass(value):
        return False
    return hasattr(value, CHECK) or hasattr(value, CHECK_TASK)


def _functions(module: ModuleType) -> list[str]:
    """Returns the functions of one argument that the file defines and that are not rollouts."""
    return [
        name
        for name in _defined(module)
        if _takes_one_argument(value := vars(module)[name])
        and not (_is_rollout(value) and name != "score")
    ]


def _defined(module: ModuleType) -> list[str]:
    """Returns the functions that the file defines."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and inspect.isfunction(value)
        and value.__module__ == module.__name__
    ]


def _without_async(module: ModuleType, scorer: object | None) -> list[str]:
    """Returns the functions of the file that would be rollouts if they were written `async def`."""
    values = vars(module)
    return [
        name
        for name in _functions(module)
        if not (inspect.iscoroutinefunction(values[name]) or _is_scorer(name, values[name], scorer))
        and (_takes_rollout(values[name]) or name == ROLLOUT_NAME)
    ]


def _is_scorer(name: str, value: object, scorer: object | None) -> bool:
    """Returns whether an object is named like a scorer, or is the run's scorer. Functions with the
    same code count as the same scorer, because the file may have been imported twice."""
    if SCORE in (name, getattr(value, "__name__", "")) or value is scorer:
        return True
    are_functions = inspect.isfunction(value) and inspect.isfunction(scorer)
    return are_functions and value.__code__ == scorer.__code__  # type: ignore[attr-defined, union-attr]


def _is_own(value: object, module: ModuleType) -> bool:
    is_defined = getattr(value, "__module__", None) == module.__name__
    return is_defined or isinstance(value, RolloutProcessor)


def _is_imported(value: object) -> bool:
    """Returns whether an object comes neither from Holdfast nor from Python's standard library."""
    home = str(getattr(value, "__module__", "")).partition(".")[0]
    return home != "holdfast" and home not in sys.stdlib_module_names


def _takes_rollout(value: object) -> bool:
    """Returns whether an object takes a rollout. A processor does. A function does if its only
    required argument is called `t` or is annotated as a `Rollout`."""
    if not (inspect.isfunction(value) or _is_called_object(value)):
        return True
    parameters = inspect.signature(value).parameters.values()  # type: ignore[arg-type]
    wanted = [each for each in parameters if each.default is each.empty]
    if len(wanted) != 1:
        return False
    hint = wanted[0].annotation
    is_hinted = str(getattr(hint, "__name__", hint)).endswith("Rollout")
    return wanted[0].name == "t" or is_hinted


def _is_rollout(value: object) -> bool:
    if isinstance(value, type):
        return issubclass(value, RolloutProcessor)
    if isinstance(value, RolloutProcessor):
        return True
    is_async = inspect.iscoroutinefunction(value) or _is_called_object(value)
    return is_async and _takes_one_argument(value) and not is_group_scorer(value)


def _is_called_object(value: object) -> bool:
    """Returns whether an object is the user's and has `async def __call__(self, t)`."""
    if isinstance(value, RolloutProcessor):
        return False
    kind = type(value)
    is_ours = kind.__module__.partition(".")[0] == "holdfast"
    call = next((vars(base)["__call__"] for base in kind.__mro__ if "__call__" in vars(base)), None)
    return not is_ours and inspect.iscoroutinefunction(call)


def _takes_one_argument(value: object) -> bool:
    """Returns whether an object can be called with one argument."""
    try:
        inspect.signature(value).bind(None)  # type: ignore[arg-type]
    except TypeError:
        return False
    except ValueError:  # Some built-in callables have no signature.
        return True
    return True


def _takes_more(value: object) -> bool:
    """Returns whether an object is an async function that cannot be called with exactly one
    argument."""
    return inspect.iscoroutinefunction(value) and not _takes_one_argument(value)


def _checked(value: object, where: str) -> object:
    if _is_rollout(value):
        return value
    hint = ""
    if _takes_more(value):
        hint = f"; it takes {inspect.signature(value)}"  # type: ignore[arg-type]
    elif inspect.isfunction(value) and _takes_one_argument(value):
        hint = " (write `async def`)"
    raise UsageError(f"{where} is not a rollout: it wants {ROLLOUT}{hint}")


def _listed(candidates: dict[str, object]) -> str:
    return ", ".join(candidates) or "none"
