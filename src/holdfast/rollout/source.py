"""Source: the code that a fingerprint stands for.

A file with evaluations in it holds both what makes rollouts and what judges them. Judging otherwise
is no reason to roll out again: evaluations are no part of a rollout's source. Such files are
compared by their meaning; a comment or a blank line changes nothing.
"""

import ast
from types import CodeType

MARK = "evaluation_test"
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def compiled(subject: object) -> bytes:
    """What stands for code without a file, such as a notebook's: of a function what it does and
    says, of a class its functions."""
    if isinstance(subject, type):
        return b"".join(compiled(one) for one in vars(subject).values())
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


def without_evaluations(text: bytes, *, keep: str = "") -> bytes:
    """The file without functions that are decorated as evaluations; `keep` is the qualified name
    of one that stays, but for its decorators."""
    if MARK.encode() not in text:
        return text
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return text
    _strip(tree, "", keep)
    return ast.dump(tree).encode("utf-8", "surrogatepass")


def _strip(scope: ast.Module | ast.ClassDef, prefix: str, keep: str) -> None:
    kept: list[ast.stmt] = []
    for node in scope.body:
        if isinstance(node, ast.ClassDef):
            _strip(node, f"{prefix}{node.name}.", keep)
        elif isinstance(node, _Function) and _is_evaluation(node):
            if prefix + node.name != keep:
                continue
            node.decorator_list = []
        kept.append(node)
    scope.body = kept


def _is_evaluation(node: _Function) -> bool:
    for decorator in node.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        if name == MARK:
            return True
    return False
