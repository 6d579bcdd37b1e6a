"""The function that judges: how errors name it, and what it has to be, checked where it stands."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.evaluation.definition.definition import Mode
from holdfast.records.errors import UsageError

_NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def called_by(function: object) -> str:
    """`test_sums.py::test_sums`: its file and its name, as pytest writes them."""
    code = getattr(inspect.unwrap(function) if callable(function) else function, "__code__", None)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    name = name.rpartition("<locals>.")[2].replace(".", "::")
    return name if code is None else f"{Path(code.co_filename).name}::{name}"


@contextmanager
def naming(function: object) -> Iterator[None]:
    """What is wrong with an evaluation is said with its name."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{called_by(function)}: {error}") from None


def check_function(function: Callable[..., Any], mode: Mode) -> None:
    if not inspect.isfunction(function):
        raise UsageError(f"@evaluation_test decorates a function, not {function!r:.200}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(f"{function.__name__} yields; an evaluation returns its result")
    parameters = inspect.signature(function).parameters
    if mode.argument not in parameters:
        raise UsageError(
            f"in {mode} mode {function.__name__} wants a parameter named {mode.argument!r}; it "
            f"has ({', '.join(parameters)})"
        )
    found = parameters[mode.argument].kind
    if found in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        raise UsageError(f"{function.__name__}: {mode.argument!r} is a parameter of its own")


def never_returns(function: Callable[..., Any]) -> bool:
    """Whether its source has no `return` with a value; False where there is no source to read."""
    try:
        source = textwrap.dedent(inspect.getsource(function))
        (parsed,) = ast.parse(source).body
    except (OSError, TypeError, ValueError, SyntaxError, RecursionError, MemoryError):
        return False
    if not isinstance(parsed, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    waiting: list[ast.AST] = [*parsed.body]
    while waiting:  # A long chain of `elif` is a deep tree.
        node = waiting.pop()
        if isinstance(node, ast.Return) and node.value is not None:
            return False
        if not isinstance(node, _NESTED):
            waiting += ast.iter_child_nodes(node)
    return True
