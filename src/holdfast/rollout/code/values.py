"""Values: what code was made with, beside its source.

What a function closes over, its defaults, the arguments of a `functools.partial`, and the
attributes of an object that is called, or whose method is, decide what it does. Plain values count:
None, numbers, texts, bytes, paths, patterns, members of enums; tuples, lists, sets, dicts,
dataclasses, Structs, pydantic models and namespaces of them; functions, classes and objects of the
user's own, by the same rules. Sets and dicts have no order.

Anything else counts by its type alone: clients, models, locks, files. So does what is too large to
be read at each start, what the code itself changes (a counter, or a list that it appends to, is not
what it was made with; of a dict or an object, the part that it changes), and what is of this start
alone (see `starts`). Nor does a list, set or dict count that is handed on to others, who may change
it; functions of the user's own that only read it are no others.
Nothing of the user's is called: no `repr`, no `==`, no property.
"""

import enum
import functools
import hashlib
import pathlib
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from types import BuiltinFunctionType, CellType, FunctionType, MemberDescriptorType, MethodType
from typing import Any, TypeGuard, TypeVar

import msgspec

from holdfast.rollout.code.changes import MEMBERS, changed_by, handed_on_by
from holdfast.rollout.code.definitions import Subject, remembering
from holdfast.rollout.code.made_at_start import made_at_start
from holdfast.rollout.code.starts import is_of_this_start, without_start

_DEEPEST = 20
_MOST = 100_000
"""Values in one that is read: some tenths of a second."""
_LONGEST = 10_000_000
"""Characters in one."""
_BUILT_IN = (type(None), bool, complex, range, Decimal, Fraction, date, timedelta)
_PATHS = (pathlib.PosixPath, pathlib.WindowsPath, pathlib.PurePosixPath, pathlib.PureWindowsPath)
_FIELDS = ("__dataclass_fields__", "__pydantic_fields__")
_CHANGEABLE = (list, set, dict, bytearray, deque)
_NAMESPACES = (("types", "SimpleNamespace"), ("argparse", "Namespace"))
"""By name: argparse is not imported for this."""
_CACHED = functools.cached_property
_SETTINGS = (str, int, float)
"""Of a tool: its name, its contract, its limits."""
_PLAIN = (str, bytes, int, float, complex, tuple, list, set, frozenset, dict, type(None), enum.Enum)
"""What counts of a class."""
Named = tuple[str, object]
_T = TypeVar("_T")


class Values:
    """What one rollout, or scorer, was made with. `code` gives what stands for the source of a
    function or a class: None where it is not the user's own."""

    def __init__(self, code: "Callable[[object], bytes | None]"):
        self._code = code
        self._codes: dict[int, tuple[object, bytes | None]] = {}
        """By identity: what stands for code is read once, however many objects it makes."""
        self._open: list[object] = []
        """What is being read: a function may hold itself."""
        self._changed: dict[int, set[str]] = {}
        """Cells that one of the functions changes, and which parts of them ("": all)."""

    def code(self, subject: object) -> "bytes | None":
        if id(subject) not in self._codes:
            self._codes[id(subject)] = subject, self._code(subject)
        return self._codes[id(subject)][1]

    def of(self, candidate: object) -> list[tuple[str, str]]:
        """The name and the text of each."""
        with remembering():
            self._find_changed(candidate)
            return [(name, _Text(self).bounded(value)) for name, value in self.held(candidate)]

    def text(self, value: object) -> str:
        """Of a function, or of a tool: its name, its code, and what it was made with."""
        with remembering():
            self._find_changed(value)
            return _Text(self).bounded(value)

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
            yield from self._held_by_partial(candidate)
        elif _is(candidate, MethodType):
            owner = candidate.__self__
            yield "class", owner if isinstance(owner, type) else type(owner)
            yield from self.held(owner)
            yield from self.held(candidate.__func__)
        elif _is(candidate, FunctionType):
            yield from self._held_by_function(candidate)
        elif _is(candidate, type):
            yield from self._class_values(candidate)
        elif self.code(kind) is not None:
            own = list(_attributes(candidate))
            yield from own
            names = {name for name, _ in own} | set(_stored(candidate))
            yield from (each for each in self._class_values(kind) if each[0] not in names)
        else:
            # A function as a processor, or as a tool; one that a decorator made an object of.
            for name in ("function", "__wrapped__"):
                if (function := _stored(candidate).get(name)) is not None:
                    yield from self.held(function)

    def _held_by_partial(self, candidate: "functools.partial[object]") -> Iterator[Named]:
        function, first = candidate.func, 0
        if _is(function, MethodType):
            function, first = function.__func__, 1
        given = [(f"argument {at}", value) for at, value in enumerate(candidate.args, 1)]
        if _is(function, FunctionType):
            names = function.__code__.co_varnames[first : function.__code__.co_argcount]
            given = [
                (names[at] if at < len(names) else name, value)
                for at, (name, value) in enumerate(given)
            ]
            changes = _Changes.of(function)
            yield from changes.left([*given, *candidate.keywords.items()])
        else:
            yield from given
            yield from candidate.keywords.items()
        yield from self.held(candidate.func)

    def _held_by_function(self, function: FunctionType) -> Iterator[Named]:
        changes = _Changes.of(function)
        wrapped = vars(function).get("__wrapped__")
        named = [*_contents(self._unchanged(function)), *_defaults(function)]
        parts = {name: self._changed.get(id(cell), ()) for name, cell in _cells(function)}
        for name, value in changes.left(named):
            if wrapped is None or value is not wrapped:
                yield name, _without(value, parts.get(name, ()))
        own = [(name, value) for name, value in vars(function).items() if _is(value, _PLAIN)]
        yield from ((name, value) for name, value in own if not changes.touches(name))
        if wrapped is not None:
            yield from self.held(wrapped)

    def _unchanged(self, function: FunctionType) -> "list[tuple[str, CellType]]":
        return [
            (name, cell)
            for name, cell in _cells(function)
            if "" not in self._changed.get(id(cell), ())
        ]

    def _class_values(self, kind: type) -> Iterator[Named]:
        """Plain values that stand in a class of the user's own: one that is made in a function has
        others each time."""
        changes = _Changes.of(kind)
        for base in kind.__mro__[:-1]:
            if self.code(base) is None:
                continue
            plain = [
                (name, value)
                for name, value in sorted(vars(base).items())
                if not (name.startswith("__") or changes.touches(name)) and _is(value, _PLAIN)
            ]
            yield from changes.left(plain, mark=".")

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
            changes = _Changes.of(function)
            for name, cell in _cells(function):
                parts = changes.parts_of(name, held.get(name))
                if parts:
                    self._changed.setdefault(id(cell), set()).update(parts)
            waiting += [value for _, value in _contents(_cells(function))]


class _Changes:
    """What a function, or the methods of a class, change of what they hold."""

    def __init__(self, changed: "frozenset[str] | None", handed_on: frozenset[str]):
        self._known = changed is not None
        self._changed = changed or frozenset()
        self._handed_on = handed_on

    @classmethod
    def of(cls, subject: Subject) -> "_Changes":
        changed = changed_by(subject)
        return cls(None if changed is None else changed | _set(subject), handed_on_by(subject))

    def parts_of(self, name: str, value: object) -> set[str]:
        """Which parts of it are changed; "": all of it. Elsewhere, what can be changed may be."""
        found = {each.partition("/")[2] for each in self._changed if each.partition("/")[0] == name}
        is_given = name in self._handed_on or (name.startswith(".") and "self" in self._handed_on)
        if (not self._known or is_given) and _is(value, _CHANGEABLE):
            found.add("")
        given = (each.partition("/") for each in self._handed_on)
        parts = {part for of, _, part in given if of == name and part}
        return found | {part for part in parts if _is_changeable(value, part)}

    def touches(self, part: str) -> bool:
        """Whether something of this name is changed, of whatever it is a part."""
        return any(each.partition("/")[2] == part for each in self._changed)

    def left(self, named: Iterable[Named], *, mark: str = "") -> Iterator[Named]:
        """Those that are not changed, without the parts that are."""
        for name, value in named:
            parts = self.parts_of(f"{mark}{name}", value)
            if "" not in parts:
                yield name, _without(value, parts)


def _set(subject: Subject) -> frozenset[str]:
    """What is set to something of this start, or kept when it was first computed."""
    if isinstance(subject, FunctionType):
        return made_at_start(subject)
    owners = subject.__mro__[:-1]
    kept = {f".{n}" for base in owners for n, each in vars(base).items() if _is(each, _CACHED)}
    return frozenset(kept).union(*map(made_at_start, owners))


def _is_changeable(value: object, part: str) -> bool:
    if part == MEMBERS:
        return _is(value, _CHANGEABLE)
    held = value if _is(value, dict) else _stored(value)
    return _is(dict.get(held, part.removesuffix(MEMBERS)), _CHANGEABLE)


def _left(named: Iterable[Named], left_out: Collection[str]) -> list[Named]:
    """Those that count, without what of them does not."""
    return [
        (name, _without(value, (MEMBERS,)) if f"{name}{MEMBERS}" in left_out else value)
        for name, value in named
        if name not in left_out
    ]


class _Part(msgspec.Struct):
    """A value without some of its attributes, or keys."""

    of: object
    without: frozenset[str]


def _without(value: object, parts: Iterable[str]) -> object:
    left_out = frozenset(parts)
    if type(value) is _Part:
        return _Part(value.of, value.without | left_out)
    return _Part(value, left_out) if left_out else value


class _TooLarge(Exception):
    pass


class _Text:
    """Of one value: the same in every process, and no longer than is read in a moment."""

    def __init__(self, values: Values):
        self._values = values
        self._left, self._room = _MOST, _LONGEST
        self._open: list[int] = []
        """What is being read: it may hold itself."""
        self._left_out: dict[int, frozenset[str]] = {}
        """By identity: names of parts that do not count."""
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
        if type(value) is _Part:
            self._left_out[id(value.of)] = value.without
            value = value.of
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
        kind, left_out = type(value), self._left_out.get(id(value), ())
        member_of = self._type_or_text if MEMBERS in left_out else self._of
        if (members := _members(value)) is not None:
            texts = [member_of(member, depth + 1) for member in members]
            return _digest(sorted(texts) if issubclass(kind, set | frozenset) else texts)
        if issubclass(kind, dict):
            items: Any = dict.items(value)  # type: ignore[arg-type]
            texts_of = _left([each for each in items if _is(each[0], str)], left_out)
            items = [*texts_of, *(each for each in items if not _is(each[0], str))]
            texts = [_digest([member_of(each, depth + 1) for each in item]) for item in items]
            return f"dict {_digest(sorted(texts))}"
        if (fields := _fields(kind)) is not None:
            stored = _stored(value)
            held: Iterable[Named]
            held = _left([(name, stored.get(name)) for name in fields], left_out)
            if self._values.code(kind) is not None:
                held = _Changes.of(kind).left(held, mark=".")
            return kind.__qualname__ + self._named(held, depth)
        if (kind.__module__, kind.__qualname__) in _NAMESPACES:
            named = _left(sorted(_stored(value).items()), left_out)
            return kind.__qualname__ + self._named(named, depth)
        return self._called(value, depth)

    def _type_or_text(self, member: object, depth: int) -> str:
        """Of what is handed on: what can be changed may be changed there."""
        is_changeable = _is(member, _CHANGEABLE)
        return type(member).__qualname__ if is_changeable else self._of(member, depth)

    def _plain(self, value: Any) -> "str | None":
        kind: type = type(value)
        if issubclass(kind, enum.Enum):
            return f"{kind.__qualname__}.{_stored(value).get('_name_')}"
        if kind in _BUILT_IN:
            return repr(value)
        if kind in _PATHS:
            return f"Path {without_start(str(value))}"
        if kind is re.Pattern:
            return f"Pattern {value.flags} {value.pattern!r}"
        if (number := _number(value)) is not None:
            return number
        for text in (str, bytes, bytearray):
            if issubclass(kind, text):
                self._room -= text.__len__(value)
                if self._room < 0:
                    raise _TooLarge
                shown = without_start(str.__str__(value)) if text is str else value
                return text.__repr__(shown)
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
        elif is_tool(value):
            stored = sorted(_stored(value).items())
            own = [each for each in stored if each[0][0] != "_" and _is(each[1], _SETTINGS)]
            return kind.__qualname__ + self._named([("", stored_function(value)), *own], depth)
        elif (wrapped := _stored(value).get("__wrapped__")) is not None:  # As by `lru_cache`.
            return f"{kind.__qualname__} {self._of(wrapped, depth + 1)}"
        elif self._values.code(kind) is not None or _is_called(kind):
            name = kind.__qualname__
        else:
            return kind.__qualname__
        left_out = self._left_out.get(id(value), ())
        held = _left(self._values.held(value), left_out)
        return name + self._named(held, depth)

    def _named(self, held: Iterable[Named], depth: int) -> str:
        texts = [text for name, value in held for text in (name, self._of(value, depth + 1))]
        return f" {_digest(texts)}"


def _timestamp(moment: datetime) -> float:
    try:
        return moment.timestamp()
    except (ValueError, OverflowError, OSError):  # Before there were clocks.
        return 0.0


def _number(value: Any) -> "str | None":
    """Also a moment, which is one of a clock, and a number of numpy's."""
    kind: type = type(value)
    if kind.__module__ == "numpy" and "item" in dir(kind) and getattr(value, "ndim", 1) == 0:
        value = value.item()
        kind = type(value)
    if kind is datetime:
        return "time" if is_of_this_start(_timestamp(value)) else repr(value)
    if issubclass(kind, int):
        return "time" if is_of_this_start(int(value)) else int.__format__(value, "#x")
    if issubclass(kind, float):
        return "time" if is_of_this_start(float(value)) else float.__repr__(value)
    return None


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
    with remembering():
        return _Text(Values(lambda _: None)).is_short(value)


def _is(value: object, kind: "type[_T] | tuple[type[_T], ...]") -> "TypeGuard[_T]":
    """As `isinstance`, which asks an object for its `__class__`: that may be the user's code."""
    return issubclass(type(value), kind)


def whole_identity(value: object) -> "str | None":
    """The `identity` of an object that is nothing beside it, whichever file it is made in: its
    class says so (`IS_ITS_IDENTITY`), for itself and not for those that are made of it."""
    is_whole = vars(type(value)).get("IS_ITS_IDENTITY") is True
    return value.identity if is_whole else None  # type: ignore[attr-defined]


def is_tool(value: object) -> bool:
    """Whether it is a function of the user's in an object of ours, as a tool is."""
    is_ours = type(value).__module__.partition(".")[0] == "holdfast"
    return is_ours and stored_function(value) is not None


def stored_function(value: object) -> object:
    return _stored(value).get("function")


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
    yield from _Changes.of(type(value)).left(sorted(_stored(value).items()), mark=".")


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
    for kind in (tuple, list, set, frozenset, deque):
        if issubclass(type(value), kind):
            return kind.__iter__(value)
    return None
