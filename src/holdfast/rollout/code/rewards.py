"""Whether a rollout may give its trajectories a reward itself, judged by its source.

A rollout can return a reward, earn one in an environment, or raise one with a truncation. The
answer is no only if the source shows that it does none of these. A rollout without readable source
may reward.
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
"""Methods of the rollout's context that earn no reward by themselves."""


def may_reward(rollout: Callable[..., object]) -> bool:
    """Returns whether `rollout` may give a reward. Its first argument (after `self`) is the context
    of a trajectory."""
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
    """Yields the names that are read from the context, and "" if the context itself is passed
    on."""
    read = {
        id(node.value): node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == context:
            yield read.get(id(node), "")
