"""Source: the code that a fingerprint stands for.

A file with evaluations in it holds both what makes rollouts and what judges them. Judging otherwise
is no reason to roll out again: evaluations are no part of a rollout's source. Such files are
compared by their meaning; a comment or a blank line changes nothing.
"""

import ast

MARK = "evaluation_test"
_Function = ast.FunctionDef | ast.AsyncFunctionDef


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
