"""Converts values from Python code to their declared types, or refuses them in one line.

Callers may ignore annotations. A name is accepted for the member of a choice, a text for a path, a
list for a tuple, and a dict for a struct with these fields. Any other value raises a `UsageError`
that names the field or the argument, before the value is used.
"""

import functools
import inspect
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path, PurePath
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, TypeVar

from msgspec import Struct, StructMeta, structs

from holdfast.records.encoding.bounds import check_number
from holdfast.records.encoding.near_names import nearest
from holdfast.records.errors import HoldfastError, UsageError
from holdfast.records.failure import for_caller

Function = TypeVar("Function", bound=Callable[..., Any])
Values = TypeVar("Values", bound=Struct)

_WORDS: dict[object, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Path: "a path",
    PurePath: "a path",
}


_SECRET = ("key", "env", "headers")
"""Parts of the names of fields that may hold secrets."""


def function_name(function: object) -> str:
    """Returns the name by which messages call a function or another callable object."""
    return str(getattr(function, "__name__", type(function).__name__))


def check_fields(values: Struct, where: str = "") -> None:
    """Checks, in `__post_init__`, that each field has its declared type. `where` precedes the
    field's name in errors."""
    for field, kind in _hints(type(values)).items():
        value = as_declared(f"{where}{field}", getattr(values, field), kind)
        structs.force_setattr(values, field, value)


def checks_arguments(*, own: str = "", name: str = "") -> Callable[[Function], Function]:
    """Returns a decorator that checks the names of a function's arguments and converts the
    arguments to their declared types.

    `own` names the arguments that the function checks itself, with better messages. `name` is the
    function as users write it, for messages; "" stands for its qualified name. Async functions
    are the entry points for programs, so the decorator passes errors of async functions through
    `for_caller`.
    """

    def decorate(function: Function) -> Function:
        called = name or function.__qualname__.removesuffix(".__init__")
        arguments = _Arguments(function, inspect.signature(function), called, own.split())
        if inspect.iscoroutinefunction(function):

            async def call_async(*positional: Any, **named: Any) -> Any:
                bound = arguments.bind(positional, named)
                try:
                    return await function(*bound.args, **bound.kwargs)
                except HoldfastError as error:
                    raise for_caller(error)  # noqa: B904 - it is the same error

            return typing.cast("Function", functools.wraps(function)(call_async))

        def call(*positional: Any, **named: Any) -> Any:
            bound = arguments.bind(positional, named)
            return function(*bound.args, **bound.kwargs)

        return typing.cast("Function", functools.wraps(function)(call))

    return decorate


class NamedFields(StructMeta):
    """The metaclass of structs that users create. An unknown field raises a `UsageError` that names
    the field and a similar one."""

    if not typing.TYPE_CHECKING:  # Type checkers see the fields themselves.

        def __call__(self, *positional: Any, **named: Any) -> Any:
            check_names(named, self.__struct_fields__, f"{self.__name__} has no field")
            return super().__call__(*positional, **named)


class _Arguments(Struct, frozen=True):
    """The declared arguments of a function, and the check of a call."""

    function: Callable[..., Any]
    signature: inspect.Signature
    name: str
    own: list[str]

    def bind(self, positional: tuple[Any, ...], named: dict[str, Any]) -> inspect.BoundArguments:
        known = self.signature.parameters
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
            wrong = f"{self.name} has no argument"
            check_names(named, [each for each in known if each != "self"], wrong)
        try:
            bound = self.signature.bind(*positional, **named)
        except TypeError as error:
            raise UsageError(f"{self.name}: {error}") from None
        for argument, kind in _hints(self.function, *self.own).items():
            if argument in bound.arguments:
                value = as_declared(argument, bound.arguments[argument], kind)
                bound.arguments[argument] = value
        return bound


def struct_from(value: Mapping[str, object], kind: type[Values], where: str) -> Values:
    """Creates a struct from a dict. Raises `UsageError`, which names an unknown or missing
    field."""
    check_names(value, kind.__struct_fields__, f"{where} has no")
    needed = [field.name for field in structs.fields(kind) if field.required]
    if missing := [field for field in needed if field not in value]:
        raise UsageError(f"{where} needs {', '.join(missing)}")
    return kind(**value)


def check_names(names: Iterable[object], known: Collection[str], wrong: str) -> None:
    """Raises `UsageError` for a name that is not among `known`. `wrong` precedes the name in the
    error."""
    for name in names:
        if name not in known:
            short_for = (
                each for each in known if len(str(name)) > 2 and each.startswith(str(name))
            )
            near = nearest(str(name), known) or next(short_for, None)
            meant = f"is {near!r} meant?" if near else f"it has {', '.join(known)}"
            raise UsageError(f"{wrong} {name!r}; {meant}")


def as_declared(name: str, value: object, kind: Any) -> Any:
    """Converts `value` to `kind`, a type or an annotation. Raises `UsageError` with `name`."""
    kinds = _alternatives(kind)
    if any(_is_instance(value, each) for each in kinds):
        return value  # A text that may be a path or an address stays unchanged.
    for each in kinds:
        if each in (int, float) and _is_number(value, each):
            check_number(name, value)
            return value
        if each is Path and isinstance(value, str | PurePath) and value != "":
            return Path(value)
        if typing.get_origin(each) in (tuple, Sequence) and _is_list(value):
            return _items(name, value, each)
        if typing.get_origin(each) in (dict, Mapping) and isinstance(value, Mapping):
            return _entries(name, value, each)
        if _is_class(each, StrEnum):
            return _member(name, value, each)
    made = [each for each in kinds if _is_class(each, Struct)]
    if len(made) == 1 and isinstance(value, Mapping):
        return struct_from(value, made[0], name)
    names = [_word(each) for each in kinds if each is not NoneType]
    if len(made) == 1:
        names.insert(1 + kinds.index(made[0]), "a dict of its fields")
    raise UsageError(f"{name} must be {_joined(names)}, not {_shown(name, value)}")


@functools.cache
def _hints(of: Any, *but: str) -> dict[str, Any]:
    """Returns the declared types of a class or function by their names. Leaves out the names in
    `but` and variadic arguments."""
    if isinstance(of, type):
        return typing.get_type_hints(of)
    parameters = inspect.signature(of).parameters.values()
    rest = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    listed = {
        parameter.name: parameter.annotation
        for parameter in parameters
        if parameter.kind not in rest and parameter.name not in ("self", *but)
    }
    return typing.get_type_hints(
        SimpleNamespace(__annotations__=listed), inspect.unwrap(of).__globals__
    )


def _alternatives(kind: Any) -> list[Any]:
    """Returns the members of a union, with inner unions resolved; for another type, the type
    itself."""
    if typing.get_origin(kind) in (typing.Union, UnionType):
        return [each for member in typing.get_args(kind) for each in _alternatives(member)]
    return [kind]


def _is_instance(value: object, kind: Any) -> bool:
    origin = typing.get_origin(kind)
    if kind in (int, float) or origin in (tuple, Sequence, dict, Mapping):
        return False  # These types are checked in detail elsewhere.
    if getattr(kind, "_is_protocol", False):
        return all(hasattr(value, name) for name in _members(kind))
    if origin is Iterable:
        return isinstance(value, Iterable) and not isinstance(value, str | bytes)
    if origin is typing.Literal:
        return value in typing.get_args(kind)
    # `Any`, and annotations that are not classes, allow everything.
    return kind is Any or not isinstance(origin or kind, type) or isinstance(value, origin or kind)


def _is_number(value: object, kind: type) -> bool:
    return isinstance(value, int | kind) and not isinstance(value, bool)


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _is_class(kind: Any, of: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, of)


@functools.cache
def _members(protocol: type) -> list[str]:
    names = [name for each in protocol.__mro__ if each is not object for name in vars(each)]
    return [name for name in names if not name.startswith("_")]


def _items(name: str, value: Any, kind: Any) -> Any:
    item = typing.get_args(kind)[0]
    items = [as_declared(f"{name}[{at}]", each, item) for at, each in enumerate(value)]
    return tuple(items) if typing.get_origin(kind) is tuple else items


def _entries(name: str, value: Mapping[Any, Any], kind: Any) -> dict[Any, Any]:
    key, item = typing.get_args(kind)
    return {
        as_declared(f"a key of {name}", each, key): as_declared(
            f"{name}[{each!r:.100}]", held, item
        )
        for each, held in value.items()
    }


def _member(name: str, value: Any, kind: type[StrEnum]) -> StrEnum:
    try:
        return kind(value)
    except ValueError:
        raise UsageError(f"{name}={value!r:.100} is none of {', '.join(kind)}") from None


def _word(kind: Any) -> str:
    if kind in _WORDS:
        return _WORDS[kind]
    origin = typing.get_origin(kind) or kind
    if origin is Callable:
        return "a function"
    if origin in (tuple, Sequence, Iterable, list):
        return "a list"
    if origin in (Mapping, dict):
        return "a dict"
    name = f"{origin.__name__}(…)" if _is_class(origin, Struct) else origin.__name__
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def _joined(names: Iterable[str]) -> str:
    *first, last = dict.fromkeys(names)
    return f"{', '.join(first)} or {last}" if first else last


def _shown(name: str, value: object) -> str:
    """Returns the value as errors show it: only its type if the name suggests a secret."""
    is_secret = any(word in name for word in _SECRET)
    return f"of type {type(value).__name__}" if is_secret else f"{value!r:.100}"
