"""Changes the imports of a file that was written for eval-protocol, and nothing else.

    from eval_protocol.pytest.evaluation_test import evaluation_test
    from holdfast.evaluation import evaluation_test

Names that Holdfast does not have (adapters of tracing services, reward functions, gyms) stay with
eval-protocol, which has to be installed for them.
"""

import ast
import importlib
from collections.abc import Collection

THEIRS, OURS = "eval_protocol", "holdfast.evaluation"
SAME_MODULES = ("models", "exceptions")
"""Modules that are called the same here."""


def rewritten(source: str, *, but: Collection[str] = ()) -> str:
    """The source with its imports changed, line by line where they stood; `but` for some names."""
    lines = source.splitlines(keepends=True)
    found = [one for one in ast.walk(ast.parse(source)) if _is_theirs(one)]
    for node in sorted(found, key=lambda one: one.lineno, reverse=True):
        first, last = node.lineno - 1, node.end_lineno or node.lineno
        lines[first:last] = [" " * node.col_offset + one + "\n" for one in _imports(node, but)]
    return "".join(lines)


def _is_theirs(node: ast.AST) -> bool:
    return isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == THEIRS


def _imports(node: ast.ImportFrom, but: Collection[str]) -> list[str]:
    by_module: dict[str, list[str]] = {}
    for alias in node.names:
        written = alias.name if alias.asname is None else f"{alias.name} as {alias.asname}"
        module = str(node.module) if alias.name in but else _home(str(node.module), alias.name)
        by_module.setdefault(module, []).append(written)
    return [f"from {module} import {', '.join(names)}" for module, names in by_module.items()]


def _home(module: str, name: str) -> str:
    for ours in (OURS, *(f"{OURS}.{one}" for one in SAME_MODULES if module.endswith(one))):
        if hasattr(importlib.import_module(ours), name):
            return ours
    return module
