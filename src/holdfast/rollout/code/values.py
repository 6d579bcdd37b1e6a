"""Values: what code was made with, beside its source.

What a function closes over, its defaults, the arguments of a `functools.partial`, and the
attributes of an object that is called, or whose method is, decide what it does. Plain values count:
None, numbers, texts, bytes, paths, patterns, members of enums; tuples, lists, sets, dicts,
dataclasses, Structs, pydantic models and namespaces of them; functions, classes and objects of the
user's own, by the same rules. Sets and dicts have no order.

Anything else counts by its type alone: clients, models, locks, files. So does what is too large to
be read at each start, what the code itself changes (a counter, or a list that it appends to, is not
what it was made with), and what is set to the time or to an id that is drawn. Nor does a list, set
or dict count that is handed on to others, who may change it; functions of the user's own that only
read it are no others.
Nothing of the user's is called: no `repr`, no `==`, no property.
"""

import enum
import functools
import hashlib
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction
from types import BuiltinFunctionType, CellType, FunctionType, MemberDescriptorType, MethodType
from typing import Any, TypeGuard, TypeVar

import msgspec

from holdfast.rollout.code.definitions import changed_by, handed_on_by, made_at_start

_DEEPEST = 20
_MOST = 100_000
"""Values in one that is read: some tenths of a second."""
_LONGEST = 10_000_000
"""Characters in one."""
_BUILT_IN = (type(None), bool, complex, range, Decimal, Fraction, date, timedelta)
_PATHS = (pathlib.PosixPath, pathlib.WindowsPath, pathlib.PurePosixPath, pathlib.PureWindowsPath)
_FIELDS = ("__dataclass_fields__", "__pydantic_fields__")
_CHANGEABLE = (list, set, dict, bytearray)
_NAMESPACES = (("types", "SimpleNamespace"), ("argparse", "Namespace"))
"""By name: argparse is not imported for this."""
_CACHED = functools.cached_property
Named = tuple[str, object]
_T = TypeVar("_T")


class Values:
    """What one rollout, or scorer, was made with. `code` gives what stands for the source of a
    function or a class: None where it is not the user's own."""

    def __init__(self, code: "Callable[[object], bytes | None]"):
        self.code = code
        self._open: list[object] = []
        """What is being read: a function may hold itself."""
        self._changed: set[int] = set()
        """Cells that one of the functions changes: they count in none."""

    def of(self, candidate: object) -> list[tuple[str, str]]:
        """The name and the text of each."""
        self._find_changed(candidate)
        return [(name, _Text(self).bounded(value)) for name, value in self.held(candidate)]

    def held(self, candidate: object) -> list[Named]:
        if any(candidate is one for one in self._open):
            return []
        self._open.append(candidate)
        try:
            return list(self._held(candidate))
        finally:
            self._open.pop()

    def _held(self, candidate: object) -> Iterator[Named]:
        kind = type(candidate)
        if _is(candidate, functools.partial):
            yield from ((f"argument {at}", value) for at, value in enumerate(candidate.args, 1))
            yield from candidate.keywords.items()
            yield from self.held(candidate.func)
        elif _is(candidate, MethodType):
            owner = candidate.__self__
            yield "class", owner if isinstance(owner, type) else type(owner)
            yield from self.held(owner)
            yield from self.held(candidate.__func__)
        elif _is(candidate, FunctionType):
            yield from self._held_by_function(candidate)
        elif _is(candidate, type):
            return
        elif self.code(kind) is not None:
            yield from _attributes(candidate)
        else:
            # A function as a processor, or as a tool; one that a decorator made an object of.
            for name in ("function", "__wrapped__"):
                if (function := _stored(candidate).get(name)) is not None:
                    yield from self.held(function)

    def _held_by_function(self, function: FunctionType) -> Iterator[Named]:
        changed, handed_on = changed_by(function), handed_on_by(function)
        left_out = (changed or frozenset()) | made_at_start(function)
        wrapped = vars(function).get("__wrapped__")
        cells = [(name, cell) for name, cell in _cells(function) if id(cell) not in self._changed]
        for name, value in (*_contents(cells), *_defaults(function)):
            may_change = (changed is None or name in handed_on) and _is(value, _CHANGEABLE)
            if value is not wrapped and not may_change and name not in left_out:
                yield name, value
        if wrapped is not None:
            yield from self.held(wrapped)

    def _find_changed(self, candidate: object) -> None:
        """In the functions that it holds, too: those that were made together share a counter."""
        waiting, seen = [candidate], set[int]()
        while waiting:
            function = waiting.pop()
            if _is(function, functools.partial):
                waiting.append(function.func)
            if not _is(function, FunctionType) or id(function) in seen:
                continue
            seen.add(id(function))
            held = dict(_contents(_cells(function)))
            changed = set(changed_by(function) or ())
            changed |= {n for n in handed_on_by(function) if _is(held.get(n), _CHANGEABLE)}
            self._changed |= {id(cell) for name, cell in _cells(function) if name in changed}
            waiting += [value for _, value in _contents(_cells(function))]


class _TooLarge(Exception):
    pass


class _Text:
    """Of one value: the same in every process, and no longer than is read in a moment."""

    def __init__(self, values: Values):
        self._values = values
        self._left, self._room = _MOST, _LONGEST
        self._open: list[int] = []
        """What is being read: it may hold itself."""
        self._texts: dict[int, tuple[object, str]] = {}
        """By identity, with the value itself, which stays alive: what many hold is read once."""

    def bounded(self, value: object) -> str:
        try:
            return self._of(value, 0)
        except _TooLarge:
            return type(value).__qualname__

    def is_short(self, value: object) -> bool:
        try:
            self._of(value, 0)
        except _TooLarge:
            return False
        return True

    def _of(self, value: object, depth: int) -> str:
        self._left -= 1
        if self._left < 0:
            raise _TooLarge
        if depth > _DEEPEST:
            return type(value).__qualname__
        if (plain := self._plain(value)) is not None:
            return plain
        if id(value) in self._texts:
            return self._texts[id(value)][1]
        if id(value) in self._open:
            return f"the one {len(self._open) - self._open.index(id(value))} above"
        self._open.append(id(value))
        text = self._composed(value, depth)
        self._open.pop()
        self._texts[id(value)] = value, text
        return text

    def _composed(self, value: object, depth: int) -> str:
        kind = type(value)
        if (members := _members(value)) is not None:
            texts = [self._of(member, depth + 1) for member in members]
            return _digest(sorted(texts) if issubclass(kind, set | frozenset) else texts)
        if issubclass(kind, dict):
            items: Any = dict.items(value)  # type: ignore[arg-type]
            texts = [_digest([self._of(each, depth + 1) for each in item]) for item in items]
            return f"dict {_digest(sorted(texts))}"
        if (fields := _fields(kind)) is not None:
            stored = _stored(value)
            held: Iterable[Named] = [(name, stored.get(name)) for name in fields]
            return kind.__qualname__ + self._named(held, depth)
        if (kind.__module__, kind.__qualname__) in _NAMESPACES:
            return kind.__qualname__ + self._named(sorted(_stored(value).items()), depth)
        return self._called(value, depth)

    def _plain(self, value: Any) -> "str | None":
        kind: type = type(value)
        if issubclass(kind, enum.Enum):
            return f"{kind.__qualname__}.{_stored(value).get('_name_')}"
        if kind in _BUILT_IN:
            return repr(value)
        if kind in _PATHS:
            return f"Path {value}"
        if kind is re.Pattern:
            return f"Pattern {value.flags} {value.pattern!r}"
        if issubclass(kind, int):
            return int.__format__(value, "#x")
        if issubclass(kind, float):
            return float.__repr__(value)
        for text in (str, bytes, bytearray):
            if issubclass(kind, text):
                self._room -= text.__len__(value)
                if self._room < 0:
                    raise _TooLarge
                return text.__repr__(value)
        return None

    def _called(self, value: object, depth: int) -> str:
        """Functions, classes, and objects of the user's that are called; else the type."""
        kind = type(value)
        if _is(value, functools.partial):
            name = self._of(value.func, depth + 1)
        elif _is(value, MethodType):
            name = self._of(value.__func__, depth + 1)
        elif _is(value, (FunctionType, type)):
            code = self._values.code(value)
            name = f"{_name(value)} {'' if code is None else code.hex()}"
            if code is None:
                return name
        elif _is(value, BuiltinFunctionType):
            return value.__qualname__
        elif (whole := whole_identity(value)) is not None:
            return f"{kind.__qualname__} {whole}"
        elif self._values.code(kind) is not None or _is_called(kind):
            name = kind.__qualname__
        else:
            return kind.__qualname__
        return name + self._named(self._values.held(value), depth)

    def _named(self, held: Iterable[Named], depth: int) -> str:
        texts = [text for name, value in held for text in (name, self._of(value, depth + 1))]
        return f" {_digest(texts)}"


def _digest(texts: Iterable[str]) -> str:
    """Of a fixed length, however deep what they stand for is."""
    found = hashlib.sha256()
    for text in texts:
        piece = text.encode("utf-8", "surrogatepass")
        found.update(b"%d " % len(piece))
        found.update(piece)
    return found.hexdigest()


def is_short(value: object) -> bool:
    """Whether it is read in a moment."""
    return _Text(Values(lambda _: None)).is_short(value)


def _is(value: object, kind: "type[_T] | tuple[type[_T], ...]") -> "TypeGuard[_T]":
    """As `isinstance`, which asks an object for its `__class__`: that may be the user's code."""
    return issubclass(type(value), kind)


def whole_identity(value: object) -> "str | None":
    """The `identity` of an object that is nothing beside it, whichever file it is made in: its
    class says so (`IS_ITS_IDENTITY`), for itself and not for those that are made of it."""
    is_whole = vars(type(value)).get("IS_ITS_IDENTITY") is True
    return value.identity if is_whole else None  # type: ignore[attr-defined]


def _is_called(kind: type) -> bool:
    return any("__call__" in vars(base) for base in kind.__mro__)


def _name(subject: Any) -> str:
    return str(subject.__qualname__)


def _cells(function: FunctionType) -> list[tuple[str, CellType]]:
    return list(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


def _contents(cells: Iterable[tuple[str, CellType]]) -> Iterator[Named]:
    for name, cell in cells:
        try:
            yield name, cell.cell_contents
        except ValueError:  # Not bound yet.
            continue


def _defaults(function: FunctionType) -> Iterator[Named]:
    code, defaults = function.__code__, function.__defaults__ or ()
    named = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    yield from zip(named, defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()


def _attributes(value: object) -> Iterator[Named]:
    """Those that its methods leave alone."""
    changed: set[str] = set()
    handed_on: set[str] = set()
    known = True
    for base in type(value).__mro__[:-1]:
        found = changed_by(base)
        known = known and found is not None
        changed |= (found or set()) | made_at_start(base)
        changed |= {f".{name}" for name, one in vars(base).items() if _is(one, _CACHED)}
        if not base.__module__.startswith("holdfast."):  # What is ours changes nothing of theirs.
            handed_on |= handed_on_by(base)
    for name, held in sorted(_stored(value).items()):
        is_handed_on = f".{name}" in handed_on or "self" in handed_on
        may_change = (not known or is_handed_on) and _is(held, _CHANGEABLE)
        if f".{name}" not in changed and not may_change:
            yield name, held


def _stored(value: object) -> dict[str, object]:
    """What an object holds, in its `__dict__` and in slots, read past anything of its class."""
    found: dict[str, object] = {}
    for base in type(value).__mro__:
        for name, slot in vars(base).items():
            if isinstance(slot, MemberDescriptorType):
                try:
                    found[name] = slot.__get__(value)
                except AttributeError:  # Not set.
                    continue
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:  # It has slots alone.
        return found
    return found | own if isinstance(own, dict) else found


def _fields(kind: type) -> "list[str] | None":
    if issubclass(kind, msgspec.Struct):
        return list(kind.__struct_fields__)
    for base in kind.__mro__:
        for mark in _FIELDS:
            if isinstance(found := vars(base).get(mark), dict):
                return list(found)
    return None


def _members(value: Any) -> "Iterator[object] | None":
    for kind in (tuple, list, set, frozenset):
        if issubclass(type(value), kind):
            return kind.__iter__(value)
    return None
