"""Definitions: where in its file a function or a class is written, and what it changes there.

A file's digest tells its functions apart by their names alone. Two lambdas, or two functions of one
name, have sources of their own; so the source counts, which is the same in every version of Python,
as bytecode is not. Bytecode stands for what has no source.
"""

import ast
import functools
import inspect
import linecache
from collections.abc import Iterator
from types import CodeType, FunctionType

from holdfast.rollout.code.source import bytecode, canonical

_LARGEST = 1_000_000
"""Characters of a file that is parsed."""
_LAMBDA = "<lambda>"
_MAKING = frozenset({"__init__", "__new__", "__post_init__"})
"""What gives an object its attributes; what other methods set is where it stands."""
_CHANGING = frozenset(
    (
        *("append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse", "add"),
        *("discard", "update", "setdefault", "popitem", "appendleft", "popleft", "subtract"),
    )
)
"""Methods that change a list, a set, a dict or a deque."""
_READING = frozenset(
    (
        *("len", "str", "repr", "sorted", "list", "dict", "tuple", "set", "frozenset", "print"),
        *("enumerate", "zip", "range", "min", "max", "sum", "any", "all", "isinstance"),
        *("dumps", "join", "format", "choice", "choices", "sample", "copy", "deepcopy"),
    )
)
"""What leaves as it is what it is given."""
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef


def own_source(subject: object) -> bytes:
    """What tells it apart from others of its name in its file; b"" where there is none."""
    if not isinstance(subject, FunctionType | type):
        return b""
    named = _named(subject)
    if len(named) == 1:
        return b""
    found = _chosen(subject, named)
    return b"".join(map(canonical, found)) if found else bytecode(subject)


def changed_by(subject: "FunctionType | type") -> "frozenset[str] | None":
    """Names of variables, and `.name` of attributes, that it changes: where it stands rather than
    what it is. None where its source is not known."""
    named = _named(subject)
    found = named if len(named) == 1 else _chosen(subject, named)
    if not found:
        return None
    return frozenset(name for node in found for name in _changed(node))


def handed_on_by(subject: "FunctionType | type") -> frozenset[str]:
    """Names of variables, and `.name` of attributes, that it gives to others as they are: to a
    function, to another name. What can be changed may be changed there."""
    named = _named(subject)
    found = named if len(named) == 1 else _chosen(subject, named)
    return frozenset(name for node in found for name in _handed_on(node))


def _named(subject: "FunctionType | type") -> tuple[_Definition, ...]:
    try:
        file = inspect.getfile(subject)
    except (TypeError, OSError):  # A class of a notebook is in no file; its functions may be.
        file = next((code.co_filename for code in _codes(subject)), "")
    name = subject.__code__.co_name if isinstance(subject, FunctionType) else subject.__name__
    linecache.checkcache(file)
    text = "".join(linecache.getlines(file))
    return _definitions(text).get(name, ()) if len(text) <= _LARGEST else ()


@functools.lru_cache(maxsize=16)
def _definitions(text: str) -> dict[str, tuple[_Definition, ...]]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    found: dict[str, tuple[_Definition, ...]] = {}
    for node in ast.walk(tree):
        if isinstance(node, _Definition):
            name = _LAMBDA if isinstance(node, ast.Lambda) else node.name
            found[name] = (*found.get(name, ()), node)
    return found


def _chosen(
    subject: "FunctionType | type", named: tuple[_Definition, ...]
) -> tuple[_Definition, ...]:
    codes = list(_codes(subject))
    if isinstance(subject, type):
        return tuple(node for node in named if any(_holds(node, code) for code in codes))
    (code,) = codes
    if code.co_name == _LAMBDA:
        found = [each for each in named if isinstance(each, ast.Lambda) and _holds_all(each, code)]
        # One lambda may be in another: it is the last of those that hold it.
        return tuple(found[-1:])
    return tuple(node for node in named if _first_line(node) == code.co_firstlineno)


def _codes(subject: "FunctionType | type") -> Iterator[CodeType]:
    members = vars(subject).values() if isinstance(subject, type) else (subject,)
    return (member.__code__ for member in members if isinstance(member, FunctionType))


def _first_line(node: _Definition) -> int:
    decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
    return min([node.lineno, *(each.lineno for each in decorators)])


def _holds(node: _Definition, code: CodeType) -> bool:
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


def _changed(definition: _Definition) -> Iterator[str]:
    waiting: list[ast.AST] = [definition]
    while waiting:
        node = waiting.pop()
        match node:
            case ast.Nonlocal():
                yield from node.names
            case ast.Attribute() | ast.Subscript() if not isinstance(node.ctx, ast.Load):
                yield from _chain(node)
            case ast.Call(func=ast.Attribute(attr=name, value=of)) if name in _CHANGING:
                yield from _chain(of)
        for child in ast.iter_child_nodes(node):
            made = isinstance(definition, ast.ClassDef) and getattr(child, "name", "") in _MAKING
            if not made:
                waiting.append(child)


def _handed_on(definition: _Definition) -> Iterator[str]:
    for node in ast.walk(definition):
        given: list[ast.expr | None] = []
        match node:
            case ast.Call() if not _only_reads(node.func, definition):
                given = [*node.args, *(each.value for each in node.keywords if each.arg)]
            case ast.Assign() | ast.AnnAssign() | ast.NamedExpr():
                given = [node.value]
            case ast.List() | ast.Tuple() | ast.Set():
                given = [*node.elts]
            case ast.Dict():
                given = [*node.values]
        for each in given:
            if isinstance(each, ast.Attribute):
                yield f".{each.attr}"
            elif isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load):
                yield each.id


def _only_reads(called: ast.expr, definition: _Definition) -> bool:
    """Also the methods of what a rollout or a scorer is given, which are ours."""
    if isinstance(called, ast.Name):
        return called.id in _READING
    if not isinstance(called, ast.Attribute):
        return False
    parameters = [] if isinstance(definition, ast.ClassDef) else definition.args.args
    ours = {each.arg for each in parameters} - {"self"}
    is_ours = isinstance(called.value, ast.Name) and called.value.id in ours
    return is_ours or called.attr in _READING


def _chain(node: ast.AST) -> Iterator[str]:
    """`a`, `.b` and `.c` of `a.b["key"].c`."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Attribute):
            yield f".{node.attr}"
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id
