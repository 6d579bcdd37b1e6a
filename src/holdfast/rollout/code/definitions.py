"""Definitions: where in its file a function or a class is written.

A file's digest tells its functions apart by their names alone. Two lambdas, or two functions of one
name, have sources of their own; so the source counts, which is the same in every version of Python,
as bytecode is not. Bytecode stands for what has no source.
"""

import ast
import contextlib
import functools
import inspect
import linecache
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import CodeType, FunctionType
from typing import Any, TypeVar

from holdfast.rollout.code.source import bytecode, canonical

_LARGEST = 1_000_000
"""Characters of a file that is parsed."""
_LAMBDA = "<lambda>"
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef
Subject = FunctionType | type
"""What is defined somewhere."""


def own_source(subject: object) -> bytes:
    """What tells it apart from others of its name in its file; b"" where there is none."""
    if not isinstance(subject, FunctionType | type):
        return b""
    named = _named(subject)
    if len(named) == 1:
        return b""
    found = _chosen(subject, named)
    return b"".join(map(canonical, found)) if found else bytecode(subject)


_memory: "ContextVar[dict[object, Any] | None]" = ContextVar("memory", default=None)
_Found = TypeVar("_Found")


@contextlib.contextmanager
def remembering() -> Iterator[None]:
    """In the block, each function is read once, however many others it helps."""
    known = _memory.get()
    token = _memory.set({} if known is None else known)
    try:
        yield
    finally:
        _memory.reset(token)


def remembered(
    what: str, subject: Subject, depth: int, find: "Callable[[Subject, int], _Found]"
) -> _Found:
    """What `find` finds, under the name of `what`."""
    memory, key = _memory.get(), (what, id(subject), depth)
    if memory is None:
        return find(subject, depth)
    if key not in memory:
        memory[key] = (subject, find(subject, depth))  # It stays alive, and its id its own.
    found: _Found = memory[key][1]
    return found


def nodes_of(subject: Subject) -> tuple[Definition, ...]:
    named = _named(subject)
    return named if len(named) == 1 else _chosen(subject, named)


def _named(subject: Subject) -> tuple[Definition, ...]:
    name = subject.__code__.co_name if isinstance(subject, FunctionType) else subject.__name__
    return _in_file(subject).get(name, ())


def all_nodes(subject: Subject) -> Iterator[Definition]:
    """Everything that is defined in its file."""
    return (node for nodes in _in_file(subject).values() for node in nodes)


def _in_file(subject: Subject) -> "dict[str, tuple[Definition, ...]]":
    """Everything that is defined in its file, by name."""
    return definitions_in(text_of(subject))


def text_of(subject: Subject) -> str:
    """Of its file; "" where that is too long to be read."""
    try:
        file = inspect.getfile(subject)
    except (TypeError, OSError):  # A class of a notebook is in no file; its functions may be.
        file = next((code.co_filename for code in _codes(subject)), "")
    linecache.checkcache(file)
    text = "".join(linecache.getlines(file))
    return text if len(text) <= _LARGEST else ""


@functools.lru_cache(maxsize=16)
def definitions_in(text: str) -> dict[str, tuple[Definition, ...]]:
    """What a file with that text defines, by name."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    found: dict[str, tuple[Definition, ...]] = {}
    for node in ast.walk(tree):
        if isinstance(node, Definition):
            name = _LAMBDA if isinstance(node, ast.Lambda) else node.name
            found[name] = (*found.get(name, ()), node)
    return found


def _chosen(subject: Subject, named: tuple[Definition, ...]) -> tuple[Definition, ...]:
    codes = list(_codes(subject))
    if isinstance(subject, type):
        return tuple(node for node in named if any(_holds(node, code) for code in codes))
    (code,) = codes
    if code.co_name == _LAMBDA:
        found = [each for each in named if isinstance(each, ast.Lambda) and _holds_all(each, code)]
        # One lambda may be in another: it is the last of those that hold it.
        return tuple(found[-1:])
    return tuple(node for node in named if _first_line(node) == code.co_firstlineno)


def _codes(subject: Subject) -> Iterator[CodeType]:
    members = vars(subject).values() if isinstance(subject, type) else (subject,)
    return (member.__code__ for member in members if isinstance(member, FunctionType))


def _first_line(node: Definition) -> int:
    decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
    return min([node.lineno, *(each.lineno for each in decorators)])


def _holds(node: Definition, code: CodeType) -> bool:
    return node.lineno <= code.co_firstlineno <= (node.end_lineno or node.lineno)


def _holds_all(node: ast.Lambda, code: CodeType) -> bool:
    """Whether each instruction is from its body. The first ones of a function have no width."""
    body = node.body
    start, end = (body.lineno, body.col_offset), (body.end_lineno or 0, body.end_col_offset or 0)
    places = [
        ((line, column), (last, width))
        for line, last, column, width in code.co_positions()
        if line is not None and column is not None and last is not None and width
    ]
    return bool(places) and all(start <= first and last <= end for first, last in places)


def scopes_of(definition: Definition) -> Iterator[Definition]:
    """The methods of a class by themselves: a name in one is no name in another."""
    if not isinstance(definition, ast.ClassDef):
        yield definition
        return
    for child in definition.body:
        if isinstance(child, Definition):
            yield from scopes_of(child)
