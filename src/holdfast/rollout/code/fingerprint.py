"""Fingerprints of code. They show whether a rollout or scorer is the same when a run continues."""

import functools
import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, TypeGuard, TypeVar

from holdfast.records.run import Code
from holdfast.rollout.code.source import (
    Scope,
    SourceText,
    class_source,
    function_source,
    import_own,
    is_own,
    scope_of,
    variable_source,
)
from holdfast.rollout.code.values import DataText, digest_of, is_atom, is_data, is_plain, stored

_NAMED = (FunctionType, BuiltinFunctionType, MethodType, type)
_CALLED = (FunctionType, MethodType, functools.partial)
_Kind = TypeVar("_Kind")
_being_read: "ContextVar[frozenset[int]]" = ContextVar(
    "being_read", default=frozenset()
)  # immutable
"""The ids of the objects whose `identity` is being read at the moment. An `identity` may compute
the fingerprint of its own object, and this set prevents an endless recursion."""


class Parts:
    """The parts of a rollout, a scorer or a judge, with a digest of each part by its name.

    One part is the source of its function. Other parts are the sources of the functions, classes
    and variables of the user's own modules that this source names, directly or through other
    definitions. Arguments and variables are included by their values if these are plain data (see
    `values`). Any other object is included by its type and its `identity`.
    """

    def __init__(self, home: object):
        """Gives the parts from the module of the object `home` names without the module's name."""
        self.digests: dict[str, str] = {}
        self.files: dict[str, str] = {}
        """The name of the file with each part's definition, by the part's name. Parts without a
        definition are left out."""
        self.identified: list[object] = []
        """The objects that have an identity, such as judges."""
        self._seen: dict[object, object] = {}
        """The objects that were read, by id. They are kept so that no other object gets the same
        id."""
        self._waiting: list[tuple[Any, bool]] = []
        self._defined: dict[str, str] = {}
        """The name of the file with each definition, by the definition's name."""
        self._home = str(innermost(home).__module__)
        folder = os.path.dirname(os.path.realpath(_file_of(self._home)))
        self._text = DataText(self._mark, folder=folder)

    @property
    def digest(self) -> str:
        return digest_of(map(repr, sorted(self.digests.items())))

    @property
    def code(self) -> Code:
        return Code(self.digests, self.files)

    def add(self, candidate: object, *, decorated: bool = True) -> None:
        """Adds a rollout or a scorer. Its own source is included even if it is not the user's
        code."""
        if _is_tool(candidate) and stored(candidate).keys() == {"function"}:
            candidate = stored(candidate)["function"]  # The function of a function processor.
        if _is(candidate, FunctionType) and not decorated:
            self._add_function(candidate, function_source(candidate, decorated=False))
        elif is_plain(candidate):
            self._put_values("", {"value": candidate})
        else:
            self._follow(candidate, is_root=True)
        self._read_waiting()

    def add_values(self, values: Mapping[str, object]) -> None:
        """Adds the arguments of a function."""
        self._put_values("", values)
        self._read_waiting()

    def put(self, name: str, text: str) -> None:
        self.include(Code({name: digest_of([text])}, {name: self._file_of_part(name)}))

    def include(self, code: Code) -> None:
        """Adds the given parts and the names of their files."""
        for name, digest in code.parts.items():
            label, number = name, 1
            while self.digests.get(label, digest) != digest:  # Another part already has this name.
                number += 1
                label = f"{name} ({number})"
            self.digests[label] = digest
            if file := code.files.get(name):
                self.files[label] = file

    def _put_values(self, of: str, values: Mapping[str, object]) -> None:
        for name, value in values.items():
            self.put(f"{of}.{name}" if of else name, self._text.of(value))

    def _label(self, module: str, name: str) -> str:
        """Returns the name of a definition, with at most the last component of its module's name.
        The first components are left out because the package may be moved into another package."""
        label = name if module == self._home else f"{module.rpartition('.')[2]}.{name}"
        self._defined[label] = os.path.basename(_file_of(module))
        return label

    def _file_of_part(self, name: str) -> str:
        """Returns the name of the file with the definition that the part belongs to, or "" if there
        is none."""
        while name and name not in self._defined:
            name = name.rpartition(".")[0]
        return self._defined.get(name, "")

    # --- what stands behind a value

    def _mark(self, value: Any) -> str:
        """Returns the text that stands for a non-plain object within plain data."""
        self._follow(value)
        held = stored(value) if _is_tool(value) else {}
        settings = {name: each for name, each in sorted(held.items()) if is_atom(each)}
        named: Any = value if _is(value, _NAMED) else type(value)
        return f"{named.__qualname__} {identity_of(value)} {settings}"

    def _follow(self, value: Any, *, is_root: bool = False) -> None:
        """Queues an object that is not plain data. Each object is read once."""
        if id(value) not in self._seen:
            self._seen[id(value)] = value
            self._waiting.append((value, is_root))

    def _read_waiting(self) -> None:
        while self._waiting:
            value, is_root = self._waiting.pop(0)
            self._read(value, is_root=is_root)

    def _read(self, value: Any, *, is_root: bool) -> None:
        if _is(value, FunctionType):
            self._read_function(value, is_root=is_root)
        elif _is(value, type):
            self._read_class(value, is_root=is_root)
        elif _is(value, functools.partial):
            arguments = {f"argument {number}": each for number, each in enumerate(value.args, 1)}
            self._put_values(innermost(value).__name__, arguments | value.keywords)
            self._follow(value.func, is_root=is_root)
        elif _is(value, MethodType):
            self.put("method", value.__func__.__qualname__)
            self._follow(value.__func__, is_root=is_root)
            self._follow(value.__self__, is_root=is_root)
        elif not _is(value, ModuleType):
            self._read_object(value, is_root=is_root)

    def _read_function(self, function: FunctionType, *, is_root: bool) -> None:
        wrapped = vars(function).get("__wrapped__")
        if wrapped is not None:
            self._follow(wrapped, is_root=is_root)
        if is_own(function) or (is_root and wrapped is None):
            self._add_function(function, function_source(function))
        else:  # A library's decorator may hold a function of the user.
            for each in _closure(function).values():
                if _is(each, FunctionType):
                    self._follow(each)

    def _add_function(self, function: FunctionType, source: SourceText) -> None:
        label = self._label(str(function.__module__), function.__qualname__)
        self.put(label, source.text)
        self._put_values(label, _defaults(function))
        self._add_named(label, source, function.__globals__, closure=_closure(function))

    def _read_class(self, kind: type, *, is_root: bool) -> None:
        for base in kind.__mro__[1:]:
            self._follow(base)
        if not is_root and not is_own(kind):
            return
        label, source = self._label(kind.__module__, kind.__qualname__), class_source(kind)
        self.put(label, source.text)
        own = {name: each for name, each in vars(kind).items() if not name.startswith("__")}
        plain = {name: each for name, each in own.items() if is_plain(each)}
        self._put_values(label, plain)
        closure: dict[str, Any] = {}
        for each in vars(kind).values():
            closure |= _closure(each) if _is(each, FunctionType) else {}
        self._add_named(label, source, scope_of(kind), closure=closure)

    def _read_object(self, value: Any, *, is_root: bool) -> None:
        held, kind, identity = stored(value), type(value), identity_of(value)
        if "__wrapped__" in held or _is_tool(value):
            self._follow(held.get("__wrapped__", held.get("function")), is_root=is_root)
        if identity:
            self.identified.append(value)
        if identity and is_root:
            self.put(f"{innermost(value).__qualname__}.identity", identity)
        # The identity describes a judge completely. It does not describe a subclass.
        if vars(kind).get("IS_ITS_IDENTITY") is True:
            return
        self._follow(kind, is_root=is_root)
        if is_root and not identity and _is_readable(kind):
            self._put_values("", held)
        elif is_own(kind):
            for name, each in held.items():
                self._read_attribute(f"{kind.__qualname__}.{name}", each)

    def _read_attribute(self, label: str, value: object) -> None:
        """Adds the value of an object's attribute if an object with an `identity` is in it, and
        queues the user's objects and functions in it."""
        objects = _objects_in(value)
        if any(map(identity_of, objects)):
            self._put_values("", {label: value})
        for each in objects:
            if is_own(type(each)) or _is(each, _CALLED):
                self._follow(each)

    # --- what is named

    def _add_named(self, label: str, source: SourceText, scope: Scope, *, closure: Scope) -> None:
        around = {**_imports(source), **closure}
        for name in sorted(source.names):
            head, *rest = name.split(".")
            if head in around and _is(around[head], _NAMED):
                self._put_values(label, {head: around[head]})
            elif head in around:
                self._add_attribute(f"{label}.{head}", around[head], rest)
            elif head in scope and not head.startswith("__"):
                self._add_variable(head, scope, rest)

    def _add_variable(self, name: str, scope: Scope, rest: list[str]) -> None:
        """Adds a module variable. Plain data, named definitions and objects with an `identity` are
        added as such. For any other object, the statements that set the variable are added, too."""
        label, value = self._label(str(scope.get("__name__")), name), scope[name]
        is_read = self._add_attribute(label, value, rest)
        if is_read or identity_of(value) or (name, id(scope)) in self._seen:
            return
        self._seen[name, id(scope)] = scope
        source, there = variable_source(name, scope)
        self.put(label, source.text)
        self._add_named(label, source, there, closure={})

    def _add_attribute(self, label: str, value: object, rest: list[str]) -> bool:
        """Adds the object at the attribute path `rest` of `value`. Returns False if `value` is
        neither a module, nor a named definition, nor plain data, so that its source has to be
        added, too."""
        if _is(value, ModuleType):
            if rest and is_own(value) and rest[0] in vars(value):
                self._add_variable(rest[0], vars(value), rest[1:])
            return True
        if rest and (is_data(value) or is_own(type(value))) and rest[0] in stored(value):
            self._follow(type(value))
            return self._add_attribute(f"{label}.{rest[0]}", stored(value)[rest[0]], rest[1:])
        if _is(value, _NAMED):
            self._follow(value)
            return True
        before = len(self._seen)
        self._put_values("", {label: value})
        return len(self._seen) == before


def _objects_in(value: object) -> list[object]:
    """Returns the objects that are not plain data in a value: the value itself, or the objects in
    its collections."""
    objects: list[object] = []

    def take(each: object) -> str:
        objects.append(each)
        return ""

    DataText(take, folder="").of(value)
    return objects


def _is(value: object, kind: "type[_Kind] | tuple[type[_Kind], ...]") -> "TypeGuard[_Kind]":
    """Returns the result of `isinstance`, but does not read `__class__`, because that may run user
    code."""
    return issubclass(type(value), kind)


def identity_of(value: object) -> str:
    """Returns the `identity` of an object, or "" if it has none. Reads only objects whose class is
    the user's or Holdfast's."""
    if not _is_readable(type(value)):
        return ""
    visited = _being_read.get()
    if not hasattr(type(value), "identity") or id(value) in visited:
        identity = stored(value).get("identity")
    else:
        token = _being_read.set(visited | {id(value)})
        identity = getattr(value, "identity", "")
        _being_read.reset(token)
    return identity if isinstance(identity, str) else ""


def _file_of(module: str) -> str:
    return getattr(sys.modules.get(module), "__file__", None) or ""


def _is_readable(kind: type) -> bool:
    return is_own(kind) or kind.__module__.partition(".")[0] == "holdfast"


def _is_tool(value: object) -> bool:
    is_ours = type(value).__module__.partition(".")[0] == "holdfast"
    return is_ours and "function" in stored(value)


def innermost(candidate: Any) -> Any:
    """Returns the named object behind `candidate`: the function under partials and wrappers, or the
    class of any other object."""
    if _is_tool(candidate):
        candidate = stored(candidate)["function"]
    while _is(candidate, functools.partial):
        candidate = candidate.func
    if _is(candidate, _NAMED) or "__wrapped__" in stored(candidate):
        candidate = inspect.unwrap(candidate)
    return candidate if _is(candidate, _NAMED) else type(candidate)


def _imports(source: SourceText) -> dict[str, Any]:
    """Returns the user's modules and objects that the code imports when it runs, by the names that
    the code gives them."""
    imports: dict[str, Any] = {}
    for name, (module, inside) in source.imports.items():
        if (imported := import_own(module)) is not None:
            imports[name] = sys.modules[name] if module.startswith(f"{name}.") else imported
            if inside:
                imports[name] = getattr(imported, inside, import_own(f"{module}.{inside}"))
    return imports


def _closure(function: FunctionType) -> dict[str, Any]:
    held: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            held[name] = cell.cell_contents
        except ValueError:  # The name is not bound yet.
            continue
    return held


def _defaults(function: FunctionType) -> dict[str, object]:
    code, defaults = function.__code__, function.__defaults__ or ()
    named = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    return dict(zip(named, defaults, strict=True)) | (function.__kwdefaults__ or {})


_noting: "ContextVar[Parts | None]" = ContextVar("noting", default=None)
"""The parts of the innermost `noting` block. `code_of` adds to them, because an `identity` may
cover code, too."""


def fingerprint_of(candidate: object) -> str:
    """Returns `name@digest`."""
    return fingerprinted(candidate)[0]


def fingerprinted(candidate: object) -> tuple[str, Code]:
    """Returns `name@digest`, and the parts of the code that the digest covers."""
    with noting(candidate) as parts:
        parts.add(candidate)
    return f"{innermost(candidate).__name__}@{parts.digest}", parts.code


def code_of(*candidates: object) -> str:
    """Returns a digest of the candidates' definitions. Processors that call users' functions put it
    into their `identity`."""
    around = _noting.get()
    digests = []
    for candidate in candidates:
        with noting(candidate) as parts:
            parts.add(candidate)
        digests.append(parts.digest)
        if around is not None:
            around.include(parts.code)
    return "-".join(digests)


def identified_in(*candidates: object) -> list[object]:
    """Returns the objects with an `identity`, such as judges, among the candidates and all objects
    that the candidates refer to. Each object appears once."""
    with noting(None) as parts:
        for candidate in candidates:
            parts.add(candidate)
    return parts.identified


@contextmanager
def noting(home: object) -> Iterator[Parts]:
    """Yields a new `Parts(home)`, to which `code_of` also adds the parts that it reads in the
    block."""
    parts = Parts(home)
    token = _noting.set(parts)
    try:
        yield parts
    finally:
        _noting.reset(token)
