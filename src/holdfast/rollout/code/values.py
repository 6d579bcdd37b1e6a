"""Turns plain data into a text that is the same in every process.

None, numbers, texts, bytes, paths, patterns, and members of enums are plain. Tuples, lists, sets,
dicts, dataclasses, Structs, pydantic models, classes made with attrs, and namespaces are plain,
too, if they hold plain data. The order of sets and dicts does not matter. This module calls no user
code: no `repr`, no `==`, no property.
"""

import enum
import hashlib
import numbers
import os
import re
import tempfile
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import PurePath
from types import MemberDescriptorType
from typing import Any

_MOST = 100_000
"""The most values that are read within one value; a hundred characters count as one value. Reading
so many takes some tenths of a second."""
_DEEPEST = 100
_ATOMS = (enum.Enum, str, bytes, bytearray, PurePath, re.Pattern, numbers.Number, type(None))
_LISTS = (tuple, list, deque, set, frozenset)
_DATA = ("__dataclass_fields__", "__pydantic_fields__", "__attrs_attrs__", "__struct_fields__")
_NAMESPACES = (("types", "SimpleNamespace"), ("argparse", "Namespace"))


class _TooLarge(Exception):
    pass


class DataText:
    """Turns values into text.

    `other` returns the text of a value that is not plain. `folder` is the folder of the program.
    Paths within it and above it become relative to it, because the program may be in another folder
    on another machine.
    """

    def __init__(self, other: Callable[[Any], str], *, folder: str):
        self._other = other
        self._folder = folder
        self._left = 0
        self._open: list[int] = []

    def of(self, value: object) -> str:
        """Returns the text of the value, or only the name of its type if the value is too large to
        be read at each start."""
        around = self._left, self._open  # A value that is not plain may contain plain parts.
        self._left, self._open = _MOST, []
        try:
            return self._text(value)
        except _TooLarge:
            return type(value).__qualname__
        finally:
            self._left, self._open = around

    def _text(self, value: Any) -> str:
        self._left -= 1 + (str.__len__(value) // 100 if issubclass(type(value), str) else 0)
        if self._left < 0 or len(self._open) > _DEEPEST:
            raise _TooLarge
        if is_atom(value):
            return self._atom(value, type(value))
        if id(value) in self._open:
            return "itself"
        self._open.append(id(value))
        text = self._composed(value, type(value))
        self._open.pop()
        return text

    def _atom(self, value: Any, kind: type) -> str:
        if issubclass(kind, enum.Enum):
            return f"{kind.__qualname__}.{value.name}"
        if issubclass(kind, str):
            return str.__repr__(self._placed(str.__str__(value)))
        if issubclass(kind, PurePath):
            return f"Path {self._placed(str(value))}"
        if kind is re.Pattern:
            return f"Pattern {value.flags} {value.pattern!r}"
        # `repr` refuses very long integers.
        return hex(value) if kind is int else f"{kind.__qualname__} {value}"

    def _composed(self, value: Any, kind: type) -> str:
        for base in _LISTS:
            if issubclass(kind, base):
                texts = [self._text(each) for each in base.__iter__(value)]
                return digest_of(sorted(texts) if issubclass(base, set | frozenset) else texts)
        if issubclass(kind, dict):
            return f"dict {self._named(dict.items(value))}"
        if is_data(value):
            return f"{self._other(kind)} {self._named(stored(value).items())}"
        return self._other(value)

    def _named(self, items: Iterable[tuple[object, object]]) -> str:
        return digest_of(sorted(f"{self._text(key)}: {self._text(value)}" for key, value in items))

    def _placed(self, text: str) -> str:
        """Returns a path in a form that does not depend on the folder of the program. All temporary
        paths get the same text, because they differ at each start. Other text is returned as it is.
        """
        if not text.startswith(os.sep) or text == os.sep or "\n" in text:
            return text
        if self._folder and os.path.commonpath([text, self._folder]) in (self._folder, text):
            return os.path.relpath(text, self._folder)
        is_temporary = text.startswith(tempfile.gettempdir() + os.sep)
        return "a temporary path" if is_temporary else text


def digest_of(texts: Iterable[str]) -> str:
    """Returns a digest of the texts, of fixed length."""
    text = repr(list(texts)).encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()[:12]


def is_atom(value: object) -> bool:
    return issubclass(type(value), _ATOMS)


def is_plain(value: object) -> bool:
    return issubclass(type(value), (*_ATOMS, *_LISTS, dict))


def is_data(value: object) -> bool:
    """Returns whether the object is of a data class (such as a dataclass or a Struct) or a
    namespace."""
    kind = type(value)
    is_declared = any(hasattr(kind, mark) for mark in _DATA)
    return is_declared or (kind.__module__, kind.__qualname__) in _NAMESPACES


def stored(value: object) -> dict[str, object]:
    """Returns the contents of an object's `__dict__` and slots, without calling code of the
    object's class."""
    stored_values: dict[str, object] = {}
    for base in type(value).__mro__:
        for name, slot in vars(base).items():
            if isinstance(slot, MemberDescriptorType) and not name.startswith("__"):
                try:
                    stored_values[name] = slot.__get__(value)
                except AttributeError:  # The slot is not set.
                    continue
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:  # The object has only slots.
        return stored_values
    return stored_values | own if isinstance(own, dict) else stored_values
