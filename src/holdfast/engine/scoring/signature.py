"""What a scorer has to be, checked before anything is sampled: a function of one argument."""

import functools
import inspect

from holdfast.records.errors import UsageError

SINGLE = "one argument, the finished trajectory (its task is trajectory.task)"
GROUP = "one argument, the list of a task's finished trajectories"


def check_scorer(function: object, *, is_group: bool) -> None:
    """Raises `UsageError` for what cannot be called with what a scorer is given, or would return
    no score."""
    wants = GROUP if is_group else SINGLE
    if inspect.iscoroutine(function):
        function.close()
        raise UsageError(
            f"the scorer was called already: give the function itself, {function.__name__}"
        )
    if not callable(function):
        raise UsageError(f"scorer is a function of one argument, not {function!r:.100}")
    if isinstance(function, type):
        raise UsageError(f"{function.__name__} is a class, and no scorer; give an instance")
    name = name_of(function)
    if _yields(function):
        raise UsageError(f"scorer {name} yields; a scorer returns its score")
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # Some built-in callables have none.
    try:
        signature.bind(None)
    except TypeError as error:
        raise UsageError(
            f"scorer {name}{_plain(signature)}: {error}; a scorer takes {wants}"
        ) from None


def name_of(function: object) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _yields(function: object) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    called = function if inspect.isroutine(function) else getattr(function, "__call__", None)  # noqa: B004
    return inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called)


def _plain(signature: inspect.Signature) -> str:
    return f"({', '.join(signature.parameters)})"
