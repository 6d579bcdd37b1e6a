"""Source: the code that a fingerprint stands for.

A file with evaluations in it holds both what makes rollouts and what judges them. Judging otherwise
is no reason to roll out again: evaluations are no part of a rollout's source. Such files are
compared by their meaning; a comment or a blank line changes nothing.
"""

import ast
from types import CodeType
from typing import Any

from holdfast.rollout.code.helpers import drop_helpers

MARK = "evaluation_test"
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_WHOLE = (ast.AST, list)
_Part = str | ast.AST | list[object]
"""What is to be written: a text as it is, or what has parts itself."""
_LONGEST_INT = 2_000
"""Bits."""
_UNPARSED = (SyntaxError, ValueError, RecursionError, MemoryError)
"""What `ast` says of a text that is no Python, or is nested too deeply for it."""


def bytecode(subject: object, _around: tuple[type, ...] = ()) -> bytes:
    """What stands for code without a file, such as a notebook's: of a function what it does and
    says, of a class its functions, and those of classes in it."""
    if isinstance(subject, type):
        if any(subject is each for each in _around):
            return b""  # It holds itself.
        around = (*_around, subject)
        return b"".join(bytecode(member, around) for member in vars(subject).values())
    code = getattr(subject, "__code__", None)
    return _digestible(code) if isinstance(code, CodeType) else b""


def _digestible(value: object) -> bytes:
    """The same in every process, as a set's own order is not."""
    if isinstance(value, CodeType):
        return value.co_code + _digestible((value.co_consts, value.co_names, value.co_varnames))
    if isinstance(value, tuple):
        return b"(" + b",".join(map(_digestible, value)) + b")"
    if isinstance(value, frozenset):
        return _digestible(tuple(sorted(map(repr, value))))
    return repr(value).encode("utf-8", "surrogatepass")


def simple_text(value: object) -> str:
    """As what partials hold was read when it alone counted: texts, numbers, and what is made of
    them, the same in every process; else the type."""
    kind: type = type(value)
    held: Any = value
    if issubclass(kind, int) and held.bit_length() > _LONGEST_INT:
        return hex(held)  # `repr` refuses it.
    if value is None or issubclass(kind, str | bytes | int | float):
        return repr(value)
    if issubclass(kind, list | tuple):
        return f"[{', '.join(map(simple_text, held))}]"
    if issubclass(kind, set | frozenset):
        return f"{{{', '.join(sorted(map(simple_text, held)))}}}"
    if issubclass(kind, dict):
        items = (f"{simple_text(key)}: {simple_text(item)}" for key, item in held.items())
        return f"{{{', '.join(sorted(items))}}}"
    return kind.__qualname__


def parse(text: bytes, *, keep: str = "", root: str | None = None) -> ast.AST:
    """The file without functions that are decorated as evaluations, and without what is imported
    for these alone; `keep` is the qualified name of one that stays, but for its decorators. With
    `root`, the name of the code that the file is read for, also without helpers of evaluations (see
    `helpers`). One that cannot be parsed is its bytes."""
    try:
        tree = ast.parse(text)
    except _UNPARSED:
        return unparse(text)
    if MARK.encode() in text:
        removed = _strip(tree, "", keep)
        if root is not None:
            removed += drop_helpers(tree, removed, root)
        _drop_imports(tree, _used_names(*removed) - _used_names(tree))
    return tree


def unparse(text: bytes) -> ast.AST:
    """The file as its bytes, comments and all."""
    return ast.Constant(text)


def canonical(tree: ast.AST) -> bytes:
    """The same in every version of Python, as `ast.dump` is not: what is empty is left out. A long
    chain of `elif` or `+` is a deep tree, and no reason to recurse as deeply."""
    parts: list[str] = []
    waiting: list[_Part] = [tree]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            parts.append(part)
        else:
            waiting += reversed(_parts(part))
    return "\0".join(parts).encode("utf-8", "surrogatepass")


def _parts(whole: ast.AST | list[object]) -> "list[_Part]":
    if isinstance(whole, list):
        return [*map(_part, whole), "]"]
    parts: list[_Part] = [type(whole).__name__]
    for field in whole._fields:
        found = getattr(whole, field, None)
        if found is not None and found != []:
            parts += (field, _part(found))
    parts.append(")")
    return parts


def _part(value: object) -> "_Part":
    return value if isinstance(value, _WHOLE) else repr(value)


def _used_names(*nodes: ast.AST) -> set[str]:
    """The names that are read or called."""
    return {child.id for node in nodes for child in ast.walk(node) if isinstance(child, ast.Name)}


def _drop_imports(tree: ast.Module, names: set[str]) -> None:
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            node.names = [
                alias
                for alias in node.names
                if (alias.asname or alias.name.partition(".")[0]) not in names
            ]
    tree.body = [node for node in tree.body if getattr(node, "names", True)]


def without_evaluations(text: bytes, *, keep: str = "") -> bytes:
    """As runs were compared when a file alone was their code: the file without functions that are
    decorated as evaluations; `keep` is the qualified name of one that stays, but for its
    decorators."""
    if MARK.encode() not in text:
        return text
    try:
        tree = ast.parse(text)
        _strip(tree, "", keep)
        return ast.dump(tree).encode("utf-8", "surrogatepass")
    except _UNPARSED:
        return text


def _strip(scope: ast.Module | ast.ClassDef, prefix: str, keep: str) -> list[ast.AST]:
    """What was taken out."""
    kept: list[ast.stmt] = []
    removed: list[ast.AST] = []
    for node in scope.body:
        if isinstance(node, ast.ClassDef):
            removed += _strip(node, f"{prefix}{node.name}.", keep)
        elif isinstance(node, _Function) and _is_evaluation(node):
            if prefix + node.name != keep:
                removed.append(node)
                continue
            removed += node.decorator_list
            node.decorator_list = []
        kept.append(node)
    scope.body = kept
    return removed


def _is_evaluation(node: _Function) -> bool:
    for decorator in node.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        if name == MARK:
            return True
    return False
