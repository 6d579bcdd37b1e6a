"""Named: the objects with an identity of their own, such as judges, that code reaches by name."""

import functools
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType

from holdfast.rollout.code.files import is_own

_MOST = 10_000
"""Objects that are looked at."""


def identified_in(*candidates: object) -> list[object]:
    """Those that the candidates are, hold or name, directly or through functions, modules and
    objects of the user's own; each once."""
    waiting, seen = list(candidates), dict[int, object]()
    found: list[object] = []
    while waiting and len(seen) < _MOST:
        value = waiting.pop(0)
        if id(value) not in seen:
            seen[id(value)] = value
            if getattr(type(value), "IS_ITS_IDENTITY", False):
                found.append(value)
            else:
                waiting += _reached(value)
    return found


def _reached(value: object) -> Iterable[object]:
    if isinstance(value, FunctionType):
        return _reached_by(value) if is_own(value) else [vars(value).get("__wrapped__")]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, list | tuple | set | frozenset):
        return value
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, type):
        return vars(value).values() if is_own(value) else ()
    return [type(value), *vars(value).values()] if _is_own_object(value) else ()


def _is_own_object(value: object) -> bool:
    return hasattr(value, "__dict__") and is_own(type(value))


def _reached_by(function: FunctionType) -> Iterator[object]:
    names = set(_names(function.__code__))
    for name in sorted(names & function.__globals__.keys()):
        value = function.__globals__[name]
        if isinstance(value, ModuleType) and is_own(value):
            yield from (vars(value)[each] for each in sorted(names & vars(value).keys()))
        else:
            yield value
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # Not bound yet.
            continue
    yield from (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    yield vars(function).get("__wrapped__")


def _names(code: CodeType) -> Iterator[str]:
    """The names that it reads, also in functions inside of it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
