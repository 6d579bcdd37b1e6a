"""Finds out from a rollout's source whether the rollout may give its trajectories a reward itself.

A rollout can give a reward in three ways: it returns the reward, earns it in an environment, or
passes it to `Truncated`. The answer is no only if the source shows that the rollout does none of
these. If the source cannot be read, the answer is yes.
"""

import ast
import inspect
from collections.abc import Callable, Iterator
from types import FunctionType

from holdfast.rollout.code.source import definition_of

_UNREWARDED = frozenset(
    {
        *("add", "generate", "key", "limit", "messages", "speaker", "spent", "task", "tool"),
        *("tools", "truncate", "value"),
    }
)
"""The methods and attributes of the rollout's context that earn no reward."""


def may_reward(rollout: Callable[..., object]) -> bool:
    """Returns whether `rollout` may give a reward. The first parameter of `rollout` (after `self`)
    is the context of a trajectory."""
    if hasattr(rollout, "__wrapped__"):
        return True  # A decorator may change the function in any way.
    function = getattr(rollout, "__func__", rollout)
    tree = definition_of(function) if isinstance(function, FunctionType) else None
    if not isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef):
        return True
    context = next(iter(inspect.signature(rollout).parameters), "")
    return any(_may_reward(node) for node in ast.walk(tree)) or not all(
        name in _UNREWARDED for name in _uses(tree, context)
    )


def _may_reward(node: ast.AST) -> bool:
    if isinstance(node, ast.Return):
        return not (node.value is None or _is_none(node.value))
    return isinstance(node, ast.keyword) and node.arg == "returned"  # An argument of `Truncated`.


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _uses(tree: ast.AST, context: str) -> Iterator[str]:
    """Yields the attributes that the code reads from the context. Yields "" if the code uses the
    context in another way, such as passing it to a function."""
    read = {
        id(node.value): node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == context:
            yield read.get(id(node), "")
